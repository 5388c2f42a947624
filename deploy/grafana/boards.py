"""The four dashboards: all runs, one run, what the data went through, the service itself."""

from collections.abc import Callable

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import alternatives, board, choice, curve, figure, filled, listing, one, where

PROJECT = choice("project", "Project", "label_values(training_ledger_run_info, project)")
RUN = choice("run", "Run", 'label_values(training_ledger_run_info{project="$project"}, run)')
QUANTITY = alternatives("quantity", "Counted in", "valid_targets", "input_slots", "consumed_tokens", "samples", "updates")
HERE = 'project="$project",run="$run"'
IMBALANCES = '__name__=~"training_ledger_imbalance_.+"'
OWN = 'job="training-ledger"'
POSTS = 'job="training-ledger",handler="/v1/projects/{project}/runs/{run}/attempts/{attempt}/events"'


def total(expression: str) -> str:
    """All that an expression gives, added up."""
    return f"sum({expression})"


def each(expression: str) -> str:
    """What an expression gives of each run."""
    return f"sum by (project, run) ({expression})"


def speed(counter: str, by: str = "") -> str:
    """How fast a counter of the processes grows, added up."""
    return (f"sum by ({by}) " if by else "sum") + f"(rate({where(counter, OWN)}[$__rate_interval]))"


