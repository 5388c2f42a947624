"""Settings: frozen, described, and refusing what would be unsafe."""

import pytest
from pydantic import ValidationError

from ledger.config import Settings, is_loopback


@pytest.mark.parametrize(("host", "safe"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("ledger", False)])
def test_loopback(host: str, safe: bool) -> None:
    assert is_loopback(host) is safe


def test_an_open_network_needs_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="can be reached by other machines"):
        Settings(host="0.0.0.0")
    monkeypatch.setenv("LEDGER_UNPROTECTED_NETWORK", "true")
    assert Settings(host="0.0.0.0").host == "0.0.0.0"


def test_settings_are_frozen_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_PORT", "9000")
    settings = Settings()
    assert settings.port == 9000
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_default_database_lies_in_the_users_data_folder() -> None:
    assert Settings().database_url.startswith("sqlite:///")
    assert "training-ledger" in Settings().database_url
