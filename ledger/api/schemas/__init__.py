"""The shapes of bodies: what may come in (declarations, batches) and what goes out (answers)."""
