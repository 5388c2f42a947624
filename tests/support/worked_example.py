"""The worked example of the accounting, as calls: two data-parallel ranks, 36 targets an update, a crash and a resume.

After it: attempted 360, preserved 252, lost to restart 72, skipped 36 (overflow), recomputed 108.
"""

from typing import Any

from starlette.testclient import TestClient

RUN = "/v1/projects/default/runs/demo"
TARGETS_A_RANK = {0: 20, 1: 16}


def columns(first_seq: int, updates: dict[int, str], rank: int) -> dict[str, list[Any]]:
    """A block of updates of one rank: {number: outcome}."""
    outcomes = list(updates.values())
    rows = len(outcomes)
    return {
        "seq": [*range(first_seq, first_seq + rows)],
        "update": [*updates],
        "outcome": outcomes,
        "reason": ["overflow" if outcome == "skipped" else None for outcome in outcomes],
        "input_slots": [32] * rows,
        "consumed_tokens": [24] * rows,
        "valid_targets": [TARGETS_A_RANK[rank]] * rows,
        "samples": [2] * rows,
        "microbatches": [1] * rows,
        "loss_sum": [2.5 * TARGETS_A_RANK[rank]] * rows,
        "reported_loss": [2.5] * rows,
        "ranges": [[["train", 0, 4 * (number - 1) + 2 * rank, 4 * (number - 1) + 2 * rank + 2]] for number in updates],
        "started_at": [f"2026-01-01T00:00:{number % 60:02d}Z" for number in updates],
        "seconds": [0.5] * rows,
    }


def saved(seq: int, name: str, update: int) -> dict[str, list[Any]]:
    """A block of checkpoints: one that is started and accepted."""
    position = {"train": {"epoch": 0, "position": 4 * update}}
    return {
        "seq": [seq, seq + 1],
        "checkpoint": [name, name],
        "state": ["started", "accepted"],
        "update": [update, None],
        "positions": [position, None],
    }


def batch(rank: int, **blocks: dict[str, list[Any]]) -> dict[str, Any]:
    """A batch of one rank."""
    return {"ranks": [{"rank": rank, "writer": f"w{rank}", **blocks}]}


def attempt(day: int, resumed_from: str | None) -> dict[str, Any]:
    """The declaration of an attempt."""
    source = None if resumed_from is None else {"checkpoint": resumed_from}
    return {"resumed_from": source, "layout": {"dp": 2}, "started_at": f"2026-01-0{day}T00:00:00Z"}


def expect(response: Any, *statuses: int) -> Any:
    """The body of an answer that must have one of those statuses."""
    assert response.status_code in (statuses or (200, 201)), response.text
    return response.json()


def play_first_attempt(client: TestClient) -> None:
    """Updates 1-4 applied, c4 accepted, 5 applied, 6 skipped, 7 applied; not ended."""
    expect(client.put(RUN, json={"conventions": {"objective": "token_mean", "gradient_reducer": "mean"}}))
    expect(client.put(f"{RUN}/attempts/a1", json=attempt(1, None)))
    before = dict.fromkeys(range(1, 5), "applied")
    after = {5: "applied", 6: "skipped", 7: "applied"}
    for rank in (0, 1):
        expect(client.post(f"{RUN}/attempts/a1/events", json=batch(rank, updates=columns(1, before, rank))))
    expect(client.post(f"{RUN}/attempts/a1/events", json=batch(0, checkpoints=saved(5, "c4", 4))))
    for rank in (0, 1):
        expect(client.post(f"{RUN}/attempts/a1/events", json=batch(rank, updates=columns(7, after, rank))))


def play(client: TestClient) -> None:
    """The whole example."""
    play_first_attempt(client)
    expect(client.patch(f"{RUN}/attempts/a1", json={"ended": "crashed"}))
    expect(client.put(f"{RUN}/attempts/a2", json=attempt(2, "c4")))
    for rank in (0, 1):
        expect(client.post(f"{RUN}/attempts/a2/events", json=batch(rank, updates=columns(1, dict.fromkeys((5, 6, 7), "applied"), rank))))
    expect(client.post(f"{RUN}/attempts/a2/events", json=batch(0, checkpoints=saved(4, "c7", 7))))
    expect(client.patch(f"{RUN}/attempts/a2", json={"ended": "completed"}))
