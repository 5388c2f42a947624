"""Use cases: modules of functions over a store; one use case, one transaction, committed before the answer."""
