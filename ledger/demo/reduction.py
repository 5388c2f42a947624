"""The sum over the ranks of one attempt, over loopback sockets: rank 0 adds the vectors in rank order and returns the sum.

The order of the additions is fixed, so that every rank holds the same bits, and a redone update gives the same bits again.
"""

import socket
import struct
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

PATIENCE_SECONDS = 30.0
LOOPBACK = "127.0.0.1"


class RankGroup:
    """The connections among the ranks; every rank must call `total` equally often, with vectors of equal length."""

    def __init__(self, rank: int, ranks: int, meeting: Path) -> None:
        self.rank = rank
        self.peers: list[socket.socket] = []
        if ranks == 1:
            return
        self.peers = _gather(ranks, meeting) if rank == 0 else [_join(rank, meeting)]
        for peer in self.peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(PATIENCE_SECONDS)

    def total(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The sum of every rank's vector, added in double precision.

        Raises: ConnectionError where a rank is gone
        """
        own = np.asarray(values, dtype=np.float64)
        if not self.peers:
            return own
        if self.rank != 0:
            self.peers[0].sendall(own.tobytes())
            return np.frombuffer(_receive(self.peers[0], own.nbytes), dtype=np.float64)
        result = own.copy()
        for peer in self.peers:
            result += np.frombuffer(_receive(peer, own.nbytes), dtype=np.float64)
        for peer in self.peers:
            peer.sendall(result.tobytes())
        return result

    def close(self) -> None:
        """Leave the group."""
        for peer in self.peers:
            peer.close()


def _gather(ranks: int, meeting: Path) -> list[socket.socket]:
    """Rank 0: announce a port and wait for all others, each of which says its rank first."""
    arrived: dict[int, socket.socket] = {}
    with socket.create_server((LOOPBACK, 0)) as door:
        door.settimeout(PATIENCE_SECONDS)
        announcement = meeting.with_suffix(".partial")
        announcement.write_text(str(door.getsockname()[1]), encoding="ascii")
        announcement.rename(meeting)
        while len(arrived) < ranks - 1:
            peer, _ = door.accept()
            peer.settimeout(PATIENCE_SECONDS)
            (rank,) = struct.unpack("!I", _receive(peer, 4))
            arrived[rank] = peer
    return [arrived[rank] for rank in range(1, ranks)]


def _join(rank: int, meeting: Path) -> socket.socket:
    """Any other rank: wait for the announced port and say who is there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not meeting.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 announced no port in {meeting} within {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.01)
    peer = socket.create_connection((LOOPBACK, int(meeting.read_text(encoding="ascii"))), timeout=PATIENCE_SECONDS)
    peer.sendall(struct.pack("!I", rank))
    return peer


def _receive(peer: socket.socket, size: int) -> bytearray:
    """Exactly `size` bytes."""
    received = bytearray(size)
    view = memoryview(received)
    while view:
        count = peer.recv_into(view)
        if count == 0:
            raise ConnectionError("another rank has left the group")
        view = view[count:]
    return received
