"""One rank of the demo's trainer: `python -m ledger.demo.trainer FOLDER ATTEMPT RANK`.

The objective is the mean over all valid targets of an update: every microbatch adds the gradient of its summed loss, scaled and in
half precision; the ranks' sums and their valid targets are added; the result is divided by scale and targets. Where the sum is not
finite, all ranks withhold the update. Microbatches left at the end of an epoch make no full group: their gradient is dropped.
"""

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import ledger_client
from ledger.demo.model import Adam, Floats, LanguageModel, learning_rate
from ledger.demo.places import Places, attempt_name
from ledger.demo.plan import Plan, read_plan
from ledger.demo.reduction import RankGroup
from ledger.demo.saving import SavedState, Saver, checkpoint_name, newest_checkpoint, read_checkpoint
from ledger.demo.scaling import LossScale, through_half_precision
from ledger.demo.tally import Tally
from ledger.demo.text import STREAM, Batch, Corpus, Cursor

CLOSE_SECONDS = 20.0
PAUSED_AFTER_MICROBATCHES = 2


class Trainer:
    """One rank: its copy of the model, its place in the data, and its two accounts of what it does."""

    def __init__(self, plan: Plan, places: Places, attempt: int, rank: int) -> None:
        self.plan, self.places, self.attempt, self.rank = plan, places, attempt, rank
        self.corpus = Corpus(plan.documents, plan.held_out_documents)
        self.model = LanguageModel(self.corpus.vocabulary, plan.window, plan.embedding, plan.hidden)
        self.weights = self.model.initial(plan.seed)
        self.optimizer = Adam(self.model.size)
        self.scale = LossScale(plan.initial_loss_scale, plan.growth_interval)
        self.cursor = Cursor(0, 0)
        self.finished_update = 0
        self.tally = Tally(places.tally(attempt, rank))
        self.saver = Saver(places.checkpoints)
        self.group = RankGroup(rank, plan.ranks, places.meeting(attempt))
        self.ledger = self._open_ledger(self._resume())

    def train(self) -> None:
        """Go on from where this attempt starts to the last update of the plan."""
        plan = self.plan
        while self.finished_update < plan.updates:
            number = self.finished_update + 1
            if self.cursor.position + plan.group_documents > plan.documents:
                self._drop_remainder(number)
            self._update(number)
            if self.rank == 0 and (number % plan.checkpoint_interval == 0 or number == plan.updates):
                self._save(checkpoint_name(number))
        self._evaluate()
        self.saver.wait()
        self.tally.close()
        self.group.close()
        self.ledger.close(timeout=CLOSE_SECONDS, ended="completed")

    def _resume(self) -> dict[str, Any] | None:
        """Take over the newest checkpoint, if there is one, and say which in the words of the ledger."""
        name = newest_checkpoint(self.places.checkpoints)
        if name is None:
            self.tally.note("start", update=0)
            return None
        state = read_checkpoint(self.places.checkpoints, name)
        facts = state.facts
        self.weights, self.optimizer.mean, self.optimizer.square = state.weights, state.mean, state.square
        self.optimizer.applied_count = facts["applied_updates"]
        self.scale = LossScale(facts["loss_scale"], self.plan.growth_interval, facts["finite_updates"])
        self.cursor = Cursor(facts["epoch"], facts["position"])
        self.finished_update = facts["update"]
        self.tally.note("start", update=self.finished_update, checkpoint=name)
        return {"checkpoint": name, "attempt": facts["attempt"], "update": self.finished_update}

    def _open_ledger(self, resumed_from: dict[str, Any] | None) -> ledger_client.Run:
        plan = self.plan
        return ledger_client.start(
            plan.run,
            project=plan.project,
            url=plan.url,
            mode="durable",
            spool=self.places.spool,
            attempt=attempt_name(self.attempt),
            rank=self.rank,
            resumed_from=resumed_from,
            layout=ledger_client.Layout(dp=plan.ranks),
            conventions=ledger_client.Conventions(
                objective="token_mean",
                gradient_reducer="sum",
                accumulation_divides="nobody",
                remainder_policy="drop",
                schedule_clock="applied_updates",
                optimizer="adam",
                precision="float32 weights, float16 gradients, dynamic loss scale",
                target_rule="every token of a document but its first; padding never",
                sample_meaning="one document: the name of a character",
                data={"unit": "position", "repeats_expected": False, "order_fingerprint": self.corpus.order_fingerprint()},
            ),
        )

    def _batches(self) -> list[Batch]:
        """The microbatches that fall to this rank from the cursor to the end of the group, or of the epoch."""
        plan = self.plan
        places = self.cursor.group(self.rank, plan.ranks, plan.microbatches, plan.microbatch_documents, plan.documents)
        return [self.corpus.batch(*place) for place in places]

    def _update(self, number: int) -> None:
        gradient = np.zeros(self.model.size)
        loss_sum, target_count = 0.0, 0
        with self.ledger.update(number) as entry:
            for done, batch in enumerate(self._batches(), start=1):
                counts = batch.counts()
                batch_loss, batch_gradient = self.model.loss_and_gradient(self.weights, batch.tokens, self.scale.value)
                gradient += through_half_precision(batch_gradient)
                loss_sum, target_count = loss_sum + batch_loss, target_count + counts["valid_targets"]
                place = {"epoch": batch.epoch, "start": batch.start, "stop": batch.stop}
                self.tally.note("microbatch", update=number, loss_sum=batch_loss, **place, **counts)
                entry.microbatch(**counts, loss_sum=batch_loss, ranges=[(STREAM, batch.epoch, batch.start, batch.stop)])
                if self._is_killed_in(number) and done == PAUSED_AFTER_MICROBATCHES:
                    self._await_kill()
            total_loss, total_targets = self.group.total([loss_sum, target_count])
            token_mean = float(total_loss / total_targets)
            outcome = self._step(self.group.total(gradient), int(total_targets))
            self.tally.note("outcome", update=number, outcome=outcome, token_mean=token_mean, loss_scale=self.scale.value)
            if outcome == "applied":
                entry.applied(reported_loss=token_mean, schedule_step=self.optimizer.applied_count)
            else:
                entry.skipped("overflow", reported_loss=token_mean, schedule_step=self.optimizer.applied_count)
        self.cursor.position += self.plan.group_documents
        self.finished_update = number

    def _step(self, gradient: Floats, target_count: int) -> str:
        """Apply the summed gradient, or withhold it if half precision overflowed on any rank; every rank comes to the same end."""
        finite = bool(np.isfinite(gradient).all())
        if finite:
            rate = learning_rate(self.plan.learning_rate, self.optimizer.applied_count, self.plan.warmup_updates, self.plan.updates)
            self.optimizer.apply(self.weights, (gradient / (self.scale.value * target_count)).astype(np.float32), rate)
        self.scale.after(finite=finite)
        return "applied" if finite else "skipped"

    def _drop_remainder(self, number: int) -> None:
        """Process what is left of the epoch; it makes no full group, so its gradient is thrown away and a new epoch begins."""
        counts: Counter[str] = Counter()
        ranges = []
        for batch in self._batches():
            self.model.loss_and_gradient(self.weights, batch.tokens, self.scale.value)
            counts.update(batch.counts())
            ranges.append((STREAM, batch.epoch, batch.start, batch.stop))
        if ranges:
            self.tally.note("dropped", update=number, left=self.plan.documents - self.cursor.position, **counts)
            self.ledger.discard("remainder", update=number, ranges=ranges, **counts)
        self.cursor = Cursor(self.cursor.epoch + 1, 0)

    def _save(self, name: str) -> None:
        """Take a snapshot and let it be written; the ledger hears of its start now, and of its acceptance once it is durable."""
        update, cursor = self.finished_update, self.cursor
        facts = {
            "project": self.plan.project,
            "run": self.plan.run,
            "attempt": attempt_name(self.attempt),
            "update": update,
            "applied_updates": self.optimizer.applied_count,
            "epoch": cursor.epoch,
            "position": cursor.position,
            "loss_scale": self.scale.value,
            "finite_updates": self.scale.finite_count,
        }
        state = SavedState(self.weights.copy(), self.optimizer.mean.copy(), self.optimizer.square.copy(), facts)
        self.tally.note("saving", update=update, checkpoint=name)
        entry = self.ledger.checkpoint(name, update=update, positions={STREAM: {"epoch": cursor.epoch, "position": cursor.position}})

        def durable() -> None:
            self.tally.note("saved", update=update, checkpoint=name)
            entry.accepted()

        self.saver.save(name, state, durable)

    def _evaluate(self) -> None:
        """Score this rank's part of the held-out documents with the final weights."""
        share = -(-self.plan.held_out_documents // self.plan.ranks)
        batch = self.corpus.held_out(self.rank * share, (self.rank + 1) * share)
        begun = time.monotonic()
        loss_sum = self.model.loss(self.weights, batch.tokens)
        counts = batch.counts()
        self.tally.note("evaluation", update=self.finished_update, loss_sum=loss_sum, **counts)
        self.ledger.evaluation(name="held-out", update=self.finished_update, seconds=time.monotonic() - begun, **counts)

    def _is_killed_in(self, number: int) -> bool:
        return self.attempt == 1 and number == self.plan.killed_after_update + 1

    def _await_kill(self) -> None:
        """Say that this rank stands in the middle of an update with its accounts equal, and stand there until it is killed.

        Only the moment is arranged, so that every demo shows the same numbers; the kill is the kernel's.
        """
        self.saver.wait()
        self.places.paused(self.attempt, self.rank).touch()
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.05)
        raise SystemExit("the launcher is gone")


def main() -> None:
    """Run one rank to its end."""
    parser = argparse.ArgumentParser(description="one rank of the demo's trainer")
    parser.add_argument("folder", type=Path)
    parser.add_argument("attempt", type=int)
    parser.add_argument("rank", type=int)
    given = parser.parse_args()
    places = Places(given.folder)
    Trainer(read_plan(places.plan), places, given.attempt, given.rank).train()


if __name__ == "__main__":
    main()
