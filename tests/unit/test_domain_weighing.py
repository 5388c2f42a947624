"""What unequal ranks do to the mean and the gradient: the lab's figures are those that the ledger derives from events."""

from pathlib import Path

import numpy as np
import pytest

from ledger.domain.weighing import weighed
from service import running
from worked_example import RUN, attempt, batch, columns, expect

CASES = (
    ([30, 10], [60.0, 40.0]),
    ([20, 20], [50.0, 44.0]),
    ([30, 10, 0], [60.0, 40.0, 0.0]),
    ([4000, 3900, 120, 3950], [9200.5, 9100.25, 480.0, 9000.0]),
    ([7], [14.0]),
    ([0, 0], [0.0, 0.0]),
)


@pytest.mark.parametrize("reducer", ["mean", "sum"])
@pytest.mark.parametrize(("targets", "losses"), CASES)
def test_the_lab_and_the_ledger_say_the_same(tmp_path: Path, targets: list[int], losses: list[float], reducer: str) -> None:
    with running(tmp_path) as client:
        expect(client.put(RUN, json={"conventions": {"gradient_reducer": reducer}}))
        expect(client.put(f"{RUN}/attempts/a1", json=attempt(1, None) | {"layout": {"dp": len(targets)}}))
        for rank, (count, loss) in enumerate(zip(targets, losses, strict=True)):
            block = columns(1, {1: "applied"}, 0) | {"valid_targets": [count], "loss_sum": [loss], "input_slots": [8192]}
            expect(client.post(f"{RUN}/attempts/a1/events", json=batch(rank, updates=block)))
        recorded = client.get(f"{RUN}/updates").json()["items"][0]
        rule = client.get(f"{RUN}/objective").json()["loss_scale_rule"]
    found = weighed(targets, losses, reducer)
    for name in ("token_mean", "mean_of_rank_means", "loss_scale"):
        right = recorded[name]
        assert found[name] == (None if right is None else pytest.approx(right, rel=1e-14)), name
    assert found["valid_targets"] == recorded["valid_targets"]
    assert found["loss_scale_rule"] == rule


@pytest.mark.parametrize("reducer", ["mean", "sum"])
@pytest.mark.parametrize(("targets", "losses"), [case for case in CASES if sum(case[0])])
def test_factors_are_those_of_real_gradients(targets: list[int], losses: list[float], reducer: str) -> None:
    """Each target has a gradient of its own along one axis; what a reduction leaves of it is its weight."""
    del losses
    total, ranks = sum(targets), len(targets)
    for scale in weighed(targets, [1.0] * ranks, reducer)["scales"]:
        for rank, (count, factor) in enumerate(zip(targets, scale["gradient_factors"], strict=True)):
            if not count:
                assert factor is None
                continue
            local = np.zeros(ranks)
            local[rank] = 1 / count if scale["scale"] is None else scale["scale"]
            reduced = local.mean() if reducer == "mean" else local.sum()
            assert factor == pytest.approx(reduced * total, rel=1e-12), (scale["rule"], rank)


def test_the_right_rule_is_off_by_nothing() -> None:
    for reducer in ("mean", "sum"):
        found = weighed([30, 10, 0], [60.0, 40.0, 0.0], reducer)
        right = next(scale for scale in found["scales"] if scale["rule"] == found["loss_scale_rule"])
        assert right["gradient_factors"] == [1.0, 1.0, None]


def test_what_is_said_fits_the_numbers() -> None:
    assert "no single factor repairs" in weighed([30, 10], [60.0, 40.0], "mean")["statement"]
    assert "the two means are the same" in weighed([20, 20], [50.0, 44.0], "mean")["statement"]
    assert "Each rank's own mean gives 2 times" in weighed([20, 20], [50.0, 44.0], "sum")["statement"]
    assert "no token mean" in weighed([0, 0], [0.0, 0.0], "mean")["statement"]
