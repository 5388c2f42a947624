"""What the list of runs shows: how each stands, in one line."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ledger.services.standing import Listed, age_seconds, last_entry
from ledger.web.addresses import run_path, with_query
from ledger.web.balance_view import bar_of
from ledger.web.wording import NOTHING, age, counted, figure, moment, share

Json = Mapping[str, Any]
ORDER_WORDS = {"recent": "last entry", "name": "name"}


def runs_view(
    found: Listed, standings: Sequence[Json | None], now: datetime, project: str | None, sort: str, number: int
) -> dict[str, Any]:
    """The list of runs."""

    def at(**changed: object) -> str:
        asked = {"project": project, "sort": None if sort == "recent" else sort, "page": None} | changed
        return with_query("/", **asked)

    return {
        "rows": [
            _row(standing, run.project, run.name) | {"age": age(age_seconds(now, run)), "last_entry": moment(last_entry(run))}
            for run, standing in zip(found.runs, standings, strict=True)
        ],
        "project": project or "",
        "projects": found.projects,
        "sort": sort,
        "sorts": [
            {"words": words, "href": at(sort=None if name == "recent" else name), "chosen": name == sort}
            for name, words in ORDER_WORDS.items()
        ],
        "in_all": counted(found.in_all, "run", "runs"),
        "number": number,
        "pages": found.pages,
        "newer": at(page=number - 1 if number > 2 else None) if number > 1 else None,
        "older": at(page=number + 1) if number < found.pages else None,
        "rest": with_query("/v1/runs", project=project),
    }


def _row(standing: Json | None, project: str, run: str) -> dict[str, Any]:
    row: dict[str, Any] = {"project": project, "run": run, "href": run_path(project, run), "read": standing is not None}
    if standing is None:
        return row
    balance, updates, accepted = standing["balance"], standing["updates"], standing["accepted_checkpoint"]
    return row | {
        "state": standing["status"] if standing["head"] else "waiting",
        "state_words": standing["ended"] or (standing["status"] if standing["head"] else "no attempt yet"),
        "head": standing["head"] or NOTHING,
        "head_update": "" if standing["head_update"] is None or not updates["attempted"] else f"update {standing['head_update']:,}",
        "attempts": figure(standing["attempts"]),
        "preserved": "nothing yet" if accepted is None else f"update {accepted['update']:,}",
        "share": share(balance["preserved"], balance["attempted"]) or ("share unknown" if balance["attempted"] is None else ""),
        "bar": bar_of(balance),
        "at_risk": figure(updates["pending"]) + (f" + {figure(updates['held'])} held" if updates["held"] else ""),
        "findings": standing["findings"],
        "findings_href": run_path(project, run, "findings"),
    }
