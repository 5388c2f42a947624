"""How one spool gets to the server: open the run, open the attempt, then the events, each exactly once in the ledger.

| answer | what follows |
|---|---|
| 200 | acknowledged; what it lists as rejected goes to the dead letters |
| 409, 422 to a declaration | said once; events go on if the attempt exists, and wait in the spool if it does not |
| 413 | the batch is halved; an event that is too large alone is a dead letter |
| 400, 422 to events | the batch is halved until the one event that is at fault is a dead letter |
| 429, 503 | again after `Retry-After`, else after a growing, jittered pause |
| no answer, 5xx, 401, 403, 404 | the same; nothing is given up |

A lost answer costs a resend of the same events under the same identities, which the ledger recognises.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from .batch import encode
from .transport import Unreachable

if TYPE_CHECKING:
    from .backlog import Backlog, Parcel
    from .declaration import Declaration
    from .notices import Notices
    from .shapes import Row, Storage
    from .transport import Answer, Transport

BATCH_EVENTS = 1000
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
LAST_PAUSE_SECONDS = 1.0
"""The longest pause while the run is closing."""
LONGEST_ASKED_PAUSE_SECONDS = 3600.0
DEAD_LETTERS = "dead-letter.ndjson"
LETTERS_BYTES = 64 << 20
"""Bound of the dead letters of one spool: what comes after them is counted and said, not kept."""


def asked_pause(headers: object) -> float | None:
    """The pause that `Retry-After` asks for. Units: seconds.

    >>> asked_pause({"retry-after": "2"})
    2.0
    """
    value = headers.get("retry-after") if hasattr(headers, "get") else None
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return min(max(seconds, 0.0), LONGEST_ASKED_PAUSE_SECONDS)


def jittered(seconds: float) -> float:
    """Between half and all of that pause, so that a thousand ranks do not come back at once.

    The randomness is the system's: the trainer's own generators are left as they are.
    """
    return seconds * (0.5 + os.urandom(1)[0] / 510)


class Delivery:
    """The way of one spool to the server."""

    def __init__(
        self,
        declaration: Declaration,
        backlog: Backlog,
        storage: Storage,
        transport: Transport,
        notices: Notices,
        letters_bytes: int = LETTERS_BYTES,
    ) -> None:
        self.declaration = declaration
        self.backlog = backlog
        self.accepted_count = 0
        self.dead_letter_count = 0
        self.not_before = 0.0
        self.last_failure: str | None = None
        self._storage = storage
        self._letters_bytes = letters_bytes
        self._transport = transport
        self._notices = notices
        self._opened = False
        self._failures = 0
        self._longest_pause = LONGEST_PAUSE_SECONDS
        self._asked = False
        self._limit = BATCH_EVENTS

    def step(self, timeout_seconds: float) -> bool:
        """Send the next thing; True where something was settled and the next step may follow at once."""
        if time.monotonic() < self.not_before:
            return False
        try:
            if not self._opened:
                self._opened = self._open(timeout_seconds)
                return self._opened
            parcel = self.backlog.take(self._limit)
            if parcel.ending is not None:
                return self._end(parcel, parcel.ending, timeout_seconds)
            if parcel.events:
                return self._send(parcel, timeout_seconds)
            self.backlog.acknowledge(parcel)
        except Unreachable as error:
            self._pause(f"no answer: {error}", None)
        return False

    def hurry(self) -> None:
        """The run is closing: try at once and then often, unless it was the server that asked for the pause."""
        if self._longest_pause != LAST_PAUSE_SECONDS:
            self._longest_pause = LAST_PAUSE_SECONDS
            if not self._asked:
                self.not_before = 0.0

    def disconnect(self) -> None:
        """Let go of the connection."""
        self._transport.close()

    def give_up(self) -> None:
        """Let go of the connection and of the spool, which is removed if all of it has arrived."""
        self.disconnect()
        self._storage.release(empty=self.complete)

    @property
    def complete(self) -> bool:
        """Whether the attempt is open and everything recorded so far is acknowledged."""
        return self._opened and self.backlog.empty

    def _open(self, timeout_seconds: float) -> bool:
        declaration = self.declaration
        for what, path, body in (
            ("run", declaration.run_path, declaration.run_body),
            ("attempt", declaration.attempt_path, declaration.attempt_body),
        ):
            answer = self._transport.request("PUT", path, json.dumps(body).encode(), timeout_seconds)
            if answer.status == 409:
                self._notices.say(f"{what} conflict", "the ledger has another declaration of %s: %s", path, problem(answer))
            elif answer.status not in (200, 201):
                self._refused(what, answer)
                return False
        self._recovered()
        return True

    def _end(self, parcel: Parcel, ending: Row, timeout_seconds: float) -> bool:
        answer = self._transport.request("PATCH", self.declaration.attempt_path, json.dumps(ending).encode(), timeout_seconds)
        if answer.status in (409, 422):
            self._notices.say("ending", "the ledger did not take how the attempt ended: %s", problem(answer))
        elif answer.status != 200:
            self._refused("ending", answer)
            return False
        self._recovered()
        self.backlog.acknowledge(parcel)
        return True

    def _send(self, parcel: Parcel, timeout_seconds: float) -> bool:
        body = encode(self.declaration.rank, self.declaration.writer, parcel.events)
        answer = self._transport.request("POST", f"{self.declaration.attempt_path}/events", body, timeout_seconds)
        if answer.status == 200:
            report = accepted(answer)
            if report is None:
                self._pause("an answer that is not the ledger's", None)
                return False
            self._recovered()
            for refusal in report["rejected"]:
                self._bury(parcel, refusal.get("seq"), refusal)
            self.accepted_count += len(parcel.events) - len(report["rejected"])
            self._limit = min(BATCH_EVENTS, 2 * self._limit)
        elif answer.status in (400, 413, 422):
            if len(parcel.events) > 1:
                self._limit = max(1, len(parcel.events) // 2)
                return True
            self._bury(parcel, parcel.events[0][1]["seq"], {"code": f"http_{answer.status}", "detail": problem(answer)})
            self._limit = 8
        else:
            # An unknown run or attempt: the server's database is another one than before.
            self._opened = self._opened and answer.status != 404
            self._refused("events", answer)
            return False
        self.backlog.acknowledge(parcel)
        return True

    def _bury(self, parcel: Parcel, seq: object, refusal: Row) -> None:
        """Keep an event that the ledger does not take, where there is room for it; that it was not taken is counted and said."""
        for kind, row in parcel.events:
            if row["seq"] != seq:
                continue
            self.dead_letter_count += 1
            letter = {"attempt": self.declaration.attempt, "rank": self.declaration.rank, "writer": self.declaration.writer,
                      "kind": kind, "row": row, "code": refusal.get("code"), "detail": refusal.get("detail")}  # fmt: skip
            what = letter["code"], letter["detail"]
            try:
                if self._storage.size_bytes(DEAD_LETTERS) < self._letters_bytes:
                    self._storage.append_line(DEAD_LETTERS, json.dumps(letter))
                    self._notices.say("dead letter", "the ledger rejected an event (%s: %s); it is kept in %s", *what, DEAD_LETTERS)
                    continue
            except OSError as error:
                what = what[0], f"{what[1]}; {error}"
            self._notices.say("lost letter", "the ledger rejected an event (%s: %s); there is no room to keep it", *what)

    def _refused(self, what: str, answer: Answer) -> None:
        if 400 <= answer.status < 500 and answer.status != 429:
            self._notices.say(f"{what} {answer.status}", "the ledger refused (%s): %s; events wait in the spool", what, problem(answer))
            self._failures = max(self._failures, 4)
        self._pause(f"{what}: {answer.status} {problem(answer)}", asked_pause(answer.headers) if answer.status in (429, 503) else None)

    def _pause(self, why: str, asked_seconds: float | None) -> None:
        grown = min(self._longest_pause, FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 16))
        pause = jittered(grown) if asked_seconds is None else asked_seconds + jittered(min(0.25, asked_seconds / 4))
        self._failures += 1
        self._asked = asked_seconds is not None
        self.not_before = time.monotonic() + pause
        self.last_failure = why

    def _recovered(self) -> None:
        self._failures = 0
        self.last_failure = None


def problem(answer: Answer) -> str:
    """What a problem document says, else its beginning."""
    try:
        document = json.loads(answer.body)
        return str(document.get("detail") or document.get("title") or document.get("code") or answer.status)[:500]
    except (ValueError, AttributeError):
        return f"status {answer.status} {answer.body[:120]!r}"


def accepted(answer: Answer) -> dict[str, list[Row]] | None:
    """The server's report on a batch; None where the answer is not one, and so acknowledges nothing."""
    try:
        report = json.loads(answer.body)
    except ValueError:
        return None
    if not isinstance(report, dict) or not isinstance(report.get("rejected"), list) or "accepted" not in report:
        return None
    return report
