"""Where the ledger's reports differ from what the auditor worked out, each difference as one line of text."""

from typing import Any

from tests.simulation.auditor import BUCKETS, FATES, OUTCOMES
from tests.simulation.driver import Driver
from tests.simulation.groups import QUANTITIES

POSITION_KINDS = {"resume_position_mismatch", "checkpoint_position_mismatch"}
UPDATE_KINDS = {"replica_mismatch", "outcome_conflict", "missing_rank", "missing_count", "zero_target_update"}
DATA_KINDS = {"sample_repeat", "sample_gap"}
JUDGED_KINDS = UPDATE_KINDS | DATA_KINDS | POSITION_KINDS | {"resume_conflict"}


class Differences(list[str]):
    """The differences found so far."""

    def same(self, what: str, found: Any, right: Any) -> None:
        """Note a difference unless the values are equal."""
        if found != right or isinstance(found, bool) != isinstance(right, bool):
            self.append(f"{what}: ledger {found!r}, auditor {right!r}")


def compare_exposure(report: dict[str, Any], audit: dict[str, Any]) -> Differences:
    """Compare the exposure report."""
    differences = Differences()
    differences.same("head", report["as_of"]["head"], audit["head"])
    differences.same("complete_through_update", report["as_of"]["complete_through_update"], audit["complete_through_update"])
    steps = [{key: step[key] for key in ("attempt", "after", "through")} for step in report["trajectory"]]
    differences.same("trajectory", steps, audit["trajectory"])
    accepted = report["accepted_checkpoint"]
    if accepted is not None:
        accepted = {key: accepted[key] for key in ("attempt", "checkpoint", "update")}
    differences.same("accepted_checkpoint", accepted, audit["accepted_checkpoint"])
    for name, right in audit["updates"].items():
        differences.same(f"updates.{name}", report["updates"][name], right)
    for quantity in QUANTITIES:
        compare_balance(differences, quantity, report["balance"][quantity], audit["balance"][quantity])
        compare_matrix(differences, quantity, report["matrix"][quantity], audit)
        if report["recomputed"][quantity] is not None:
            differences.same(f"recomputed.{quantity}", report["recomputed"][quantity], audit["recomputed"][quantity])
        if audit["evaluation"][quantity] is not None:
            differences.same(f"evaluation.{quantity}", report["evaluation"][quantity], audit["evaluation"][quantity])
    differences.same("passed_over.samples", report["passed_over"]["samples"], audit["passed_over"]["samples"])
    return differences


def compare_balance(differences: Differences, quantity: str, entry: dict[str, Any], right: dict[str, Any]) -> None:
    """Compare one balance: a bucket is a number where all of it is known, else null with what is known beside it."""
    for bucket in BUCKETS:
        if bucket in right["unknown"]:
            differences.same(f"balance.{quantity}.{bucket}", entry[bucket], None)
            differences.same(f"balance.{quantity}.known.{bucket}", (entry.get("known") or {}).get(bucket), right["known"][bucket])
        else:
            differences.same(f"balance.{quantity}.{bucket}", entry[bucket], right["known"][bucket])
    differences.same(f"balance.{quantity}.complete", entry["complete"], right["complete"])
    differences.same(f"balance.{quantity}.updates_unknown", entry["updates_unknown"], right["updates_unknown"])
    if "skipped" not in right["unknown"]:
        by_reason = {reason: count for reason, count in right["skipped_by_reason"].items() if count}
        differences.same(f"balance.{quantity}.skipped_by_reason", entry["skipped_by_reason"], by_reason)
    known = {bucket: entry[bucket] if entry[bucket] is not None else entry["known"][bucket] for bucket in BUCKETS}
    differences.same(f"balance of {quantity}", sum(known[bucket] for bucket in BUCKETS[1:]), known["attempted"])


def compare_matrix(differences: Differences, quantity: str, cells: dict[str, Any], audit: dict[str, Any]) -> None:
    """Compare the cells of outcome and fate that the report gives as numbers."""
    for outcome in OUTCOMES:
        for fate in FATES:
            found = cells.get(outcome, {}).get(fate, 0)
            if found is None and audit["balance"][quantity]["unknown"]:
                continue
            differences.same(f"matrix.{quantity}.{outcome}.{fate}", found, audit["matrix"][quantity][outcome][fate])


