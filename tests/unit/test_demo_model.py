"""The demo's model, its half-precision gradients, its sum over the ranks, and its tally: each against something simpler."""

import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from ledger.demo.model import Adam, LanguageModel
from ledger.demo.reduction import RankGroup
from ledger.demo.saving import SavedState, Saver, newest_checkpoint, read_checkpoint
from ledger.demo.scaling import LossScale, through_half_precision
from ledger.demo.tally import Account, Tally, differences, read_account
from ledger.demo.text import BEGIN, END, PADDING, Corpus, Cursor, unicode_names

MODEL = LanguageModel(vocabulary=7, window=3, embedding=4, hidden=5)
TOKENS = np.array([[BEGIN, 3, 4, 3, END], [BEGIN, 6, END, PADDING, PADDING]])


def double_weights() -> np.ndarray:
    return MODEL.initial(seed=3).astype(np.float64)


def test_gradient_is_the_slope_of_the_loss_in_every_weight() -> None:
    weights = double_weights()
    loss, gradient = MODEL.loss_and_gradient(weights, TOKENS)
    assert loss == pytest.approx(MODEL.loss(weights, TOKENS))
    step = 1e-6
    for place in range(MODEL.size):
        moved = weights.copy()
        moved[place] += step
        above = MODEL.loss(moved, TOKENS)
        moved[place] -= 2 * step
        slope = (above - MODEL.loss(moved, TOKENS)) / (2 * step)
        assert gradient[place] == pytest.approx(slope, rel=1e-5, abs=1e-8), place


def test_padding_changes_neither_loss_nor_gradient() -> None:
    weights = double_weights()
    wider = np.hstack((TOKENS, np.full((2, 3), PADDING)))
    loss, gradient = MODEL.loss_and_gradient(weights, TOKENS)
    wide_loss, wide_gradient = MODEL.loss_and_gradient(weights, wider)
    assert wide_loss == pytest.approx(loss)
    np.testing.assert_allclose(wide_gradient, gradient, atol=1e-12)


def test_scale_multiplies_the_gradient_and_too_much_of_it_overflows_half_precision() -> None:
    weights = double_weights()
    _, plain = MODEL.loss_and_gradient(weights, TOKENS)
    _, scaled = MODEL.loss_and_gradient(weights, TOKENS, scale=512.0)
    np.testing.assert_allclose(scaled, 512.0 * plain)
    assert np.isfinite(through_half_precision(scaled)).all()
    _, excessive = MODEL.loss_and_gradient(weights, TOKENS, scale=2.0**20)
    assert not np.isfinite(through_half_precision(excessive)).all()


def test_loss_scale_halves_on_overflow_and_doubles_after_quiet() -> None:
    scale = LossScale(1024.0, growth_interval=2)
    seen = []
    for finite in (False, True, True, True, False):
        scale.after(finite=finite)
        seen.append(scale.value)
    assert seen == [512.0, 512.0, 1024.0, 1024.0, 512.0]


def test_optimizer_lowers_the_loss() -> None:
    weights, optimizer = double_weights(), Adam(MODEL.size)
    first = MODEL.loss(weights, TOKENS)
    for _ in range(30):
        optimizer.apply(weights, MODEL.loss_and_gradient(weights, TOKENS)[1], 0.05)
    assert MODEL.loss(weights, TOKENS) < first / 4
    assert optimizer.applied_count == 30


def test_counts_come_from_the_padded_matrix() -> None:
    corpus = Corpus(documents=40, held_out_documents=4)
    batch = corpus.batch(epoch=1, start=8, stop=12)
    lengths = [int(np.count_nonzero(row)) for row in batch.tokens]
    assert batch.counts() == {
        "input_slots": 4 * max(lengths),
        "consumed_tokens": sum(lengths),
        "valid_targets": sum(lengths) - 4,
        "samples": 4,
    }
    assert len(set(lengths)) > 1
    assert len(unicode_names()) == 8876


def test_ranks_take_turns_until_the_epoch_is_over() -> None:
    cursor = Cursor(epoch=2, position=10)
    drawn = [list(cursor.group(rank, ranks=2, microbatches=3, size=4, documents=23)) for rank in (0, 1)]
    assert drawn == [[(2, 10, 14), (2, 18, 22)], [(2, 14, 18), (2, 22, 23)]]


def test_every_rank_holds_the_same_sum(tmp_path: Path) -> None:
    sums: dict[int, list[float]] = {}

    def take_part(rank: int) -> None:
        group = RankGroup(rank, 3, tmp_path / "port")
        group.total([1.0, 1.0])
        sums[rank] = group.total([rank + 0.5, np.inf if rank == 1 else 0.0]).tolist()
        group.close()

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {rank: [4.5, np.inf] for rank in range(3)}


def test_a_rank_that_is_gone_is_noticed(tmp_path: Path) -> None:
    def join_and_leave() -> None:
        RankGroup(1, 2, tmp_path / "port").close()

    thread = threading.Thread(target=join_and_leave)
    thread.start()
    group = RankGroup(0, 2, tmp_path / "port")
    thread.join()
    with pytest.raises((ConnectionError, socket.timeout)):
        group.total([1.0])
    group.close()


