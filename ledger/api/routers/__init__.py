"""The calls: each handler takes checked values, asks one use case, and answers."""
