"""Where pages and the REST calls behind them are."""

from urllib.parse import quote, urlencode


def run_path(project: str, run: str, part: str = "") -> str:
    """A page of a run."""
    return f"/runs/{quote(project, safe='')}/{quote(run, safe='')}" + (f"/{part}" if part else "")


def rest_path(project: str, run: str, part: str = "", **query: object) -> str:
    """A REST call on a run; what is None is left out of the query."""
    path = f"/v1/projects/{quote(project, safe='')}/runs/{quote(run, safe='')}" + (f"/{part}" if part else "")
    return with_query(path, **query)


def with_query(path: str, **query: object) -> str:
    """An address with a query; what is None is left out.

    >>> with_query("/", project="a b", cursor=None)
    '/?project=a+b'
    """
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def checkpoint_path(project: str, run: str, checkpoint: str, attempt: str | None, update: int | None) -> str:
    """The page of a checkpoint; its owner and update make it this save and no other of that name."""
    return with_query(run_path(project, run, f"checkpoints/{quote(checkpoint, safe='')}"), attempt=attempt, update=update)


def checkpoint_rest_path(project: str, run: str, checkpoint: str, attempt: str | None, update: int | None) -> str:
    """The REST call behind the page of a checkpoint."""
    return rest_path(project, run, f"checkpoints/{quote(checkpoint, safe='')}/exposure", attempt=attempt, update=update)
