"""What the client says to the people who run a training: once a matter, through `logging`, and never as an exception."""

from __future__ import annotations

from .late import IMPORTING

LOGGER = "ledger_client"


class Notices:
    """Says each matter once and counts how often it came up."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def say(self, matter: str, message: str, *details: object) -> None:
        """Log a warning the first time that this matter comes up."""
        seen = self.counts.get(matter, 0)
        self.counts[matter] = seen + 1
        if not seen:
            try:
                # Imported when there is something to say: a trainer without `logging` would pay 5 ms for it at launch.
                IMPORTING.module("logging").getLogger(LOGGER).warning(message, *details)
            except Exception:  # a log handler of the trainer's own may fail in any way, and that is not ours to report
                self.counts["log"] = self.counts.get("log", 0) + 1
