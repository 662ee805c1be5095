"""`legroom monitor --serve`: the monitor in a browser, on this machine only.

- The server listens on the loopback address, and every request needs the token in the URL. Other users of the machine
  can reach the port, but do not know the token.
- A request whose `Host` is not a loopback name is refused. Otherwise, a website could resolve its own name to this
  machine and read the answers (DNS rebinding).
- Only GET and HEAD are answered, and nothing can be changed.
- The page receives data as JSON and sets it as text, so names of processes cannot add elements to the page.
"""

import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs

from legroom.errors import UsageError
from legroom.log import log
from legroom.show.common.html_page import fill_template
from legroom.show.monitor.history import History
from legroom.show.monitor.snapshot import Sampler

ADDRESS = "127.0.0.1"
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
WAIT_SECONDS = 2.0
"""The maximum time in seconds that a request waits for new data before it receives the previous data."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the token is in the address
    "X-Content-Type-Options": "nosniff",
}


class Readings:
    """The state of the machine, which all browsers share. The state is read when a browser requests it, but at most
    once per `interval`.
    """

    def __init__(self, sampler: Sampler, interval: float) -> None:
        self.interval = interval
        self._sampler = sampler
        self._history = History()
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._document: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Return the JSON of `legroom monitor --json`, with the `history` of each bar."""
        if self._lock.acquire(timeout=WAIT_SECONDS if self._document is not None else -1):
            try:
                if time.monotonic() - self._read_at >= self.interval * 0.9:
                    snapshot = self._sampler.read()
                    self._history.add(snapshot)
                    self._document = {**snapshot.as_json(), "history": self._history.as_json()}
                    self._read_at = time.monotonic()
            finally:
                self._lock.release()
        assert self._document is not None
        return self._document


def page(document: dict[str, Any], *, interval: float) -> str:
    name = escape(str(document["host"]["name"]))
    return fill_template(
        __package__,
        title=f"legroom monitor · {name}" if name else "legroom monitor",
        style="page.css",
        scripts=("page.js",),
        name="state",
        data={"interval": interval, "document": document},
        requests_own_server=True,
    )


class MonitorServer:
    def __init__(self, sampler: Sampler, *, port: int = 0, interval: float = 1.0) -> None:
        """Create the server. `port` 0 selects a free port."""
        self.token = secrets.token_urlsafe(24)
        readings = Readings(sampler, interval)

        class Handler(_Handler):
            token = self.token
            answers: ClassVar[dict[str, Callable[[], tuple[str, str]]]] = {
                "/": lambda: ("text/html", page(readings.document(), interval=interval)),
                "/data": lambda: ("application/json", json.dumps(readings.document())),
            }

        try:
            self._server = _Server((ADDRESS, port), Handler)
        except OSError as error:
            raise UsageError(
                f"Cannot use port {port}: {error.strerror or error}. Choose another port with `--port`, or omit `--port` "
                "to use a free port."
            ) from None
        self.port = int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Answer requests until `stop` is called on another thread, or until Ctrl-C."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        self._server.server_close()

    def stop(self) -> None:
        """Stop `run`, which must be running on another thread."""
        self._server.shutdown()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # A browser closed a connection.
        log.debug("A request to the monitor failed.", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    token: str
    answers: ClassVar[dict[str, Callable[[], tuple[str, str]]]]
    timeout = 10.0  # a connection without a request
    server_version, sys_version = "legroom", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _refuse_method(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "This server is read-only.\n")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method  # noqa: N815

    def _answer(self, *, with_body: bool) -> None:
        path, _, query = self.path.partition("?")
        answer = self.answers.get(path)
        if not _LOOPBACK.fullmatch(self.headers.get("Host", "")):
            self._send(
                HTTPStatus.FORBIDDEN,
                "text/plain",
                "Refused: use the address 127.0.0.1.\n",
                with_body=with_body,
            )
        elif not hmac.compare_digest(_token_in(query).encode(), self.token.encode()):
            self._send(
                HTTPStatus.FORBIDDEN,
                "text/plain",
                "Refused: the token is missing or wrong. Use the address that `legroom monitor --serve` printed.\n",
                with_body=with_body,
            )
        elif answer is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "There is no such page.\n", with_body=with_body)
        else:
            kind, text = answer()
            self._send(HTTPStatus.OK, kind, text, with_body=with_body)

    def _send(self, status: HTTPStatus, kind: str, text: str, *, with_body: bool = True) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        # A log of the requests would show the token.
        ...


def _token_in(query: str) -> str:
    try:
        return parse_qs(query, max_num_fields=10).get("token", [""])[0]
    except ValueError:
        return ""