def compare_updates(items: list[dict[str, Any]], audit: dict[str, Any]) -> Differences:
    """Compare the list of updates."""
    differences = Differences()
    found = {(item["attempt"], item["update"], item["retry"]): item for item in items}
    differences.same("updates listed", len(items), len(found))
    differences.same("updates listed", sorted(found), sorted(audit["items"]))
    for key in sorted(set(found) & set(audit["items"])):
        item, right = found[key], audit["items"][key]
        for name in ("outcome", "reason", "fate", "recomputed", "shards_expected"):
            differences.same(f"update {key} {name}", item[name], right[name])
        if right["outcome"] != "open":
            differences.same(f"update {key} shards_reported", item["shards_reported"], right["shards_reported"])
        for quantity in QUANTITIES:
            value = None if quantity in right["unknown"] else right["known"][quantity]
            differences.same(f"update {key} {quantity}", item[quantity], value)
        for name, mean in right["losses"].items():
            if right["outcome"] not in ("held", "open") and (item[name] is None or abs(item[name] - mean) > 1e-9 * max(1.0, abs(mean))):
                differences.append(f"update {key} {name}: ledger {item[name]!r}, auditor {mean!r}")
    return differences


def compare_coverage(streams: list[dict[str, Any]], audit: dict[str, Any]) -> Differences:
    """Compare the data exposure by stream and epoch."""
    differences = Differences()
    found = {(entry["stream"], entry["epoch"]): entry for entry in streams}
    right = {(entry["stream"], entry["epoch"]): entry for entry in audit["streams"]}
    differences.same("streams", sorted(found), sorted(right))
    for key in sorted(set(found) & set(right)):
        for name in ("unit", "effective_total", "effective_unique", "repeated", "gaps", "without_effect", "passed_over"):
            differences.same(f"coverage {key} {name}", found[key][name], right[key][name])
        times = {times: count for times, count in found[key]["times_seen"].items() if times not in ("0", "unseen")}
        differences.same(f"coverage {key} times_seen", times, right[key]["times_seen"])
    return differences


def compare_findings(
    found: list[dict[str, Any]], report: dict[str, Any], audit: dict[str, Any], settled: set[tuple[str, int, int]], skip: set[str]
) -> Differences:
    """Compare the places of findings; what an operator has settled may still be listed."""
    differences = Differences()
    for kind in sorted(JUDGED_KINDS - skip):
        listed = [finding for finding in found if finding["kind"] == kind]
        right = audit["findings"].get(kind, set())
        if kind in UPDATE_KINDS:
            places = {(f["attempt"], f["update"], f["retry"]) for f in listed}
            differences.same(f"findings {kind}", sorted(places - settled), sorted(right - settled))
        elif kind == "resume_conflict":
            attempts = sorted({finding["attempt"] for finding in listed if finding["open"]})
            differences.same(f"findings {kind}", attempts, sorted(place[0] for place in right))
        else:
            differences.same(f"findings {kind}", bool(listed), bool(right))
        if not settled:
            differences.same(f"exposure.findings {kind}", bool(report["findings"].get(kind)), bool(right or listed))
    return differences


def compare_checkpoints(items: list[dict[str, Any]], audit: dict[str, Any]) -> Differences:
    """Compare the states of the checkpoints."""
    differences = Differences()
    found = {(item["attempt"], item["checkpoint"], item["update"]): item["state"] for item in items}
    differences.same("checkpoints", found, audit["checkpoints"])
    return differences


def compare_all(driver: Driver, audit: dict[str, Any], settled: set[tuple[str, int, int]]) -> Differences:
    """Compare every report of a run whose facts have all been delivered."""
    skip = set() if driver.history.tidy else set(POSITION_KINDS)
    report = driver.exposure()
    differences = compare_exposure(report, audit)
    differences += compare_updates(driver.updates(), audit)
    differences += compare_coverage(driver.coverage(), audit)
    differences += compare_findings(driver.findings(), report, audit, settled, skip)
    differences += compare_checkpoints(driver.checkpoints(), audit)
    return differences
