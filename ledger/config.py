"""Settings of the service: read once from flags and `LEDGER_…` variables, frozen, and given to everything below as values."""

import ipaddress
import re
from typing import Literal

from platformdirs import user_data_path
from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MEBIBYTE_BYTES = 2**20
DATABASE_PATTERN = re.compile(r"sqlite:///.+|postgres(ql)?(\+psycopg)?://.+")


def default_database_url() -> str:
    """The embedded database in the user's data directory."""
    return f"sqlite:///{user_data_path('training-ledger') / 'ledger.db'}"


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a server bound to that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Settings(BaseSettings):
    """Everything about the service that may differ from one installation to the next."""

    model_config = SettingsConfigDict(env_prefix="LEDGER_", frozen=True, extra="forbid")

    database_url: str = Field(
        default_factory=default_database_url,
        description="Where the ledger is kept: `sqlite:///PATH` (embedded, upgraded at start) or `postgresql+psycopg://…`.",
    )
    host: str = Field(default="127.0.0.1", description="Address that the server binds to.")
    port: int = Field(default=8400, ge=0, le=65535, description="Port that the server binds to; 0 takes a free one.")
    workers: int = Field(default=1, ge=1, le=64, description="Server processes.")
    unprotected_network: bool = Field(
        default=False,
        description="Allow an address that other machines can reach: whoever reaches it may read and write everything.",
    )
    max_body_bytes: int = Field(
        default=16 * MEBIBYTE_BYTES, ge=1024, description="Largest request body as sent; a larger one is refused with 413."
    )
    max_decompressed_bytes: int = Field(
        default=64 * MEBIBYTE_BYTES, ge=1024, description="Largest request body after decompression; a larger one is refused with 413."
    )
    queue_batches: int = Field(
        default=64, ge=1, le=4096, description="Batches that may wait for their commit; past it the answer is 503 with Retry-After."
    )
    grace_seconds: float = Field(
        default=60.0, ge=0, description="Time that a rank may lag behind its peers before it is reported as missing."
    )
    read_wait_seconds: float = Field(
        default=5.0, ge=0, le=60, description="Longest time that a report waits for events already acknowledged, before it answers 503."
    )
    projection_interval_seconds: float = Field(
        default=0.5, gt=0, le=60, description="Pause between rounds of the background projection when nothing asks for it."
    )
    metrics_cache_seconds: float = Field(
        default=5.0, ge=0, description="Pause between readings of the ledger in the background; 0 reads all of it at each scrape."
    )
    metrics_max_runs: int = Field(
        default=200, ge=0, description="Most runs that a scrape holds; the others are counted by `training_ledger_omitted_runs`."
    )
    metrics_keep_seconds: float = Field(
        default=86400.0, ge=0, description="Time that a run stays in scrapes after its last entry; an ending is an entry."
    )
    log_format: Literal["json", "console"] = Field(default="json", description="Form of the log lines on standard error.")

    @field_validator("database_url")
    @classmethod
    def _know_the_database(cls, address: str) -> str:
        if not DATABASE_PATTERN.fullmatch(address):
            raise ValueError("an address is sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE")
        return address

    @model_validator(mode="after")
    def _refuse_open_networks(self) -> "Settings":
        if not is_loopback(self.host) and not self.unprotected_network:
            raise ValueError(
                f"{self.host} can be reached by other machines, and the ledger has no access control: "
                "bind to 127.0.0.1, or set LEDGER_UNPROTECTED_NETWORK=true if something else protects the network"
            )
        return self
