"""The sampling lab: two instruments that draw what the service computes."""

from fastapi.responses import Response

from ledger.domain.sampling import MOST_DRAWS
from ledger.domain.weighing import MOST_RANKS
from ledger.web.rendering import page, pages_router

router = pages_router()


@router.get("/lab")
def lab_page() -> Response:
    """Sampling means and their variance; means over ranks that hold unequal numbers of valid targets."""
    return page("lab.html", {"most_draws": MOST_DRAWS, "most_ranks": MOST_RANKS}, section="lab")
