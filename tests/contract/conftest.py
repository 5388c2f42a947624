"""Services for contract tests: one that has seen the worked example, and one that is empty and accepts little."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from service import running
from worked_example import play


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that has seen the worked example, with an empty run beside it."""
    with running(tmp_path_factory.mktemp("ledger")) as service:
        play(service)
        service.put("/v1/projects/default/runs/twin", json={}).raise_for_status()
        yield service


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service with one run and one attempt of two ranks, that takes bodies of 8 kB and 32 kB after decompression."""
    with running(tmp_path_factory.mktemp("small"), max_body_bytes=8192, max_decompressed_bytes=32768) as service:
        play_opening(service)
        yield service


def play_opening(service: TestClient) -> None:
    """Opens a run and an attempt that nothing has been posted to."""
    service.put("/v1/projects/default/runs/demo", json={}).raise_for_status()
    declared = {"resumed_from": None, "layout": {"dp": 2}, "started_at": "2026-01-01T00:00:00Z"}
    service.put("/v1/projects/default/runs/demo/attempts/a1", json=declared).raise_for_status()
