"""`ledger-client`: look at what processes left in a spool directory, and send it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .backlog import Backlog
from .declaration import Declaration
from .delivery import DEAD_LETTERS, Delivery
from .leftovers import DECLARATION
from .notices import Notices
from .segment import OtherFormat
from .storage import Directory
from .transport import HttpTransport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DRAIN_SECONDS = 300.0


def spools(root: Path) -> Iterator[tuple[Directory, Declaration | str]]:
    """The spools under a directory, or the directory itself if it is one: each with its declaration, or why it cannot be read."""
    for path in [root, *sorted(entry for entry in root.iterdir() if entry.is_dir())]:
        directory = Directory(path)
        try:
            text = directory.read_text(DECLARATION)
            if text is not None:
                yield directory, Declaration.from_json(text)
        except (OSError, ValueError) as error:
            yield directory, f"{path}: {error}"


def titled(declaration: Declaration) -> str:
    """What a spool holds, in a few words."""
    return f"{declaration.project}/{declaration.run} attempt {declaration.attempt} rank {declaration.rank} writer {declaration.writer}"


def drained(directory: Directory, declaration: Declaration, address: str, token: str | None, deadline: float) -> bool:
    """Send one claimed spool; True if all of it arrived, and then it is removed."""
    delivery = Delivery(declaration, Backlog(directory), directory, HttpTransport(address, token), Notices())
    try:
        while not delivery.complete and time.monotonic() < deadline:
            if not delivery.step(10.0):
                time.sleep(min(max(0.0, delivery.not_before - time.monotonic()), max(0.0, deadline - time.monotonic())))
    finally:
        delivery.disconnect()
    left = delivery.backlog.count()
    print(f"{titled(declaration)}: {delivery.accepted_count} events sent, {delivery.dead_letter_count} rejected, {left} left")
    if not delivery.complete:
        print(f"  {delivery.last_failure}", file=sys.stderr)
    return delivery.complete


def drain(root: Path, url: str | None, token: str | None, timeout_seconds: float) -> int:
    """Send what dead processes left; 0 if all of it arrived."""
    deadline = time.monotonic() + timeout_seconds
    status = 0
    for directory, declaration in spools(root):
        if isinstance(declaration, str):
            print(declaration, file=sys.stderr)
            status = 1
            continue
        address = url or os.environ.get("LEDGER_URL") or declaration.url
        if not address:
            print(f"{titled(declaration)}: no address of a ledger (--url or LEDGER_URL)", file=sys.stderr)
            status = 1
            continue
        arrived = False
        try:
            if not directory.claim():
                print(f"{titled(declaration)}: its process is alive and sends by itself")
                continue
            arrived = drained(directory, declaration, address, token or os.environ.get("LEDGER_TOKEN") or None, deadline)
        except (OSError, OtherFormat) as error:
            print(f"{titled(declaration)}: {error}", file=sys.stderr)
        directory.release(empty=arrived)
        status = status if arrived else 1
    return status


def inspect(root: Path) -> int:
    """Say what is in the spools of a directory, and change nothing; 0 if all of them can be read."""
    status = 0
    for directory, declaration in spools(root):
        if isinstance(declaration, str):
            print(declaration, file=sys.stderr)
            status = 1
            continue
        try:
            if not directory.claim():
                print(f"{titled(declaration)}: alive")
                continue
            letters = directory.read_text(DEAD_LETTERS)
            rejected = len(letters.splitlines()) if letters else 0
            print(f"{titled(declaration)}: {Backlog(directory, writable=False).count()} events to send, {rejected} rejected")
        except (OSError, OtherFormat) as error:
            print(f"{titled(declaration)}: {error}", file=sys.stderr)
            status = 1
        directory.release(empty=False)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `ledger-client`."""
    parser = argparse.ArgumentParser(prog="ledger-client", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("drain", "send what dead processes left"), ("inspect", "say what is there, and change nothing")):
        command = commands.add_parser(name, help=text)
        command.add_argument("directory", type=Path, metavar="DIR", help="spool directory, or the spool of one process")
        if name == "drain":
            command.add_argument("--url", help="the ledger's address (else LEDGER_URL, else the one that the process had)")
            command.add_argument("--token", help="bearer token (else LEDGER_TOKEN)")
            command.add_argument("--timeout", type=float, default=DRAIN_SECONDS, metavar="SECONDS", help="give up after (default: 300)")
    chosen = parser.parse_args(arguments)
    if not chosen.directory.is_dir():
        print(f"ledger-client: {chosen.directory} is no directory", file=sys.stderr)
        return 2
    if chosen.command == "inspect":
        return inspect(chosen.directory)
    try:
        return drain(chosen.directory, chosen.url, chosen.token, chosen.timeout)
    except ValueError as error:
        print(f"ledger-client: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