def test_a_checkpoint_is_accepted_only_when_it_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "step-30.partial").write_bytes(b"half")
    vector = np.arange(4, dtype=np.float32)
    found: list[str | None] = []
    saver = Saver(tmp_path)
    for update in (9, 10):
        state = SavedState(vector + update, vector, vector, {"update": update, "attempt": "attempt-1"})
        saver.save(f"step-{update}", state, lambda: found.append(newest_checkpoint(tmp_path)))
    saver.wait()
    assert found == ["step-9", "step-10"]
    again = read_checkpoint(tmp_path, "step-10")
    assert again.facts == {"update": 10, "attempt": "attempt-1"}
    np.testing.assert_array_equal(again.weights, vector + 10)


def worked_example(folder: Path) -> Account:
    """Four updates and a checkpoint, 5 applied, 6 skipped, 7 applied, 8 interrupted; then 5, 6, 7 again and a checkpoint."""
    files = []
    for attempt, first, skipped in ((1, 1, 6), (2, 5, 0)):
        for rank in (0, 1):
            path = folder / f"{attempt}.{rank}"
            tally = Tally(path)
            tally.note("start", update=first - 1)
            for update in range(first, 9 if attempt == 1 else 8):
                counts = dict.fromkeys(("input_slots", "consumed_tokens", "valid_targets", "samples"), 18)
                place = {"epoch": 0, "start": 4 * update + 2 * rank, "stop": 4 * update + 2 * rank + 2}
                tally.note("microbatch", update=update, loss_sum=36.0, **place, **counts)
                if update < 8:
                    tally.note("outcome", update=update, outcome="skipped" if update == skipped else "applied")
                if update in (4, 7) and rank == 0 and (attempt, update) != (1, 7):
                    tally.note("saved", update=update)
            tally.close()
            files.append((attempt, path))
    return read_account(files)


def test_tally_balances_a_restart(tmp_path: Path) -> None:
    account = worked_example(tmp_path)
    assert account.balance()["valid_targets"] == {
        "attempted": 396,
        "preserved": 252,
        "pending": 0,
        "lost_to_restart": 72 + 36,
        "skipped": 36,
        "dropped": 0,
    }
    assert account.balance()["updates"] == {
        "attempted": 10,
        "preserved": 7,
        "pending": 0,
        "lost_to_restart": 2,
        "skipped": 1,
        "dropped": 0,
    }
    assert account.matrix()["valid_targets"] == {
        "applied": {"preserved": 252, "pending": 0, "lost": 72},
        "skipped": {"preserved": 0, "pending": 0, "lost": 36},
        "abandoned": {"preserved": 0, "pending": 0, "lost": 0},
        "discarded": {"preserved": 0, "pending": 0, "lost": 0},
        "held": {"preserved": 0, "pending": 0, "lost": 0},
        "open": {"preserved": 0, "pending": 0, "lost": 36},
    }
    assert account.updates() == {
        "attempted": 10,
        "applied": 9,
        "skipped": 1,
        "abandoned": 0,
        "held": 0,
        "discarded_groups": 0,
        "open_groups": 1,
        "preserved": 7,
        "pending": 0,
        "lost_to_restart": 2,
        "recomputed": 3,
    }
    assert account.recomputed()["valid_targets"] == 108
    assert account.curve() == [2.0] * 7
    assert len(account.trained_positions()) == 28


def test_work_after_the_newest_checkpoint_is_pending(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "tally")
    tally.note("start", update=0)
    for update in (1, 2, 3):
        tally.note("microbatch", update=update, loss_sum=1.0, epoch=0, start=0, stop=1, valid_targets=10)
        if update < 3:
            tally.note("outcome", update=update, outcome="applied")
        if update == 1:
            tally.note("saved", update=1)
    tally.note("dropped", update=3, valid_targets=4)
    tally.close()
    account = read_account([(1, tmp_path / "tally")])
    assert account.balance()["valid_targets"] == {
        "attempted": 34,
        "preserved": 10,
        "pending": 20,
        "lost_to_restart": 0,
        "skipped": 0,
        "dropped": 4,
    }
    assert account.matrix()["valid_targets"]["open"] == {"preserved": 0, "pending": 10, "lost": 0}
    assert account.matrix()["valid_targets"]["discarded"] == {"preserved": 0, "pending": 4, "lost": 0}


def test_any_figure_that_differs_or_stands_on_one_side_only_is_named(tmp_path: Path) -> None:
    account = worked_example(tmp_path)
    report = {**account.report(), "findings": {"late_event": 1}}
    assert differences(account, report) == []
    report["balance"]["valid_targets"]["preserved"] = 251
    report["balance"]["valid_targets"]["skipped_by_reason"] = {"nonfinite": 36}
    del report["recomputed"]["samples"]
    assert differences(account, report) == [
        "balance valid_targets preserved: the tally says 252, the ledger 251",
        "balance valid_targets skipped_by_reason overflow: the tally says 36, the ledger nothing",
        "recomputed samples: the tally says 108, the ledger nothing",
        "balance valid_targets skipped_by_reason nonfinite: the tally says nothing, the ledger 36",
    ]
