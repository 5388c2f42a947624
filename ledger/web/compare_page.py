"""Runs side by side, and the choice of them."""

from typing import Annotated, Any, Literal

from fastapi import Query, Request
from fastapi.responses import Response

from ledger.services import registration
from ledger.services.juxtaposition import LEAST_RUNS, MOST_RUNS, compare
from ledger.web.compare_view import AXIS_WORDS, compare_view
from ledger.web.rendering import page, pages_router, reports_of

RUNS_OFFERED = 50
POINTS = 120
RUN_PATTERN = r"^\s*$|^\s*[A-Za-z0-9._-]{1,128}/[A-Za-z0-9._-]{1,128}\s*$"
router = pages_router()


@router.get("/compare")
def compare_page(
    request: Request,
    run: Annotated[list[Annotated[str, Query(pattern=RUN_PATTERN)]] | None, Query(max_length=RUNS_OFFERED + 2)] = None,
    at: Literal["applied_updates", "valid_targets", "consumed_tokens"] = "applied_updates",
) -> Response:
    """The runs that were asked for side by side, or a choice of them."""
    source = reports_of(request)
    chosen = list(dict.fromkeys(name.strip() for name in run or () if name.strip()))
    if LEAST_RUNS <= len(chosen) <= MOST_RUNS:
        named = [(project, name) for project, _, name in (item.partition("/") for item in chosen)]
        return page("compare.html", compare_view(compare(source, named, at, POINTS), at), section="compare")
    offered = registration.list_runs(source.store, None, None, RUNS_OFFERED)
    return page("compare_choice.html", _choice(offered, chosen, at), section="compare")


def _choice(offered: dict[str, Any], chosen: list[str], at: str) -> dict[str, Any]:
    names = [f"{item['project']}/{item['run']}" for item in offered["items"]]
    return {
        "names": [{"name": name, "chosen": name in chosen} for name in names],
        "others": [name for name in chosen if name not in names],
        "more": offered["next_cursor"] is not None,
        "axes": [{"name": name, "words": words, "current": name == at} for name, words in AXIS_WORDS.items()],
        "least": LEAST_RUNS,
        "most": MOST_RUNS,
        "asked": len(chosen),
    }
