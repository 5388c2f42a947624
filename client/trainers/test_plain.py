"""Plain loops: two ranks under DDP and FSDP2 against a real ledger, and what single calls of the integration say."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Books, expected, summed

import ledger_client
from ledger_client.integrations.accelerate import judge
from ledger_client.integrations.torch import (
    Accumulation,
    StepWatch,
    accept_when_done,
    current_scale,
    found_inf,
    mesh_layout,
    saving,
    was_skipped,
)
from ledger_client.testing import CapturingTransport

# Two microbatches on both ranks: rows of 8 and 5 tokens on one, of 6 and 3 on the other, each in 8 slots, each without a first target.
USUAL = {"valid_targets": 2 * (7 + 4 + 5 + 2), "consumed_tokens": 2 * (8 + 5 + 6 + 3), "input_slots": 2 * 4 * 8, "samples": 2 * 4}
THIRD = {"valid_targets": 2 * (3 + 3 + 3 + 1), "consumed_tokens": 2 * (4 + 4 + 4 + 2), "input_slots": 2 * 4 * 8, "samples": 2 * 4}


def test_two_ranks_with_an_overflow_and_a_resume(launch: Callable[..., list[str]], books: Books) -> None:
    launch("job_plain.py", ranks=2)
    for run in ("plain-ddp", "plain-fsdp2"):
        assert books.outcomes(run) == [
            (1, "applied", "preserved"), (2, "applied", "preserved"), (3, "skipped", "lost"), (4, "applied", "lost"),
            (3, "applied", "preserved"), (4, "applied", "preserved"),
        ]  # fmt: skip
        assert books.counters(run) == expected(
            attempted=summed(*[USUAL] * 4, THIRD, THIRD), applied=summed(*[USUAL] * 4, THIRD), preserved=summed(*[USUAL] * 3, THIRD)
        )
        report = books.ask(run, "exposure")
        assert report["balance"]["valid_targets"]["skipped_by_reason"] == {"overflow": THIRD["valid_targets"]}
        assert report["accepted_checkpoint"]["checkpoint"] == "step-4"
        assert [one["after"] for one in report["trajectory"]] == [0, 2] and report["findings"] == {}
        states = [(one["checkpoint"], one["update"], one["accepted_by"]) for one in books.ask(run, "checkpoints")["checkpoints"]]
        assert states == [("step-2", 2, "event"), ("step-4", 4, "event")]


@pytest.fixture
def recorded(tmp_path: Path) -> Any:
    """A run whose events stay in this process, and what it was sent."""
    capture = CapturingTransport()
    run = ledger_client.start("demo", project="pretraining", spool=tmp_path, transport=capture, attempt="a1", mode="memory")

    def rows(kind: str) -> list[dict[str, Any]]:
        run.flush()
        return capture.ledger.rows(kind)

    yield run, rows
    run.close()


def a_step(optimizer: torch.optim.Optimizer, scaler: Any, factor: float) -> None:
    optimizer.zero_grad()
    weight = optimizer.param_groups[0]["params"][0]
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimizer)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("updated_inside", [False, True])
def test_an_outcome_is_what_the_scaler_found(recorded: Any, fused: bool, updated_inside: bool) -> None:
    run, rows = recorded
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for number, factor in enumerate((1.0, float("inf"), float("nan"), 1.0), 1):
        with Accumulation(run, number, optimizer, scaler) as update:
            update.microbatch(valid_targets=1)
            a_step(optimizer, scaler, factor)
            if updated_inside:
                scaler.update()
        if not updated_inside:
            scaler.update()
    assert [(row["outcome"], row.get("reason")) for row in rows("updates")] == [
        ("applied", None), ("skipped", "overflow"), ("skipped", "overflow"), ("applied", None),
    ]  # fmt: skip
    assert "update" not in vars(scaler), "the scaler is left as it was"


def test_found_inf_is_known_from_the_step_to_the_update_and_then_the_scale_tells() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = current_scale(scaler)
    assert found_inf(optimizer, scaler) is None
    a_step(optimizer, scaler, float("inf"))
    assert found_inf(optimizer, scaler) is True
    scaler.update()
    assert found_inf(optimizer, scaler) is None
    assert was_skipped(optimizer, scaler, before) is True
    assert was_skipped(optimizer, scaler) is None
    assert was_skipped(optimizer, None, None) is None


class UnscalesItself(torch.optim.SGD):
    """Takes the scaler, as optimizers did that unscale in their own kernel, and leaves no finding with it."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None, *, grad_scaler: Any = None) -> None:  # type: ignore[override]
        """Look, and step where all is finite."""
        state = grad_scaler._per_optimizer_states[id(self)]
        infinite = not all(torch.isfinite(p.grad).all() for group in self.param_groups for p in group["params"])
        state["found_inf_per_device"] = {}
        self.infinite = infinite
        if not infinite:
            super().step()


