"""What earlier processes of the same rank left in the spool directory: sent by the next one, so that a restart needs no operator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .backlog import Backlog
from .declaration import Declaration
from .delivery import Delivery
from .segment import OtherFormat
from .storage import Directory
from .transport import HttpTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .notices import Notices
    from .opening import Settings

DECLARATION = "declaration.json"


def left_behind(chosen: Settings, project: str, run: str, rank: int, notices: Notices) -> Iterator[Delivery]:
    """The spools of dead processes of this rank of the run, claimed, each with its way to this process's ledger."""
    mark = f".rank{rank}."
    for name in sorted(os.listdir(chosen.root)):
        if mark not in name:
            continue
        directory = Directory(os.path.join(chosen.root, name))
        try:
            text = directory.read_text(DECLARATION)
            declaration = Declaration.from_json(text) if text is not None else None
            if declaration is None or (declaration.project, declaration.run) != (project, run) or not has_segments(directory):
                continue
            # Another ledger may be meant by another address.
            if declaration.url not in (None, chosen.url) or not directory.claim():
                continue
        except (OSError, ValueError) as error:
            notices.say(f"left behind {name}", "what an earlier process left in %s is not sent: %s", name, error)
            continue
        try:
            transport = chosen.transport or HttpTransport(chosen.url or "", chosen.token)
            yield Delivery(declaration, Backlog(directory), directory, transport, notices, chosen.total_bytes)
        except (OSError, OtherFormat) as error:
            notices.say(f"left behind {name}", "what an earlier process left in %s is not sent: %s", name, error)
            directory.release(empty=False)


def has_segments(directory: Directory) -> bool:
    """Whether there may be something to send: dead letters alone are not sent again."""
    return any(name.startswith("segment-") for name in directory.names())
