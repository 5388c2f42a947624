"""The JSON of the dashboards: `python -m deploy.grafana.build --write` writes it anew; without it, only says which files are stale."""

import argparse
import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.boards import BOARDS

FOLDER = Path(__file__).resolve().parent / "dashboards"


def path_of(name: str) -> Path:
    """Where a dashboard is kept."""
    return FOLDER / f"{name}.json"


def text_of(name: str) -> str:
    """A dashboard as Grafana reads it."""
    return json.dumps(BOARDS[name](), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Writes the files, or names those that are stale; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files; without it, only say which are stale")
    writes = parser.parse_args().write
    stale = [name for name in BOARDS if not path_of(name).exists() or path_of(name).read_text(encoding="utf-8") != text_of(name)]
    for name in stale:
        print(f"{'written' if writes else 'stale'}: {path_of(name).relative_to(FOLDER.parents[2])}")
        if writes:
            path_of(name).write_text(text_of(name), encoding="utf-8")
    return 0 if writes or not stale else 1


if __name__ == "__main__":
    raise SystemExit(main())