def test_an_optimizer_without_a_finding_is_told_by_the_scale(recorded: Any) -> None:
    run, rows = recorded
    optimizer = UnscalesItself([torch.nn.Parameter(torch.ones(2))])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for number, factor in enumerate((1.0, float("inf")), 1):
        with Accumulation(run, number, optimizer, scaler) as update:
            update.microbatch(valid_targets=1)
            a_step(optimizer, scaler, factor)
            # Such a loop moves the scale by itself.
            scaler.update(4.0 if optimizer.infinite else 8.0)
    assert [row["outcome"] for row in rows("updates")] == ["applied", "skipped"]


def test_without_a_scaler_a_step_is_an_update_and_no_step_is_open(recorded: Any) -> None:
    run, rows = recorded
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight])
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    for number, does in enumerate(("step", "nothing", "withholds", "drops"), 1):
        weight.grad = torch.ones(2)
        with Accumulation(run, number, optimizer, disabled) as update:
            update.microbatch(valid_targets=1)
            update.reported_loss(0.5)
            if does == "step":
                disabled.step(optimizer)
            elif does == "withholds":
                update.skipped("nonfinite")
            elif does == "drops":
                update.abandoned()
    assert [(row["outcome"], row.get("reason")) for row in rows("updates")] == [
        ("applied", None), ("open", None), ("skipped", "nonfinite"), ("abandoned", None),
    ]  # fmt: skip
    assert rows("updates")[0]["reported_loss"] == 0.5


class Foreign:
    """An optimizer of another library, which tells nobody of its steps."""


@pytest.mark.parametrize(("withheld", "outcome"), [(False, "applied"), (True, "skipped"), (None, None)])
def test_of_an_optimizer_that_tells_nothing_another_must(recorded: Any, withheld: bool | None, outcome: str | None) -> None:
    run, rows = recorded
    update = run.update(1)
    update.microbatch(valid_targets=1)
    watch = StepWatch(Foreign())
    if withheld is None:
        watch.end()
    else:
        judge(watch, SimpleNamespace(optimizer_step_was_skipped=withheld))
    watch.tell(update)
    assert [row.get("outcome") for row in rows("updates")] == [outcome]


def test_a_save_is_accepted_when_it_is_over_and_rejected_when_it_failed(recorded: Any) -> None:
    run, rows = recorded
    with saving(run, "c1", update=1) as first:
        assert first.cursor() == {"project": "pretraining", "run": "demo", "attempt": "a1", "checkpoint": "c1", "update": 1}
    with pytest.raises(OSError, match="full"), saving(run, "c2", update=2):
        raise OSError("the disk is full")
    futures: list[Future[None]] = [Future() for _ in range(3)]
    for number, future in enumerate(futures, 3):
        accept_when_done(run.checkpoint(f"c{number}", update=number), future)
    states = [(row["checkpoint"], row["state"]) for row in rows("checkpoints")]
    assert states[:4] == [("c1", "started"), ("c1", "accepted"), ("c2", "started"), ("c2", "rejected")]
    assert states[4:] == [("c3", "started"), ("c4", "started"), ("c5", "started")], "nothing is accepted before it is done"
    futures[0].set_result(None)
    futures[1].set_exception(OSError("the disk is full"))
    futures[2].cancel()
    ended = {row["checkpoint"]: row["state"] for row in rows("checkpoints")}
    assert {name: ended[name] for name in ("c3", "c4", "c5")} == {"c3": "accepted", "c4": "rejected", "c5": "rejected"}


class Mesh:
    """The two things that a layout is read off."""

    def __init__(self, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
        self.mesh_dim_names = names
        self.mesh = torch.arange(torch.tensor(shape).prod().item()).reshape(shape)


def test_a_mesh_says_which_ranks_are_replicas() -> None:
    mesh = Mesh(("pp", "dp_replicate", "cp", "tp"), (2, 2, 2, 2))
    layout = mesh_layout(mesh)
    assert layout.shards == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert layout.dp_ranks == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert mesh_layout(mesh, cp_counts="whole").shards == layout.dp_ranks
