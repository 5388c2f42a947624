"""How a request reaches the server: one connection that is kept, a bounded wait, nothing but the standard library."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - a look-up of an address would import it, and a process may fork meanwhile
import http.client
import zlib
from collections.abc import Mapping
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

GZIP_FROM_BYTES = 1024
ANSWER_BYTES = 16 << 20
DEFAULT_PORTS = {"http": 80, "https": 443}


class Answer(NamedTuple):
    """What came back; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unreachable(Exception):
    """No answer came back; the request may or may not have been carried out."""


class Transport(Protocol):
    """A way to the server."""

    def request(self, method: str, path: str, body: bytes, timeout_seconds: float) -> Answer:
        """Send a JSON body and give the answer. Raises: Unreachable."""

    def close(self) -> None:
        """Let go of the connection."""


class HttpTransport:
    """HTTP over one connection that is kept for many requests. Only one thread may use it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise ValueError(f"the ledger's address is http://… or https://…, not {url!r}")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or DEFAULT_PORTS[parts.scheme]
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "ledger-client"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._compress = True
        self._connection: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, body: bytes, timeout_seconds: float) -> Answer:
        """Send, over the kept connection if there is one; a connection that the server had closed meanwhile is replaced once."""
        headers = dict(self._headers)
        sent = body
        if self._compress and len(body) >= GZIP_FROM_BYTES:
            compressor = zlib.compressobj(level=1, wbits=31)
            sent = compressor.compress(body) + compressor.flush()
            headers["Content-Encoding"] = "gzip"
        kept = self._connection is not None
        try:
            answer = self._exchange(method, path, sent, headers, timeout_seconds)
        except (http.client.RemoteDisconnected, ConnectionError, http.client.CannotSendRequest) as error:
            self.close()
            if not kept:
                raise Unreachable(str(error) or type(error).__name__) from error
            answer = self._again(method, path, sent, headers, timeout_seconds)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise Unreachable(str(error) or type(error).__name__) from error
        if answer.status == 415 and "Content-Encoding" in headers:
            self._compress = False
            return self.request(method, path, body, timeout_seconds)
        return answer

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _again(self, method: str, path: str, body: bytes, headers: dict[str, str], timeout_seconds: float) -> Answer:
        try:
            return self._exchange(method, path, body, headers, timeout_seconds)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise Unreachable(str(error) or type(error).__name__) from error

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str], timeout_seconds: float) -> Answer:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=timeout_seconds)
        self._connection.timeout = timeout_seconds
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_seconds)
        self._connection.request(method, self._prefix + path, body, headers)
        response = self._connection.getresponse()
        content = response.read(ANSWER_BYTES)
        answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)
        if response.will_close or not response.isclosed():
            self.close()
        return answer