def quantile(share: float, histogram: str, by: str = "", of: str = OWN) -> str:
    """A quantile of what the processes observed."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({where(f'{histogram}_bucket', of)}[$__rate_interval])))"


def fleet() -> Dashboard:
    """All runs of a project."""
    here = 'project="$project"'
    made = board(
        "training-ledger-fleet", "Training Ledger: runs", "What became of the work of every run that is in the scrape.", [PROJECT, QUANTITY]
    )
    now = (
        figure("Runs", "Runs in the scrape.", "none", one("training_ledger_exported_runs")),
        figure(
            "Left out",
            "Runs that the cap keeps out of the scrape, or that could not be read.",
            "none",
            one("training_ledger_omitted_runs") + " + " + one("training_ledger_unread_runs"),
        ),
        figure(
            "Running",
            "Runs whose newest attempt has not ended and that were heard of lately.",
            "none",
            total(one("training_ledger_run_status", here, 'status="running"')),
        ),
        figure(
            "Stalled",
            "Runs whose newest attempt has not ended and that have gone silent.",
            "none",
            total(one("training_ledger_run_status", here, 'status="stalled"')),
        ),
        figure("Open findings", "Of all runs and kinds.", "none", total(where("project_run_kind:training_ledger_findings:max", here))),
        figure("Alerts", "Alerts that fire now.", "none", 'count(ALERTS{alertname=~"TrainingLedger.+",alertstate="firing"}) or vector(0)'),
    )
    table = listing(
        "Runs",
        "One row a run; at risk are the applied updates that no accepted checkpoint holds.",
        (each(one("training_ledger_latest_update", here)), "latest update"),
        (each(one("training_ledger_accepted_update", here)), "accepted update"),
        (each(where("project_run:training_ledger_at_risk_updates:max", here)), "at risk [updates]"),
        (each(where("project_run:training_ledger_preserved_ratio:max", here)), "preserved share"),
        (each(where("project_run:training_ledger_silence_seconds:min", here)), "silent for [s]"),
        (each(one("training_ledger_restarts_total", here)), "restarts"),
        (each(where("project_run_kind:training_ledger_findings:max", here)), "open findings"),
    )
    work = (
        curve("Attempted", "All attempted work.", "short", (one("training_ledger_attempted_$quantity", here), "{{run}}")),
        curve(
            "Preserved",
            "Work that an accepted checkpoint holds.",
            "short",
            (one("training_ledger_$quantity", here, 'bucket="preserved"'), "{{run}}"),
        ),
        curve(
            "Lost to restarts",
            "Applied work that no trajectory holds any more.",
            "short",
            (one("training_ledger_$quantity", here, 'bucket="lost_to_restart"'), "{{run}}"),
        ),
        curve(
            "Preserved work a second",
            "Over the whole run and its wall-clock time, by the clocks of the ranks.",
            "short",
            (one("training_ledger_rate_${quantity}_per_second", here, 'work="preserved"'), "{{run}}"),
        ),
    )
    return filled(made, ("Now", now), ("Each run", (table,)), ("Work", work))


def run() -> Dashboard:
    """One run."""
    made = board(
        "training-ledger-run", "Training Ledger: one run", "The balance of one run, its progress and its risk.", [PROJECT, RUN, QUANTITY]
    )
    now = (
        figure("State", "The state that the run is in.", "none", one("training_ledger_run_status", HERE) + " == 1", "{{status}}"),
        figure("Latest update", "On the trajectory.", "none", one("training_ledger_latest_update", HERE)),
        figure("Accepted update", "The last one that an accepted checkpoint holds.", "none", one("training_ledger_accepted_update", HERE)),
        figure("Preserved", "Share of the attempted valid targets.", "percentunit", one("training_ledger_preserved_ratio", HERE)),
        figure("Restarts", "Attempts after the first.", "none", one("training_ledger_restarts_total", HERE)),
        figure("Silent for", "Since anything of the run was heard.", "s", where("project_run:training_ledger_silence_seconds:min", HERE)),
    )
    balance = (
        curve(
            "Where the work ended up",
            "Buckets are disjoint and add up to what was attempted.",
            "short",
            (one("training_ledger_$quantity", HERE), "{{bucket}}"),
            stacked=True,
        ),
        curve(
            "What the optimizer did",
            "Attempted and applied; the difference was skipped, abandoned or is held.",
            "short",
            (one("training_ledger_attempted_$quantity", HERE), "attempted"),
            (one("training_ledger_applied_$quantity", HERE), "applied"),
        ),
        curve("Skipped", "By reason.", "short", (one("training_ledger_skipped_$quantity", HERE), "{{reason}}")),
        curve(
            "Done again",
            "Work whose update number had been attempted before.",
            "short",
            (one("training_ledger_recomputed_$quantity", HERE), "recomputed"),
        ),
    )
    progress = (
        curve(
            "Updates",
            "How far the run is, and how far a crash now would throw it back to.",
            "none",
            (one("training_ledger_latest_update", HERE), "latest"),
            (one("training_ledger_accepted_update", HERE), "accepted"),
        ),
        curve(
            "At risk",
            "Applied updates that no accepted checkpoint holds, and the mean distance between accepted checkpoints.",
            "none",
            (where("project_run:training_ledger_at_risk_updates:max", HERE), "at risk"),
            (where("project_run:training_ledger_checkpoint_interval_updates:mean", HERE), "checkpoint interval"),
        ),
        curve(
            "Checkpoints and restarts",
            "Since the run was opened.",
            "none",
            (one("training_ledger_checkpoints_accepted_total", HERE), "checkpoints accepted"),
            (one("training_ledger_restarts_total", HERE), "restarts"),
        ),
        curve(
            "Work a second",
            "By the clocks of the ranks, over the whole run; the labels say what is included.",
            "short",
            (one("training_ledger_rate_${quantity}_per_second", HERE), "{{work}} by {{clock}} time"),
        ),
        curve(
            "Ranks",
            "Ranks of the head attempt, and those of them that have posted.",
            "none",
            (one("training_ledger_ranks_expected", HERE), "expected"),
            (one("training_ledger_ranks_reporting", HERE), "reporting"),
        ),
        curve(
            "Slowest rank",
            "How far the rank that has been silent longest is behind the one that was heard last.",
            "s",
            (where("project_run:training_ledger_slowest_rank_lag_seconds:max", HERE), "behind"),
        ),
    )
    conventions = listing(
        "Conventions", "What the run declares about itself.", (one("training_ledger_run_info", HERE), "declared"), width=24
    )
    return filled(made, ("Now", now), ("Balance", balance), ("Progress and risk", progress), ("Conventions", (conventions,)))


def data() -> Dashboard:
    """What the data went through, and whether the books agree."""
    made = board(
        "training-ledger-data", "Training Ledger: data and integrity", "What a run saw of its data, and what disagrees.", [PROJECT, RUN]
    )
    exposure = (
        curve(
            "Targets for each slot",
            "Valid targets per input slot: of the whole run, and of the last 15 minutes.",
            "percentunit",
            (where("project_run:training_ledger_occupancy_ratio:max", HERE), "whole run"),
            (where("project_run:training_ledger_occupancy:ratio15m", HERE), "last 15 minutes"),
        ),
        curve(
            "Skipped share",
            "Skipped updates of those attempted in the last 30 minutes.",
            "percentunit",
            (where("project_run:training_ledger_skipped_updates:ratio30m", HERE), "skipped"),
        ),
        curve(
            "Tokens and targets",
            "What was drawn, and what of it was a target.",
            "short",
            (one("training_ledger_input_slots", HERE, 'bucket="preserved"'), "slots"),
            (one("training_ledger_consumed_tokens", HERE, 'bucket="preserved"'), "tokens"),
            (one("training_ledger_valid_targets", HERE, 'bucket="preserved"'), "targets"),
        ),
        curve(
            "Samples",
            "By what became of the updates that drew them.",
            "short",
            (one("training_ledger_samples", HERE), "{{bucket}}"),
            stacked=True,
        ),
        curve(
            "Done again",
            "Targets of work whose update number had been attempted before.",
            "short",
            (one("training_ledger_recomputed_valid_targets", HERE), "recomputed"),
        ),
        curve(
            "Evaluation",
            "Targets of evaluations, outside the balance.",
            "short",
            (one("training_ledger_evaluation_valid_targets", HERE), "evaluation"),
        ),
    )
    integrity = (
        listing(
            "Open findings",
            "By kind; each kind is always there.",
            (where("project_run_kind:training_ledger_findings:max", HERE), "open"),
            width=12,
        ),
        curve("Open findings", "By kind.", "none", (where("project_run_kind:training_ledger_findings:max", HERE), "{{kind}}")),
        curve(
            "Imbalance",
            "Attempted minus the sum of the buckets; anything but 0 is a fault of the ledger.",
            "none",
            (f"max without (instance, pod) (abs({where('', IMBALANCES, HERE)}))", "{{unit}}"),
        ),
        curve(
            "Updates that lack a quantity",
            "While there are any, a total has no value.",
            "none",
            (one("training_ledger_valid_targets_unknown_updates", HERE), "valid targets"),
            (one("training_ledger_consumed_tokens_unknown_updates", HERE), "consumed tokens"),
            (one("training_ledger_input_slots_unknown_updates", HERE), "input slots"),
            (one("training_ledger_samples_unknown_updates", HERE), "samples"),
        ),
    )
    return filled(made, ("Exposure", exposure), ("Integrity", integrity))


def service() -> Dashboard:
    """The service itself."""
    made = board("training-ledger-service", "Training Ledger: the service", "What the processes of the service measure of themselves.", [])
    now = (
        figure("Up", "Processes that answer a scrape.", "none", total(where("up", OWN))),
        figure("Readable", "Whether the ledger could be read.", "none", "min(training_ledger_readable)"),
        figure("Version", "Of each process.", "none", "count by (version) (training_ledger_build_info)", "{{version}}"),
        figure("Snapshot", "How old what a scrape shows is.", "s", "max(time() - training_ledger_snapshot_timestamp_seconds)"),
        figure(
            "Projection lag",
            "How long the oldest entry that no report reflects has waited.",
            "s",
            one("training_ledger_projection_lag_seconds"),
        ),
        figure("Entries behind", "Entries that no report reflects yet.", "none", one("training_ledger_projection_lag_events")),
    )
    taken = (
        curve(
            "Events taken",
            "Events in batches that were taken, by kind.",
            "ops",
            (speed("training_ledger_ingest_events_total", "kind"), "{{kind}}"),
        ),
        curve(
            "Duplicates and refusals",
            "Events that the ledger had already; events refused while the rest of the batch was taken.",
            "ops",
            (speed("training_ledger_ingest_duplicates_total"), "duplicates"),
            (speed("training_ledger_ingest_rejected_total", "code"), "{{code}}"),
        ),
        curve(
            "Events a batch",
            "Median and largest hundredth.",
            "short",
            (quantile(0.5, "training_ledger_ingest_batch_events"), "median"),
            (quantile(0.99, "training_ledger_ingest_batch_events"), "p99"),
        ),
        curve(
            "Queue",
            "Batches on their way, and how many may be.",
            "none",
            (where("training_ledger_queue_batches", OWN), "{{instance}}"),
            (where("training_ledger_queue_limit_batches", OWN), "limit {{instance}}"),
        ),
        curve(
            "Time to take a batch",
            "From the request to the answer, which comes after the commit.",
            "s",
            (quantile(0.5, "http_request_duration_seconds", of=POSTS), "median"),
            (quantile(0.99, "http_request_duration_seconds", of=POSTS), "p99"),
        ),
        curve(
            "Ingest by process",
            "Events taken in the last five minutes, a second.",
            "ops",
            ("instance:training_ledger_ingest_events:rate5m", "{{instance}}"),
        ),
    )
    answers = (
        curve("Requests", "By status.", "reqps", (speed("http_request_duration_seconds_count", "status"), "{{status}}")),
        curve(
            "Slowest answers",
            "The largest hundredth, by handler.",
            "s",
            ("instance_handler:http_request_duration_seconds:p99", "{{handler}}"),
        ),
    )
    machine = (
        curve(
            "Database operations",
            "By what they are.",
            "ops",
            (speed("training_ledger_database_operation_duration_seconds_count", "operation"), "{{operation}}"),
        ),
        curve(
            "Time of database operations",
            "The largest hundredth.",
            "s",
            (quantile(0.99, "training_ledger_database_operation_duration_seconds", "operation"), "{{operation}}"),
        ),
        curve(
            "Connections",
            "To the database.",
            "none",
            ("sum by (state) (" + where("training_ledger_database_connections", OWN) + ")", "{{state}}"),
        ),
        curve(
            "Runs in the scrape",
            "Exported, left out by the cap, not read.",
            "none",
            (one("training_ledger_exported_runs"), "exported"),
            (one("training_ledger_omitted_runs"), "omitted"),
            (one("training_ledger_unread_runs"), "unread"),
        ),
        curve("Memory", "Resident, of each process.", "bytes", (where("process_resident_memory_bytes", OWN), "{{instance}}")),
        curve("Processor", "Seconds of a processor in a second.", "none", (speed("process_cpu_seconds_total", "instance"), "{{instance}}")),
    )
    return filled(made, ("Now", now), ("What is taken in", taken), ("Answers", answers), ("Database and machine", machine))


BOARDS: dict[str, Callable[[], Dashboard]] = {"fleet": fleet, "run": run, "data": data, "service": service}
