"""Training Ledger: what a model was really trained on, and what the rest of the compute went to."""

__version__ = "0.1.0"
