"""What is not of the documented form is refused with a code and a pointer, stores nothing, and is never a 500."""

import copy
import gzip
import json
from typing import Any

import pytest
import zstandard
from starlette.testclient import TestClient

from worked_example import RUN, batch, columns

EVENTS = f"{RUN}/attempts/a1/events"
GOOD = batch(0, updates=columns(1, {1: "applied", 2: "applied"}, 0))


def changed(path: str, value: Any) -> dict[str, Any]:
    """A good batch with the value at that pointer replaced."""
    body = copy.deepcopy(GOOD)
    at: Any = body
    *steps, last = path.strip("/").split("/")
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = value
    return body


def without(path: str) -> dict[str, Any]:
    """A good batch without the key at that pointer."""
    body = copy.deepcopy(GOOD)
    at: Any = body
    *steps, last = path.strip("/").split("/")
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at[step]
    del at[last]
    return body


def with_checkpoint(**values: Any) -> dict[str, Any]:
    """A batch of one started checkpoint with those values."""
    row = {"seq": 1, "checkpoint": "c1", "state": "started", "update": 1} | values
    return batch(0, checkpoints={name: [value] for name, value in row.items()})


BLOCK = "/ranks/0/updates"
SAVED = "/ranks/0/checkpoints"
SEQ = f"{BLOCK}/seq/1"
BAD_BATCHES: dict[str, tuple[Any, str]] = {
    "negative count": (changed(SEQ, -1), SEQ),
    "fractional count": (changed(SEQ, 1.5), SEQ),
    "whole float": (changed(SEQ, 1.0), SEQ),
    "boolean count": (changed(SEQ, True), SEQ),
    "string count": (changed(SEQ, "2"), SEQ),
    "named NaN for a count": (changed(f"{BLOCK}/valid_targets/0", "NaN"), f"{BLOCK}/valid_targets/0"),
    "count beyond 2^53": (changed(f"{BLOCK}/valid_targets/1", 2**53 + 1), f"{BLOCK}/valid_targets/1"),
    "count beyond 64 bit": (changed(f"{BLOCK}/valid_targets/1", 2**70), f"{BLOCK}/valid_targets/1"),
    "null where needed": (changed(SEQ, None), SEQ),
    "short column": (changed(f"{BLOCK}/update", [1]), f"{BLOCK}/update"),
    "long optional column": (changed(f"{BLOCK}/samples", [1, 2, 3]), f"{BLOCK}/samples"),
    "no column but a number": (changed(f"{BLOCK}/update", 3), f"{BLOCK}/update"),
    "missing seq": (without(f"{BLOCK}/seq"), f"{BLOCK}/seq"),
    "missing writer": (without("/ranks/0/writer"), "/ranks/0/writer"),
    "unknown column": (changed(f"{BLOCK}/tokens", [1, 2]), f"{BLOCK}/tokens"),
    "unknown block": (changed("/ranks/0/steps", {"seq": [3]}), "/ranks/0/steps"),
    "unknown field": (changed("/comment", "hello"), "/comment"),
    "unknown outcome": (changed(f"{BLOCK}/outcome/1", "held"), f"{BLOCK}/outcome/1"),
    "negative rank": (changed("/ranks/0/rank", -1), "/ranks/0/rank"),
    "text for a float": (changed(f"{BLOCK}/loss_sum/0", "much"), f"{BLOCK}/loss_sum/0"),
    "boolean for a float": (changed(f"{BLOCK}/loss_sum/0", True), f"{BLOCK}/loss_sum/0"),
    "negative duration": (changed(f"{BLOCK}/seconds/1", -0.5), f"{BLOCK}/seconds/1"),
    "moment without offset": (changed(f"{BLOCK}/started_at/0", "2026-01-01T00:00:00"), f"{BLOCK}/started_at/0"),
    "number for a moment": (changed(f"{BLOCK}/started_at/0", 1767225600), f"{BLOCK}/started_at/0"),
    "short range": (changed(f"{BLOCK}/ranges/0", [["train", 0, 1]]), f"{BLOCK}/ranges/0/0/3"),
    "range of another type": (changed(f"{BLOCK}/ranges/0", [["train", 0, 1.5, 2]]), f"{BLOCK}/ranges/0/0/2"),
    "day that is none": (changed(f"{BLOCK}/started_at/0", "2026-02-30T00:00:00Z"), f"{BLOCK}/started_at/0"),
    "words for a moment": (changed(f"{BLOCK}/started_at/0", "yesterday"), f"{BLOCK}/started_at/0"),
    "moment before 1970": (changed(f"{BLOCK}/started_at/0", "1969-12-31T23:59:59Z"), f"{BLOCK}/started_at/0"),
    "moment that has no UTC": (changed(f"{BLOCK}/started_at/0", "9999-12-31T23:59:59-23:59"), f"{BLOCK}/started_at/0"),
    "duration beyond an age": (changed(f"{BLOCK}/seconds/1", 1e12), f"{BLOCK}/seconds/1"),
    "rank beyond bounds": (changed("/ranks/0/rank", 2**20), "/ranks/0/rank"),
    "long writer": (changed("/ranks/0/writer", "x" * 129), "/ranks/0/writer"),
    "empty writer": (changed("/ranks/0/writer", ""), "/ranks/0/writer"),
    "NUL in the writer": (changed("/ranks/0/writer", "a\0b"), "/ranks/0/writer"),
    "NUL in a name": (with_checkpoint(checkpoint="c\0"), f"{SAVED}/checkpoint/0"),
    "NUL in a text": (with_checkpoint(uri="s3://\0"), f"{SAVED}/uri/0"),
    "NUL in a stream": (changed(f"{BLOCK}/ranges/0", [["a\0", 0, 1, 2]]), f"{BLOCK}/ranges/0/0/0"),
    "NUL in a position": (with_checkpoint(positions={"a\0": {"epoch": 0, "position": 0}}), f"{SAVED}/positions/0/a\0"),
    "long text": (with_checkpoint(uri="x" * 4097), f"{SAVED}/uri/0"),
    "empty name": (with_checkpoint(checkpoint=""), f"{SAVED}/checkpoint/0"),
    "owner that is no slug": (with_checkpoint(attempt="-"), f"{SAVED}/attempt/0"),
    "unknown state": (with_checkpoint(state="finished"), f"{SAVED}/state/0"),
    "no ranks": ({"ranks": []}, "/ranks"),
    "a list": ([], ""),
}
RAW_BODIES: dict[str, tuple[bytes, str | None]] = {
    "bare NaN for a count": (json.dumps(changed(SEQ, float("nan"))).encode(), SEQ),
    "bare NaN for a float": (json.dumps(changed(f"{BLOCK}/loss_sum/0", float("nan"))).encode(), f"{BLOCK}/loss_sum/0"),
    "a float beyond doubles": (json.dumps(GOOD).replace("50.0", "1e999").encode(), f"{BLOCK}/loss_sum/0"),
    "half a document": (b'{"ranks": [', ""),
    "nothing": (b"", ""),
    "not UTF-8": (b"\xff\xfe{}", ""),
    "a lone surrogate in a value": (json.dumps(with_checkpoint(uri="\ud800")).encode(), ""),
    "a key twice": (json.dumps(GOOD).replace('"seq"', '"update": [7, 7], "seq"').encode(), ""),
    "a key twice outside": (b'{"ranks": [], ' + json.dumps(GOOD).encode()[1:], ""),
    "two documents": (json.dumps(GOOD).encode() * 2, ""),
    "UTF-16": (json.dumps(GOOD).encode("utf-16"), ""),
    "an integer of a thousand digits": (json.dumps(GOOD).replace('"seq": [1', '"seq": [' + "9" * 1000).encode(), f"{BLOCK}/seq/0"),
    "a nest in a value": (json.dumps(GOOD).replace('"seq": [1', '"seq": [' + "[" * 900 + "]" * 900).encode(), None),
    "a lone surrogate": (b'{"ranks": [{"rank": 0, "writer": "\\ud800"}]}', ""),
    "a deep nest": (b"[" * 4000, ""),
}


