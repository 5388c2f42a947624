"""How much a request may make the service hold: bounds on bodies as sent, on what they decompress to, and on batches in flight."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import zstandard
from starlette.requests import ClientDisconnect, Request

from ledger.api.refusals import BodyBroken, BodyTooLarge, CrossSite, EncodingUnsupported, MediaTypeUnsupported
from ledger.domain.errors import QueueFull

STEP_BYTES = 1024
"""Compressed bytes expanded at a time: each may yield at most about 32 kB, so that one step is bounded too."""
MOST_FRAMES = 1024
"""Compressed frames (gzip members) of one body; each costs time though it may hold nothing."""
ZSTD_WINDOW_BYTES = 8 * 2**20
"""Largest window that a zstd frame may ask for, as RFC 8878 recommends."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How large a body may be, as sent and after decompression."""

    max_body_bytes: int
    max_decompressed_bytes: int


class Gate:
    """Batches being read, checked or committed; past the bound a batch is refused before its body is read."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.waiting = 0
        self.threads = anyio.CapacityLimiter(batches)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """One batch on its way.

        Raises: QueueFull.
        """
        if self.waiting >= self.batches:
            raise QueueFull(f"{self.waiting} batches are on their way already")
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


def check_origin(request: Request) -> None:
    """Refuse writes that a browser sends for another site, and bodies that are not declared as JSON.

    Raises: CrossSite, MediaTypeUnsupported.
    """
    if request.headers.get("sec-fetch-site") == "cross-site":
        raise CrossSite("pages of other sites may not write to the ledger")
    declared = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if declared != "application/json" and not declared.endswith("+json"):
        raise MediaTypeUnsupported("send the body as application/json")


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    """The body as sent.

    Raises: BodyTooLarge, BodyBroken.
    """
    limit = limits.max_body_bytes
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit():
        raise BodyBroken("Content-Length is not a number")
    if int(declared) > limit:
        raise BodyTooLarge(f"a body may have {limit} bytes at most")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise BodyTooLarge(f"a body may have {limit} bytes at most")
    except ClientDisconnect:
        raise BodyBroken("the connection ended before the body did") from None
    return bytes(body)


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its Content-Encoding, never holding much more than `limit` bytes.

    Raises: BodyTooLarge, BodyBroken, EncodingUnsupported.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _expand(body, limit, lambda: zlib.decompressobj(wbits=31))
        case "zstd":
            return _expand(body, limit, zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj)
    raise EncodingUnsupported("Content-Encoding may be gzip, zstd or identity")


def _expand(body: bytes, limit: int, new_frame: Callable[[], Any]) -> bytes:
    """All frames of the body, one after another; the last one must be whole."""
    out, at, whole_bytes, frames = bytearray(), 0, 0, 0
    frame = new_frame()
    while at < len(body):
        step = body[at : at + STEP_BYTES]
        try:
            out += frame.decompress(step)
        except (zlib.error, zstandard.ZstdError):
            raise BodyBroken("the body is not what its Content-Encoding says") from None
        if len(out) > limit:
            raise BodyTooLarge(f"a body may decompress to {limit} bytes at most")
        at += len(step)
        if frame.eof:
            at -= len(frame.unused_data)
            whole_bytes, frames, frame = at, frames + 1, new_frame()
            if frames > MOST_FRAMES:
                raise BodyBroken(f"the body has more than {MOST_FRAMES} compressed frames")
    if whole_bytes != len(body):
        raise BodyBroken("the compressed body ends early")
    return bytes(out)
