"""A chat-completions server for tests, on loopback, that does to its clients what real servers do.

A script looks at each request and returns what happens to it: an answer, any other HTTP reply, silence, a reply that
is cut or trickles, a connection that is reset. What came in and what went out is kept.
"""

from __future__ import annotations

import http.server
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A request as it came in.

    Attributes:
        number: From 0, in order of arrival.
        path: Of the URL.
        headers: By lower-case name.
        payload: Its JSON.
    """

    number: int
    path: str
    headers: Mapping[str, str]
    payload: dict[str, Any]

    @property
    def identity(self) -> str:
        """The whole request as text, for comparing requests."""
        return json.dumps(self.payload, sort_keys=True)


@dataclass(frozen=True)
class Answer:
    """A chat completion; a field that is None is left out."""

    content: Any
    usage: Any = field(default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107})
    finish_reason: Any = "stop"
    message: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> bytes:
        """Return its bytes."""
        message = {"role": "assistant", "content": self.content, **self.message}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        data = {"object": "chat.completion", "choices": [choice]}
        return json.dumps(data if self.usage is None else {**data, "usage": self.usage}).encode()


@dataclass(frozen=True)
class Raw:
    """Any HTTP reply."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hang:
    """Nothing, for as long as the server runs."""


@dataclass(frozen=True)
class Cut:
    """The first half of an answer under a header that promises all of it."""


@dataclass(frozen=True)
class Trickle:
    """An answer that comes a byte at a time, and never all of it."""


@dataclass(frozen=True)
class Reset:
    """A connection that is reset instead of answered."""


Behaviour = Answer | Raw | Hang | Cut | Trickle | Reset
Script = Callable[[Request], Behaviour]


class ProtocolServer:
    """The running server.

    Attributes:
        url: ``base_url`` for clients.
        script: What happens to requests; may be exchanged at any time.
        requests: What came in, in order.
        answered: Requests that were answered with a whole completion.
        hanging: Requests that are kept waiting.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.answered: list[Request] = []
        self.hanging: list[Request] = []
        self.closing = threading.Event()
        self._changed = threading.Condition()
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.owner = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def arrived(self, path: str, headers: Mapping[str, str], payload: dict[str, Any]) -> Request:
        """Keep a request."""
        with self._changed:
            request = Request(len(self.requests), path, headers, payload)
            self.requests.append(request)
            self._changed.notify_all()
            return request

    def note(self, place: list[Request], request: Request) -> None:
        """Keep what became of a request."""
        with self._changed:
            place.append(request)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 300.0) -> None:
        """Return once a condition on what was kept holds.

        Raises:
            TimeoutError: If it does not within the time.
        """
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"{len(self.requests)} requests, {len(self.hanging)} hanging after {timeout_s} s")

    def close(self) -> None:
        """Stop, and let go of whoever hangs."""
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def serve(script: Script) -> Iterator[ProtocolServer]:
    """Run a server for the length of a ``with`` block."""
    server = ProtocolServer(script)
    try:
        yield server
    finally:
        server.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        owner: ProtocolServer = self.server.owner  # type: ignore[attr-defined]
        payload = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = owner.arrived(self.path, headers, payload)
        behaviour = owner.script(request)
        try:
            self._behave(owner, request, behaviour)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client went away, as timeouts and kills make it

    def _behave(self, owner: ProtocolServer, request: Request, behaviour: Behaviour) -> None:
        if isinstance(behaviour, Answer):
            owner.note(owner.answered, request)  # before it leaves: whoever is answered can be found here
            self._reply(200, behaviour.body(), {"content-type": "application/json"})
        elif isinstance(behaviour, Raw):
            self._reply(behaviour.status, behaviour.body, behaviour.headers)
        elif isinstance(behaviour, Hang):
            owner.note(owner.hanging, request)
            owner.closing.wait()
            self.close_connection = True
        elif isinstance(behaviour, Cut):
            body = Answer("cut short").body()
            self._reply(200, body[: len(body) // 2], {}, promised=len(body))
            self.close_connection = True
        elif isinstance(behaviour, Trickle):
            self._trickle(owner)
        else:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()  # with no time to linger: a reset
            self.close_connection = True

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str], promised: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body) if promised is None else promised))
        self.end_headers()
        self.wfile.write(body)

    def _trickle(self, owner: ProtocolServer) -> None:
        self._reply(200, b"", {}, promised=1_000_000)
        while not owner.closing.wait(0.02):
            self.wfile.write(b" ")
        self.close_connection = True

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionResetError, BrokenPipeError, ValueError):  # a socket that Reset closed can't be flushed
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            return

    def log_message(self, format: str, *args: object) -> None:
        return
