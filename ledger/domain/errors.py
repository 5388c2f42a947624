"""Everything that the ledger refuses, each with a stable code; the docstring of a class is its title.

No HTTP here: `ledger.api.problems` is the one place that knows which code is which status.
"""


class LedgerError(Exception):
    """The ledger refused this."""

    code = "refused"

    def __init__(self, detail: str, **context: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.context = context

    @property
    def title(self) -> str:
        """The sentence that names the kind of refusal."""
        return (type(self).__doc__ or "").strip()


class RunUnknown(LedgerError):
    """No run of this name has been opened in this project."""

    code = "run_unknown"


class AttemptUnknown(LedgerError):
    """No attempt of this name has been opened in this run."""

    code = "attempt_unknown"


class CheckpointUnknown(LedgerError):
    """No checkpoint of this name is known in this run."""

    code = "checkpoint_unknown"


class RunExistsDifferently(LedgerError):
    """A run of this name was opened with another declaration."""

    code = "run_exists_differently"


class AttemptExistsDifferently(LedgerError):
    """An attempt of this name was opened with another layout or other conventions."""

    code = "attempt_exists_differently"


class AttemptEndedDifferently(LedgerError):
    """The attempt has already ended in another way."""

    code = "attempt_ended_differently"


class NotInConflict(LedgerError):
    """There is no conflict of this kind to resolve."""

    code = "not_in_conflict"


class InvalidRequest(LedgerError):
    """The request is not of the documented form."""

    code = "invalid_request"

    def __init__(self, detail: str, *, pointer: str = "", **context: object) -> None:
        super().__init__(detail, pointer=pointer, **context)
        self.pointer = pointer


class QueueFull(LedgerError):
    """More batches are waiting than the service may hold; send this one again later."""

    code = "queue_full"
    retry_after_seconds = 1


class ProjectionBehind(LedgerError):
    """The report would not yet reflect every acknowledged event; ask again later."""

    code = "projection_behind"
    retry_after_seconds = 1


class DatabaseUnavailable(LedgerError):
    """The database cannot be reached at the moment; nothing of this request was kept, send it again later."""

    code = "database_unavailable"
    retry_after_seconds = 2
