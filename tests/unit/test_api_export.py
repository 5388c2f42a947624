"""The raw log: in the form that is accepted, or a refusal that says which forms there are."""

import json

import pytest

from ledger.api import journal_export
from ledger.api.journal_export import FORMS, NDJSON, PARQUET, ndjson_chunks, primed, wanted_form
from ledger.api.refusals import NotAcceptable


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("*/*", NDJSON),
        ("application/json", NDJSON),
        (NDJSON, NDJSON),
        (PARQUET, PARQUET),
        (f"text/html, {PARQUET};q=0.9", PARQUET),
        ("Application/X-NDJSON", NDJSON),
    ],
)
def test_the_first_form_that_can_be_made(accept: str, form: str) -> None:
    assert wanted_form(accept) == form


@pytest.mark.parametrize("accept", ["text/html", "", "image/png, text/csv", ";q=1"])
def test_other_forms_are_refused_with_the_list(accept: str) -> None:
    with pytest.raises(NotAcceptable, match=NDJSON):
        wanted_form(accept)


def test_without_pyarrow_parquet_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_export, "FORMS", {NDJSON: FORMS[NDJSON]})
    with pytest.raises(NotAcceptable, match=r"training-ledger\[parquet\]"):
        wanted_form(PARQUET)


def test_lines_are_whole_entries_and_name_what_is_not_finite() -> None:
    chunks = list(primed(ndjson_chunks(iter([{"offset": 1, "loss": float("nan")}, {"offset": 2}]))))
    assert [json.loads(line) for line in b"".join(chunks).splitlines()] == [{"offset": 1, "loss": "NaN"}, {"offset": 2}]
