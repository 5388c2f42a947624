"""Drives a ledger over its HTTP interface: opens the run of a history and posts the steps of a delivery."""

from typing import Any

import httpx

from tests.simulation.delivery import Post, Step, columnar, plan
from tests.simulation.facts import Columns, Declaration, Ending, ResumeDecision
from tests.simulation.workload import History

PROJECT = "simulation"


class Refused(AssertionError):
    """The ledger did not accept a call that must be accepted."""


class Driver:
    """One run of a history, as posted to a ledger."""

    def __init__(self, client: httpx.Client, history: History, run: str) -> None:
        self.client, self.history, self.run = client, history, run
        self.path = f"/v1/projects/{PROJECT}/runs/{run}"

    def call(self, method: str, path: str, body: Columns | None = None) -> Any:
        """A call that must succeed."""
        reply = self.client.request(method, self.path + path, json=body)
        if reply.status_code >= 300:
            raise Refused(f"{method} {path} -> {reply.status_code} {reply.text[:500]} for {str(body)[:1000]}")
        return reply.json()

    def open(self) -> None:
        """Open the run, after the whole story of the run that it was forked from."""
        body: Columns = {"conventions": self.history.conventions}
        if self.history.parent is not None and self.history.forked_from is not None:
            parent = Driver(self.client, self.history.parent, self.run + "-parent")
            parent.open()
            for step in plan(self.history.parent, 0, "none", repeats=0.0, batch_size=60):
                parent.post(step)
            body["forked_from"] = {"project": PROJECT, "run": parent.run, **self.history.forked_from}
        self.call("PUT", "", body)

    def post(self, step: Step) -> Any:
        """Deliver one step."""
        if isinstance(step, Declaration):
            body: Columns = {
                "resumed_from": step.resumed_from,
                "layout": step.layout,
                "conventions": step.conventions,
                "rank": step.rank,
            }
            if step.started_at is not None:
                body["started_at"] = step.started_at
            return self.call("PUT", f"/attempts/{step.attempt}", body)
        if isinstance(step, Post):
            reply = self.call("POST", f"/attempts/{step.attempt}/events", columnar(step.rows))
            identities = {row.identity for row in step.rows}
            if reply["rejected"] or reply["accepted"] + reply["duplicates"] != len(identities):
                raise Refused(f"{len(identities)} events -> {reply}")
            return reply
        if isinstance(step, Ending):
            return self.call("PATCH", f"/attempts/{step.attempt}", {"ended": step.ended})
        if isinstance(step, ResumeDecision):
            return self.call("PATCH", f"/attempts/{step.attempt}", {"resumed_from": step.resumed_from})
        body = {"update": step.update, "retry": step.retry, "by": "operator", "why": "simulated"}
        body |= {"rank": step.rank} if step.rank is not None else {"outcome": step.outcome}
        return self.call("POST", f"/attempts/{step.attempt}/resolutions", body)

    def exposure(self) -> Any:
        """The exposure report."""
        return self.call("GET", "/exposure")

    def pages(self, path: str, key: str, limit: int = 50) -> list[Any]:
        """All items of a paged report."""
        items: list[Any] = []
        cursor = None
        while True:
            answer = self.call("GET", f"{path}?limit={limit}" + ("" if cursor is None else f"&cursor={cursor}"))
            items += answer[key]
            cursor = answer.get("next_cursor")
            if cursor is None:
                return items
