"""The OpenAPI document as it was agreed on: `python -m tests.contract.snapshot` writes it anew after a change that is meant."""

import json
from pathlib import Path
from typing import Any

from ledger.app import create_app
from ledger.config import Settings

KEPT = Path(__file__).with_name("openapi.json")


def described() -> dict[str, Any]:
    """The document that the service gives; no database is opened for it."""
    document: dict[str, Any] = create_app(Settings(database_url="sqlite:///never-opened.db")).openapi()
    # A new version alone is no change of the interface.
    document["info"]["version"] = "any"
    return document


def text_of(document: dict[str, Any]) -> str:
    """The document as it is kept: sorted, so that a difference is a difference of meaning."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    KEPT.write_text(text_of(described()))
