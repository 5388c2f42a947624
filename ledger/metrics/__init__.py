"""The Prometheus edge: families read from the ledger at scrape time, never kept as state of a process."""
