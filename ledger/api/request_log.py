"""One log line a request, under an id that the caller may give; what nobody expected ends here as a problem document."""

import re
import time
import uuid
from collections.abc import Callable

import structlog
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ledger.api.problems import refuse_status

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
Observe = Callable[[str, str, int, float], None]
"""Takes handler (the path's template), method, status and seconds of a request."""

log = structlog.get_logger("ledger.request")


class RequestLog:
    """Gives each request its id, times it, logs it, and answers 500 where a handler failed."""

    def __init__(self, app: ASGIApp, observe: Observe) -> None:
        self.app = app
        self.observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        given = request.headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope["ledger.request_id"] = request_id
        began, status = time.perf_counter(), 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_marked)
        except Exception:
            log.exception("failed", request_id=request_id, method=scope["method"], path=scope["path"])
            if status:
                raise
            await refuse_status(request, 500)(scope, receive, send_marked)
        finally:
            self._tell(scope, status, time.perf_counter() - began, request_id)

    def _tell(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        handler = getattr(scope.get("route"), "path_format", None) or "none"
        self.observe(handler, scope["method"], status, seconds)
        log.info(
            "request",
            request_id=request_id,
            method=scope["method"],
            path=scope["path"],
            handler=handler,
            status=status,
            seconds=round(seconds, 6),
        )
