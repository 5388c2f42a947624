"""The Prometheus edge: families of runs as the ledger has them, the same on every replica, and what a process measures of itself."""
