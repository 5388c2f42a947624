"""What the client says to the people who run a training: once a matter, through `logging`, and never as an exception."""

import logging

LOG = logging.getLogger("ledger_client")


class Notices:
    """Says each matter once and counts how often it came up."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def say(self, matter: str, message: str, *details: object) -> None:
        """Log a warning the first time that this matter comes up."""
        seen = self.counts.get(matter, 0)
        self.counts[matter] = seen + 1
        if not seen:
            LOG.warning(message, *details)
