"""The REST edge: what comes in is checked here once, what goes out is described here, and nothing is decided here."""