def journal(service: TestClient) -> str:
    """Everything that is stored of the run."""
    response = service.get(f"{RUN}/events")
    assert response.status_code == 200
    return response.text


def assert_refused(response: Any, status: int, code: str, pointer: str | None = None) -> None:
    """The answer is a problem document with that status, code and pointer."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["request_id"] == response.headers["x-request-id"]
    if pointer is not None:
        assert problem.get("pointer", "") == pointer
        assert problem["errors"][0]["pointer"] == pointer
        assert problem["errors"][0]["rule"]


def post_raw(service: TestClient, body: bytes, **headers: str) -> Any:
    """A batch as bytes."""
    return service.post(EVENTS, content=body, headers={"Content-Type": "application/json", **headers})


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_refused_at_its_pointer(small: TestClient, name: str) -> None:
    body, pointer = BAD_BATCHES[name]
    before = journal(small)
    assert_refused(small.post(EVENTS, json=body), 422, "invalid_request", pointer)
    assert journal(small) == before


@pytest.mark.parametrize("name", RAW_BODIES)
def test_what_is_no_json_is_refused_at_its_pointer(small: TestClient, name: str) -> None:
    body, pointer = RAW_BODIES[name]
    before = journal(small)
    assert_refused(post_raw(small, body), 422, "invalid_request", pointer)
    assert journal(small) == before


def test_a_refusal_never_repeats_what_was_sent(small: TestClient) -> None:
    response = small.post(EVENTS, json=changed(f"{BLOCK}/loss_sum/0", "a secret"))
    assert_refused(response, 422, "invalid_request", f"{BLOCK}/loss_sum/0")
    assert "secret" not in response.text


def test_the_first_twenty_errors_are_told(small: TestClient) -> None:
    response = small.post(EVENTS, json=changed("/ranks/0/updates", {f"x{place}": [1] for place in range(40)}))
    assert response.status_code == 422
    assert len(response.json()["errors"]) == 20


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_a_body_over_the_limit_is_refused(small: TestClient, encoding: str) -> None:
    before = journal(small)
    assert_refused(post_raw(small, b" " * 9000, **{"Content-Encoding": encoding}), 413, "body_too_large")
    assert journal(small) == before


def test_a_body_over_the_limit_without_its_length_is_refused(small: TestClient) -> None:
    chunks = (b" " * 1000 for _ in range(20))
    assert_refused(small.post(EVENTS, content=chunks, headers={"Content-Type": "application/json"}), 413, "body_too_large")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_decompression_bomb_is_refused(small: TestClient, encoding: str) -> None:
    bomb = bytes(4_000_000)
    packed = gzip.compress(bomb) if encoding == "gzip" else zstandard.compress(bomb)
    assert len(packed) < 8192
    assert_refused(post_raw(small, packed, **{"Content-Encoding": encoding}), 413, "body_too_large")


def test_many_empty_gzip_members_are_refused(small: TestClient) -> None:
    assert_refused(post_raw(small, gzip.compress(b"") * 400, **{"Content-Encoding": "gzip"}), 422, "invalid_request")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["plain", "cut", "trailing"])
def test_broken_compression_is_refused(small: TestClient, encoding: str, damage: str) -> None:
    plain = json.dumps(GOOD).encode()
    packed = gzip.compress(plain) if encoding == "gzip" else zstandard.compress(plain)
    body = {"plain": plain, "cut": packed[:-5], "trailing": packed + b"more"}[damage]
    before = journal(small)
    assert_refused(post_raw(small, body, **{"Content-Encoding": encoding}), 400, "body_broken")
    assert journal(small) == before


def test_unknown_encodings_and_media_types_are_refused(small: TestClient) -> None:
    body = json.dumps(GOOD).encode()
    assert_refused(post_raw(small, body, **{"Content-Encoding": "br"}), 415, "encoding_unsupported")
    assert_refused(post_raw(small, body, **{"Content-Type": "text/plain"}), 415, "media_type_unsupported")


def test_writes_of_other_sites_are_refused(small: TestClient) -> None:
    assert_refused(post_raw(small, json.dumps(GOOD).encode(), **{"Sec-Fetch-Site": "cross-site"}), 403, "cross_site")


def test_unknown_runs_and_attempts_are_told_apart(small: TestClient) -> None:
    assert_refused(small.post("/v1/projects/default/runs/none/attempts/a1/events", json=GOOD), 404, "run_unknown")
    assert_refused(small.post(f"{RUN}/attempts/none/events", json=GOOD), 404, "attempt_unknown")
    assert_refused(small.put("/v1/projects/default/runs/none/attempts/a1", json={}), 404, "run_unknown")
    assert_refused(small.patch(f"{RUN}/attempts/none", json={"ended": "crashed"}), 404, "attempt_unknown")
    resolution = {"update": 1, "outcome": "applied", "by": "kim", "why": "log"}
    assert_refused(small.post(f"{RUN}/attempts/none/resolutions", json=resolution), 404, "attempt_unknown")


@pytest.mark.parametrize(
    "part",
    ["", "/exposure", "/coverage", "/updates", "/objective", "/rates", "/findings", "/checkpoints", "/events", "/checkpoints/c1/exposure"],
)
def test_reports_of_unknown_runs_are_refused(small: TestClient, part: str) -> None:
    assert_refused(small.get(f"/v1/projects/default/runs/none{part}"), 404, "run_unknown")


def test_the_same_name_with_another_body_is_a_conflict(small: TestClient) -> None:
    before = journal(small)
    assert_refused(small.put(RUN, json={"conventions": {"objective": "other"}}), 409, "run_exists_differently")
    assert_refused(small.put(f"{RUN}/attempts/a1", json={"layout": {"dp": 4}}), 409, "attempt_exists_differently")
    conventions = {"layout": {"dp": 2}, "conventions": {"precision": "bf16"}}
    assert_refused(small.put(f"{RUN}/attempts/a1", json=conventions), 409, "attempt_exists_differently")
    assert journal(small) == before


def test_another_ending_is_a_conflict(small: TestClient) -> None:
    declared = {"layout": {"dp": 1}, "started_at": "2025-01-01T00:00:00Z"}
    assert small.put(f"{RUN}/attempts/over", json=declared).status_code == 201
    assert small.patch(f"{RUN}/attempts/over", json={"ended": "crashed"}).status_code == 200
    assert small.patch(f"{RUN}/attempts/over", json={"ended": "crashed"}).status_code == 200
    assert_refused(small.patch(f"{RUN}/attempts/over", json={"ended": "completed"}), 409, "attempt_ended_differently")


BAD_DECLARATIONS: dict[str, tuple[str, str, Any, str]] = {
    "unknown field of a run": ("put", RUN, {"convention": {}}, "/convention"),
    "unknown convention": ("put", RUN, {"conventions": {"optimiser": "adam"}}, "/conventions/optimiser"),
    "convention of the wrong type": ("put", RUN, {"conventions": {"sequence_length": "long"}}, "/conventions/sequence_length"),
    "integer beyond 2^53 in extra": ("put", RUN, {"conventions": {"extra": {"n": 2**60}}}, "/conventions/extra/n"),
    "null character in extra": ("put", RUN, {"conventions": {"extra": {"n": "a\0"}}}, "/conventions/extra/n"),
    "fork without checkpoint": ("put", RUN, {"forked_from": {"project": "a", "run": "b"}}, "/forked_from/checkpoint"),
    "layout of no ranks": ("put", f"{RUN}/attempts/x", {"layout": {"dp": 0}}, "/layout/dp"),
    "layout too large": ("put", f"{RUN}/attempts/x", {"layout": {"dp": 2**20, "tp": 2}}, "/layout"),
    "unknown axis in order": ("put", f"{RUN}/attempts/x", {"layout": {"dp": 2, "order": "tp-ep-dp-pp"}}, "/layout/order"),
    "axis twice in order": ("put", f"{RUN}/attempts/x", {"layout": {"dp": 2, "order": "tp-tp-dp-pp"}}, "/layout/order"),
    "shards beside axes": ("put", f"{RUN}/attempts/x", {"layout": {"dp": 2, "shards": [0, 1], "dp_ranks": [0, 1]}}, "/layout"),
    "uneven shards": ("put", f"{RUN}/attempts/x", {"layout": {"shards": [0, 1], "dp_ranks": [0]}}, "/layout/dp_ranks"),
    "rank outside the layout": ("put", f"{RUN}/attempts/x", {"layout": {"dp": 2}, "rank": 2}, "/rank"),
    "resume without checkpoint": ("put", f"{RUN}/attempts/x", {"resumed_from": {"update": 3}}, "/resumed_from/checkpoint"),
    "key twice": ("put", RUN, b'{"conventions": {}, "conventions": {"objective": "x"}}', ""),
    "NUL in a convention": ("put", RUN, {"conventions": {"objective": "a\0"}}, "/conventions/objective"),
    "long convention": ("put", RUN, {"conventions": {"objective": "x" * 4097}}, "/conventions/objective"),
    "moment without offset": ("put", f"{RUN}/attempts/x", {"started_at": "2026-01-01T00:00:00"}, "/started_at"),
    "number for a moment": ("put", f"{RUN}/attempts/x", {"started_at": 5}, "/started_at"),
    "layout of a billion shards": ("put", f"{RUN}/attempts/x", {"layout": {"dp": 10**9}}, "/layout/dp"),
    "resume from another thing": ("put", f"{RUN}/attempts/x", {"resumed_from": "c1"}, "/resumed_from"),
    "resolution by nobody": ("post", f"{RUN}/attempts/a1/resolutions", {"update": 1, "rank": 0, "by": "", "why": "x"}, "/by"),
    "both grounds": ("post", f"{RUN}/attempts/a1/resolutions", {"update": 1, "rank": 0, "outcome": "applied", "by": "k", "why": "x"}, ""),
    "no object": ("put", RUN, [1], ""),
    "long slug": ("put", f"/v1/projects/default/runs/{'x' * 129}", {}, "/run"),
    "slug of other letters": ("put", "/v1/projects/default/runs/%C3%A9", {}, "/run"),
    "slug with NUL": ("put", "/v1/projects/default/runs/a%00", {}, "/run"),
    "slug with a line's end": ("put", "/v1/projects/default/runs/a%0A", {}, "/run"),
    "slug of the attempt": ("put", f"{RUN}/attempts/.x", {}, "/attempt"),
    "ending that has no UTC": ("patch", f"{RUN}/attempts/a1", {"ended": "crashed", "ended_at": "9999-12-31T23:59:59-23:59"}, "/ended_at"),
    "unknown ending": ("patch", f"{RUN}/attempts/a1", {"ended": "exploded"}, "/ended"),
    "empty change": ("patch", f"{RUN}/attempts/a1", {}, ""),
    "resolution without ground": ("post", f"{RUN}/attempts/a1/resolutions", {"update": 1, "by": "kim", "why": "x"}, ""),
    "bad slug": ("put", "/v1/projects/default/runs/-x", {}, "/run"),
}


@pytest.mark.parametrize("name", BAD_DECLARATIONS)
def test_a_bad_declaration_is_refused_at_its_pointer(small: TestClient, name: str) -> None:
    method, path, body, pointer = BAD_DECLARATIONS[name]
    before = journal(small)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = small.request(method, path, content=content, headers={"Content-Type": "application/json"})
    assert_refused(response, 422, "invalid_request", pointer or None)
    assert journal(small) == before
    assert all(item["attempt"] != "x" for item in small.get(RUN).json()["attempts"])


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("updates?limit=0", "/limit"),
        ("updates?points=0", "/points"),
        ("updates?points=10001", "/points"),
        ("updates?points=99999999999999999999999", "/points"),
        ("updates?cursor=AAAA", "/cursor"),
        ("updates?cursor=%00", "/cursor"),
        ("updates?cursor=" + "x" * 9000, "/cursor"),
        ("coverage?cursor=WyJ0cmFpbiIsIDBd", "/cursor"),
        ("checkpoints?cursor=%C3%A9", "/cursor"),
        ("findings?kind=nonsense", "/kind"),
        ("findings?kind=%00", "/kind"),
        ("exposure?head=-", "/head"),
        ("checkpoints/c1/exposure?update=-1", "/update"),
        ("rates?window=last:0s", "/window"),
        ("rates?window=updates:5-1", "/window"),
        ("rates?window=attempt:", "/window"),
        ("updates?limit=many", "/limit"),
        ("rates?quantity=tokens", "/quantity"),
        ("rates?time=lunch", "/time"),
        ("rates?time=wall,update", "/time"),
        ("rates?window=week", "/window"),
        ("exposure?integers=words", "/integers"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(small: TestClient, query: str, pointer: str) -> None:
    assert_refused(small.get(f"{RUN}/{query}"), 422, "invalid_request", pointer)


def test_what_is_nowhere_and_what_takes_no_such_method_are_problems_too(small: TestClient) -> None:
    assert_refused(small.get("/v1/nothing"), 404, "not_found")
    assert_refused(small.delete(RUN), 405, "method_not_allowed")
    assert_refused(small.get(f"{RUN}/events", headers={"Accept": "text/html"}), 406, "not_acceptable")
    assert_refused(small.request("BREW", "/healthz"), 405, "method_not_allowed")
    assert_refused(small.get("/v1/projects//runs/demo"), 404, "not_found")
    assert_refused(small.get(f"{RUN}/"), 404, "not_found")


def test_one_bad_event_never_blocks_the_others(small: TestClient) -> None:
    blocks = {
        "updates": columns(101, {11: "applied"}, 0),
        "passes": {"seq": [102], "update": [12], "stream": ["train"], "epoch": [0], "start": [9], "stop": [4]},
    }
    receipt = small.post(EVENTS, json=batch(0, **blocks)).json()
    assert (receipt["accepted"], len(receipt["rejected"])) == (1, 1)
    assert receipt["rejected"][0]["seq"] == 102


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_batches_are_taken(small: TestClient, encoding: str) -> None:
    first = {"gzip": 201, "zstd": 301}[encoding]
    plain = json.dumps(batch(0, updates=columns(first, {first: "applied"}, 0))).encode()
    half = len(plain) // 2
    pack = gzip.compress if encoding == "gzip" else zstandard.compress
    assert post_raw(small, pack(plain[:half]) + pack(plain[half:]), **{"Content-Encoding": encoding}).json()["accepted"] == 1
