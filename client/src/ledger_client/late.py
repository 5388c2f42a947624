"""Modules that a training process needs late or never, imported at their first use instead of by `import ledger_client`.

What talks to the server (HTTP, TLS, e-mail dates) costs 30 ms and 7 MB: it is imported by the sender's thread, not by the trainer's.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def late(name: str) -> Any:
    """The module of that name in this package."""
    return import_module(f"{__package__}.{name}")
