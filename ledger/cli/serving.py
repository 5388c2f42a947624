"""`ledger serve`: the service itself."""

import os
import signal
import socket
import sys
from types import FrameType
from typing import Annotated

import typer
import uvicorn
from uvicorn.supervisors import Multiprocess

from ledger.app import SchemaOutdated, create_app, open_store
from ledger.cli.sources import UNREACHABLE, DatabaseUrl, fail, failures_told, settings_of
from ledger.config import Settings

FACTORY = "ledger.app:from_environment"
BACKLOG = 2048
STOP_SECONDS = 15


def serve(
    host: Annotated[str | None, typer.Option(help="Address to bind to.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind to; 0 takes a free one.", show_default="8400")] = None,
    workers: Annotated[int | None, typer.Option(help="Server processes.", show_default="1")] = None,
    database_url: DatabaseUrl = None,
    unprotected_network: Annotated[
        bool | None, typer.Option("--unprotected-network", help="Allow an address that other machines can reach.")
    ] = None,
) -> None:
    """Run the service. Every setting can also be given as LEDGER_….

    Exit codes: 0 stopped, 2 a setting cannot be, 3 the database or the address cannot be used.
    """
    settings = settings_of(host=host, port=port, workers=workers, database_url=database_url, unprotected_network=unprotected_network)
    try:
        # Opened once before the server starts: what is wrong is told in a sentence, and processes need not race to upgrade.
        with failures_told():
            open_store(settings).engine.dispose()
    except SchemaOutdated as error:
        fail(UNREACHABLE, str(error))
    listener = _listen(settings)
    address = f"[{settings.host}]" if ":" in settings.host else settings.host
    typer.echo(f"Training Ledger on http://{address}:{listener.getsockname()[1]}  (API: /docs, metrics: /metrics)", err=True)
    _run(settings, listener)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is said outright: asyncio switches Nagle's delay off only on sockets that name it, and with the delay every
    # answer on a connection that is kept open waits some 40 ms for the acknowledgement of its own headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        fail(UNREACHABLE, f"{settings.host}:{settings.port} cannot be bound: {error.strerror or error}")


def _stopped(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _run(settings: Settings, listener: socket.socket) -> None:
    if settings.workers == 1:
        # The server sends itself the signal again when it has ended in good order; without a handler that would count as a crash.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stopped)
        config = uvicorn.Config(create_app(settings), access_log=False, log_level="warning", timeout_graceful_shutdown=STOP_SECONDS)
        uvicorn.Server(config).run(sockets=[listener])
        return
    for name, value in settings.model_dump().items():
        os.environ[f"LEDGER_{name.upper()}"] = str(value)
    config = uvicorn.Config(
        FACTORY,
        factory=True,
        workers=settings.workers,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    Multiprocess(config, sockets=[listener]).run()
