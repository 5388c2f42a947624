"""How the microbatches of one group lie in memory while the group is open: a head, then cells of one size, none ever rewritten.

| bytes | head | cell of a microbatch | cell of a range |
|---|---|---|---|
| 0-7 | key of the group | input slots | number of the stream |
| 8-15 | group, retry | consumed tokens | epoch |
| 16-23 | update | valid targets | start |
| 24-31 | time of its start, of the wall clock | samples | stop |
| 32-39 | the same of the monotonic clock | number of its ranges | 0 |
| 40-47 | | sum of losses | |
| 48-55 | | monotonic clock | |
| 56-63 | seal | seal | seal |

The seal is the key, exclusive-or all integers before it, with flags above the bits that a count can have. It is stored last, and the
kernel sees the stores of a killed process in their order, so a cell with a valid seal is whole. Keys differ between groups, so what an
older group left in the same place is never taken for a cell. The ranges of a microbatch lie before its own cell.
"""

from __future__ import annotations

import struct

CELL = struct.Struct("<QQQQQddQ")
HEAD = struct.Struct("<QIIQdd16xQ")
CELL_BYTES = CELL.size

KEY_STEP = 0x9E3779B97F4A7C15
KEY_MASK = (1 << 53) - 1
LOSS_UNKNOWN, IS_RANGE = 1 << 60, 1 << 61
"""Flags in a seal."""

UNKNOWN = 2**64 - 1
"""Stands for an unknown count, also of ranges."""
LOSS_FIELD = 5


def key_of(group: int) -> int:
    """What marks the cells of a group as its own."""
    return group * KEY_STEP & KEY_MASK


def patched(cells: bytearray, offset: int, field: int, value: int | float) -> None:
    """Put a value that has arrived in the place of the unknown one."""
    values = list(CELL.unpack_from(cells, offset))
    if field == LOSS_FIELD:
        values[-1] ^= LOSS_UNKNOWN
    else:
        values[-1] ^= values[field] ^ int(value)
    values[field] = value
    CELL.pack_into(cells, offset, *values)
