"""Cursors as they leave and come back: opaque text with a checksum, so that only what was given out is taken again."""

import base64
import binascii
import hashlib
from typing import Any

from ledger.domain.errors import InvalidRequest

CHECKSUM_BYTES = 6


def _checksum(place: bytes) -> bytes:
    return hashlib.blake2b(place, digest_size=CHECKSUM_BYTES, person=b"ledger-cursor").digest()


def sealed(page: dict[str, Any]) -> dict[str, Any]:
    """The same page with its `next_cursor` as callers see it."""
    if page["next_cursor"] is None:
        return page
    place = str(page["next_cursor"]).encode()
    return page | {"next_cursor": base64.urlsafe_b64encode(_checksum(place) + place).decode().rstrip("=")}


def opened(cursor: str | None) -> str | None:
    """The place that a cursor stands for.

    >>> opened(sealed({"next_cursor": "[1, 5, 0]"})["next_cursor"])
    '[1, 5, 0]'

    Raises: InvalidRequest for a cursor that was never given out.
    """
    if cursor is None:
        return None
    try:
        packed = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        place = packed[CHECKSUM_BYTES:]
        if packed[:CHECKSUM_BYTES] == _checksum(place):
            return place.decode()
    except (ValueError, binascii.Error):
        pass
    raise InvalidRequest("a cursor is what `next_cursor` gave", pointer="/cursor")
