"""What an attempt has resumed from, by the cursor in the checkpoint, its name, and the trainer's own number of updates.

| the checkpoint | taken to be |
|---|---|
| has a cursor, and the trainer stands where it says | what the cursor names |
| has a cursor of another update (the state was saved again later) | that file, with the trainer's number, saved by the cursor's attempt |
| has none (saved before the ledger was in use) | that file, with the trainer's number where the trainer keeps one |

The last two are said: the ledger never heard of such a save, and makes it one when an attempt resumes from it with a number.
"""

from __future__ import annotations

import logging

from ledger_client.notices import LOGGER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def resume_source(name: str, cursor: Mapping[str, object] | None, update: int | None) -> dict[str, object]:
    """What `start(resumed_from=)` is to be given for a checkpoint called `name` that has been loaded.

    `update`: the last one that the trainer's state contains, as the trainer itself says; None where it does not.

    >>> resume_source("step-4", {"project": "p", "run": "r", "attempt": "a1", "checkpoint": "step-4", "update": 4}, 4)["attempt"]
    'a1'
    """
    if cursor is None:
        logging.getLogger(LOGGER).warning(
            "checkpoint %s holds no cursor of the ledger: it is taken to be a save of that name%s",
            name, "" if update is None else f" after update {update}",
        )  # fmt: skip
        return {"checkpoint": name} if update is None else {"checkpoint": name, "update": update}
    if update is not None and cursor.get("update") not in (None, update):
        logging.getLogger(LOGGER).warning(
            "checkpoint %s holds the cursor of update %s, and the trainer stands at %s: it is taken to be a save after update %s",
            name, cursor["update"], update, update,
        )  # fmt: skip
        return {**cursor, "checkpoint": name, "update": update}
    return dict(cursor)
