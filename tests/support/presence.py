"""What a test needs of the machine: where `CI=true` it must be there, elsewhere the test is skipped and says why."""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Fails the test in CI, skips it elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI must not pass without it", pytrace=False)
    pytest.skip(f"{what} is missing on this machine")
