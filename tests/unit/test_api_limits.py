"""Bodies are bounded before and after decompression, and batches in flight too."""

import gzip

import pytest
import zstandard

from ledger.api.limits import MOST_FRAMES, Gate, decompress
from ledger.api.refusals import BodyBroken, BodyTooLarge, EncodingUnsupported
from ledger.domain.errors import QueueFull

PLAIN = b'{"ranks": []}' * 50
PACKERS = {"gzip": gzip.compress, "zstd": zstandard.compress}


@pytest.mark.parametrize("encoding", PACKERS)
def test_whole_bodies_come_back(encoding: str) -> None:
    pack = PACKERS[encoding]
    assert decompress(pack(PLAIN), encoding, len(PLAIN)) == PLAIN
    assert decompress(pack(PLAIN[:100]) + pack(PLAIN[100:]), encoding.upper(), len(PLAIN)) == PLAIN


@pytest.mark.parametrize("encoding", PACKERS)
def test_one_byte_over_the_limit_is_too_large(encoding: str) -> None:
    with pytest.raises(BodyTooLarge):
        decompress(PACKERS[encoding](PLAIN), encoding, len(PLAIN) - 1)


@pytest.mark.parametrize("encoding", PACKERS)
@pytest.mark.parametrize("cut", [1, 4, 20])
def test_a_body_that_ends_early_is_broken(encoding: str, cut: int) -> None:
    with pytest.raises(BodyBroken):
        decompress(PACKERS[encoding](PLAIN)[:-cut], encoding, 10_000)


def test_more_frames_than_a_body_needs_are_refused() -> None:
    with pytest.raises(BodyBroken):
        decompress(gzip.compress(b"") * (MOST_FRAMES + 1), "gzip", 10_000)


def test_a_zstd_window_larger_than_recommended_is_refused() -> None:
    options = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    stream = zstandard.ZstdCompressor(
        compression_params=options,
    ).compressobj()
    body = stream.compress(PLAIN) + stream.flush()
    with pytest.raises(BodyBroken):
        decompress(body, "zstd", 10_000)


def test_other_encodings_are_refused() -> None:
    with pytest.raises(EncodingUnsupported):
        decompress(PLAIN, "br", 10_000)


def test_the_gate_counts_what_is_inside() -> None:
    gate = Gate(2)
    with gate.entered(), gate.entered(), pytest.raises(QueueFull), gate.entered():
        raise AssertionError("a third batch came in")
    assert gate.waiting == 0
