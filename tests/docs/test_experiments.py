"""The snippet of the documentation recomputes a digest."""

import re
from pathlib import Path

from server import LedgerServer
from worked_example import RUN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "experiments.md"


def test_the_digest_is_recomputed_as_the_page_says(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    with LedgerServer(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "log") as server:
        server.call("PUT", RUN, {"conventions": {"objective": "τoken_mean", "extra": {"b": 1e-9, "a": [2**53, 0.1, True, None]}}})
        exec(compile(code[1].replace("http://127.0.0.1:8400", server.url), str(PAGE), "exec"), {})
        assert server.call("GET", f"{RUN}/record")["conventions_changed"] == []
