"""The description is true: it has every call, and every answer is of the model that it declares."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet
import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from ledger.api import problems, refusals
from ledger.api.schemas import answers, courses, records
from ledger.api.schemas import lab as lab_answers
from ledger.domain import errors
from ledger.domain.errors import LedgerError
from ledger.domain.events import KINDS
from tests.contract.snapshot import KEPT, described, text_of
from worked_example import RUN, attempt

AT = "/v1/projects/{project}/runs/{run}"
CALLS = {
    ("get", "/v1/runs"),
    ("put", AT),
    ("get", AT),
    ("put", f"{AT}/attempts/{{attempt}}"),
    ("patch", f"{AT}/attempts/{{attempt}}"),
    ("post", f"{AT}/attempts/{{attempt}}/resolutions"),
    ("post", f"{AT}/attempts/{{attempt}}/events"),
    ("get", f"{AT}/events"),
    ("get", f"{AT}/exposure"),
    ("get", f"{AT}/coverage"),
    ("get", f"{AT}/updates"),
    ("get", f"{AT}/course"),
    ("get", f"{AT}/trajectory"),
    ("get", f"{AT}/objective"),
    ("get", f"{AT}/rates"),
    ("get", f"{AT}/findings"),
    ("get", f"{AT}/checkpoints"),
    ("get", f"{AT}/checkpoints/{{checkpoint}}/exposure"),
    ("get", f"{AT}/record"),
    ("get", "/v1/compare"),
    ("get", "/v1/lab/binomial"),
    ("get", "/v1/lab/ranks"),
    ("get", "/metrics"),
    ("get", "/metrics/runs"),
    ("get", "/healthz"),
    ("get", "/livez"),
    ("get", "/readyz"),
}
ANSWERS: dict[str, type[BaseModel]] = {
    "/v1/runs": answers.RunList,
    RUN: answers.RunAnswer,
    f"{RUN}/exposure": answers.Exposure,
    f"{RUN}/exposure?head=a1": answers.Exposure,
    f"{RUN}/coverage": answers.Coverage,
    f"{RUN}/updates": answers.UpdateList,
    f"{RUN}/updates?points=3": answers.UpdateList,
    f"{RUN}/course": courses.Course,
    f"{RUN}/course?first=2&last=6&points=2": courses.Course,
    f"{RUN}/trajectory": courses.AttemptTree,
    f"{RUN}/objective": answers.Objective,
    f"{RUN}/rates": answers.Rates,
    f"{RUN}/rates?quantity=updates&work=preserved&time=update,downtime&window=attempt:a2&per=accelerator": answers.Rates,
    f"{RUN}/findings": answers.FindingList,
    f"{RUN}/checkpoints": answers.CheckpointList,
    f"{RUN}/checkpoints/c4/exposure": answers.CheckpointExposure,
    f"{RUN}/record": records.Record,
    "/v1/compare?run=default/demo&run=default/twin&at=valid_targets&points=3": records.Comparison,
    "/v1/lab/binomial?p=0.5&n=20": lab_answers.BinomialAnswer,
    "/v1/lab/ranks?valid_targets=30&valid_targets=0&loss_sum=60&loss_sum=0": lab_answers.WeighedAnswer,
}


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    """The description."""
    described: dict[str, Any] = client.get("/openapi.json").json()
    return described


def test_the_description_has_every_call(document: dict[str, Any]) -> None:
    found = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert found == CALLS


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    found: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            found.update([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                collect(item)

    collect(document)
    assert found <= known
    assert "#/components/schemas/Problem" in found
    assert "HTTPValidationError" not in json.dumps(document)


def test_every_body_and_every_answer_has_an_example(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    names = {model.__name__ for model in ANSWERS.values()} | {"Receipt", "AttemptAnswer", "ChangeAnswer", "ResolutionAnswer"}
    names |= {"RunDeclaration", "AttemptDeclaration", "AttemptChange", "Resolution", "EventBatch", "Problem"}
    assert [name for name in sorted(names) if not schemas[name].get("examples")] == []


@pytest.mark.parametrize("path", ANSWERS)
def test_every_answer_is_of_its_declared_model(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200, response.text
    ANSWERS[path].model_validate_json(response.content, strict=True)


@pytest.mark.parametrize("model", [*ANSWERS.values(), answers.Receipt])
def test_every_example_is_of_its_model(model: type[BaseModel]) -> None:
    example = model.model_json_schema()["examples"][0]
    assert model.model_validate(example)


def test_writes_answer_with_their_declared_models(client: TestClient) -> None:
    answers.RunAnswer.model_validate_json(
        client.put(RUN, json={"conventions": {"objective": "token_mean", "gradient_reducer": "mean"}}).content
    )
    again = client.put(f"{RUN}/attempts/a1", json=attempt(1, None))
    assert again.status_code == 200
    answers.AttemptAnswer.model_validate_json(again.content, strict=True)
    answers.ChangeAnswer.model_validate_json(client.patch(f"{RUN}/attempts/a1", json={"ended": "crashed"}).content, strict=True)


def test_the_worked_example_comes_out(client: TestClient) -> None:
    exposure = client.get(f"{RUN}/exposure").json()
    targets = exposure["balance"]["valid_targets"]
    found = [targets[term] for term in ("attempted", "preserved", "pending", "lost_to_restart", "skipped", "dropped")]
    assert found == [360, 252, 0, 72, 36, 0]
    assert exposure["recomputed"]["valid_targets"] == 108
    assert exposure["accepted_checkpoint"] == {"checkpoint": "c7", "attempt": "a2", "update": 7}


def test_integers_can_be_written_as_text(client: TestClient) -> None:
    plain = client.get(f"{RUN}/exposure").json()
    written = client.get(f"{RUN}/exposure?integers=string").json()
    assert written["balance"]["valid_targets"]["attempted"] == str(plain["balance"]["valid_targets"]["attempted"])
    assert written["updates"]["attempted"] == "10"
    assert written["balance"]["valid_targets"]["complete"] is True


def test_the_log_comes_as_lines_and_as_parquet(client: TestClient, tmp_path: Any) -> None:
    lines = [json.loads(line) for line in client.get(f"{RUN}/events").text.splitlines()]
    assert len(lines) == client.get(RUN).json()["events"]
    reply = client.get(f"{RUN}/events", headers={"Accept": "application/vnd.apache.parquet"})
    assert reply.headers["content-type"] == "application/vnd.apache.parquet"
    (tmp_path / "log.parquet").write_bytes(reply.content)
    table = pyarrow.parquet.read_table(tmp_path / "log.parquet").to_pylist()
    assert [row["offset"] for row in table] == [line["offset"] for line in lines]
    assert [row["valid_targets"] for row in table] == [line.get("valid_targets") for line in lines]


def test_every_code_has_a_status_and_is_described(document: dict[str, Any]) -> None:
    classes = [
        item for module in (errors, refusals) for item in vars(module).values() if isinstance(item, type) and issubclass(item, LedgerError)
    ]
    assert {item.code for item in classes} == set(problems.STATUS)
    described = json.dumps(document)
    assert [code for code in problems.STATUS if code not in ("refused", "not_ready") and f"`{code}`" not in described] == []
    assert all(item.__doc__ for item in classes)


def test_health(client: TestClient) -> None:
    for path in ("/healthz", "/livez", "/readyz"):
        assert client.get(path).json() == {"status": "ok"}


def test_a_request_keeps_the_id_that_it_came_with(client: TestClient) -> None:
    assert client.get("/healthz", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert client.get("/healthz", headers={"X-Request-Id": "a b\x01"}).headers["x-request-id"] != "a b\x01"


def test_the_interface_changes_only_on_purpose() -> None:
    kept = json.loads(KEPT.read_text())
    found = json.loads(text_of(described()))
    differing = sorted(
        f"{part}: {name}"
        for part, now, then in (
            ("path", found["paths"], kept["paths"]),
            ("schema", found["components"]["schemas"], kept["components"]["schemas"]),
        )
        for name in now.keys() | then.keys()
        if now.get(name) != then.get(name)
    )
    assert differing == [], "if this is meant, run `python -m tests.contract.snapshot`"
    assert found == kept


def _fields(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, schema in document["components"]["schemas"].items():
        for field, described_ in schema.get("properties", {}).items():
            yield name, field, described_


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for part in schema.get(key, []):
            yield from _parts(part)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _parts(schema[key])


def test_every_integer_says_its_bounds(document: dict[str, Any]) -> None:
    unbounded = [
        f"{name}.{field}"
        for name, field, schema in _fields(document)
        for part in _parts(schema)
        if part.get("type") == "integer" and not {"minimum", "exclusiveMinimum"} & part.keys()
    ]
    assert unbounded == []


def test_every_field_of_a_body_is_described(document: dict[str, Any]) -> None:
    taken = {"RunDeclaration", "AttemptDeclaration", "AttemptChange", "Resolution", "EventBatch"}
    taken |= {"Conventions", "LayoutDeclaration", "Problem"}
    taken |= {kind.capitalize() for kind in KINDS}
    assert [f"{name}.{field}" for name, field, schema in _fields(document) if name in taken and not schema.get("description")] == []


def test_every_measure_says_its_unit(document: dict[str, Any]) -> None:
    columns = {(kind.name.capitalize(), column.name): column.unit for kind in KINDS.values() for column in kind.columns if column.unit}
    found = {(name, field): schema.get("description", "") for name, field, schema in _fields(document)}
    assert [place for place, unit in columns.items() if not found[place].endswith(f"in {unit}")] == []


def test_every_field_of_an_answer_is_described(document: dict[str, Any]) -> None:
    answered = {name for name, item in vars(answers).items() if isinstance(item, type) and issubclass(item, BaseModel)}
    assert [f"{name}.{field}" for name, field, schema in _fields(document) if name in answered and not schema.get("description")] == []
