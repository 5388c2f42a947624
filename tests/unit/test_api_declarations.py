"""Declarations that say the same are the same, however many words they take."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from ledger.api.schemas.declarations import AttemptChange, AttemptDeclaration, Resolution, RunDeclaration, plain


def read(model: type[BaseModel], **body: Any) -> dict[str, Any]:
    return plain(model.model_validate_json(json.dumps(body)))


def test_axes_that_are_left_out_are_one() -> None:
    full = {"dp": 2, "tp": 1, "pp": 1, "cp": 1, "order": "tp-cp-dp-pp", "cp_counts": "shard"}
    assert read(AttemptDeclaration, layout={"dp": 2}) == read(AttemptDeclaration, layout=full)


def test_null_is_left_out_but_for_resumed_from() -> None:
    assert read(RunDeclaration, conventions={"objective": None}, forked_from=None) == {"conventions": {}}
    assert read(AttemptDeclaration, resumed_from=None) == {"conventions": {}, "resumed_from": None}
    assert "resumed_from" not in read(AttemptDeclaration)
    assert read(AttemptChange, resumed_from=None) == {"resumed_from": None}


def test_free_values_are_kept_as_they_are() -> None:
    extra = {"a": [1, {"b": None}], "c": None, "d": 2.5}
    assert read(RunDeclaration, conventions={"extra": extra})["conventions"]["extra"] == extra


def test_the_documented_examples_are_taken() -> None:
    for model in (RunDeclaration, AttemptDeclaration, AttemptChange, Resolution):
        assert model.model_validate_json(json.dumps(model.model_json_schema()["examples"][0]))


@pytest.mark.parametrize("deep", [20, 150])
def test_nests_that_are_too_deep_are_refused(deep: int) -> None:
    value: Any = 1
    for _ in range(deep):
        value = [value]
    with pytest.raises(ValidationError):
        read(RunDeclaration, conventions={"extra": {"a": value}})
