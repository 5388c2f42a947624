"""The service that the pages are tested on, and the browser that looks at them."""

from collections.abc import Iterator

import pytest

from benchmarks.long_run import make
from browser import Browser, browser
from ledger.storage import schema
from ledger.storage.engine import open_engine
from ledger.storage.store import Store
from server import LedgerServer
from tests.web.runs import LONGEST, play_unknown, play_worked_example


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerServer]:
    """A service with a run that adds up, one that does not, one of the longest names, and one of a hundred attempts."""
    folder = tmp_path_factory.mktemp("web")
    address = f"sqlite:///{folder / 'ledger.db'}"
    engine = open_engine(address)
    schema.upgrade(engine)
    make(Store(engine), "pretraining", "long", updates=3_000, attempts=100)
    engine.dispose()
    with LedgerServer(address, folder / "log") as running_server:
        play_worked_example(running_server)
        play_unknown(running_server)
        running_server.call("PUT", f"/v1/projects/{LONGEST}/runs/{LONGEST}", {})
        yield running_server


@pytest.fixture(scope="package")
def window() -> Iterator[Browser]:
    """The browser."""
    with browser() as opened:
        yield opened


@pytest.fixture(autouse=True)
def _ordinary_window(request: pytest.FixtureRequest) -> None:
    """Each test begins with a wide, light window, whatever the one before it left."""
    if "window" in request.fixturenames:
        opened: Browser = request.getfixturevalue("window")
        opened.size(1280)
        opened.scheme("light")
