"""The quantities that the ledger counts, their units and their bounds.

| quantity | unit | drawn from |
|---|---|---|
| input_slots | slots | tensor positions processed, padding included |
| consumed_tokens | tokens | tokens drawn from the data, padding excluded |
| valid_targets | targets | eligible prediction targets |
| samples | samples | sequences or documents drawn from the data |
"""

QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")

UNITS = {
    "input_slots": "slots",
    "consumed_tokens": "tokens",
    "valid_targets": "targets",
    "samples": "samples",
    "updates": "updates",
    "seconds": "seconds",
}

LARGEST_COUNT = 2**53
"""Upper bound of a count in one event; sums are exact beyond it."""
