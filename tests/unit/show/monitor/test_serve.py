"""The web server of the monitor: loopback only, a token, read-only, and no HTML injection through process names."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from example_snapshots import GPUS, PROCESSES, RUN, sampler

from legroom.cli import main
from legroom.show.monitor.serve import MonitorServer, Readings

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J"


@pytest.fixture(scope="module")
def server() -> Iterator[MonitorServer]:
    hostile = {**PROCESSES, 4242: replace(PROCESSES[4242], command=HOSTILE, user=HOSTILE, name=HOSTILE)}
    run = replace(RUN, script=HOSTILE, finding=HOSTILE)
    serving = MonitorServer(sampler(gpus=GPUS, runs=(run,), processes=hostile))
    thread = threading.Thread(target=serving.run)
    thread.start()
    yield serving
    serving.stop()
    serving.close()
    thread.join()


def ask(
    server: MonitorServer, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def with_token(server: MonitorServer, path: str = "/data") -> str:
    return f"{path}?token={server.token}"


def test_the_address_is_loopback_and_has_a_token(server: MonitorServer) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", server.url)
    assert server._server.server_address[0] == "127.0.0.1"


def test_data_is_the_json_of_the_monitor_with_history(server: MonitorServer) -> None:
    status, body, headers = ask(server, with_token(server))
    document = json.loads(body)
    assert status == 200
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert document["schema"] == "legroom.monitor/1"
    assert document["history"]["gpu0.memory"][-1] == 55.0


@pytest.mark.parametrize("path", ["/", "/data", "/nothing"])
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%ff", "?" + "&a=1" * 50])
def test_a_wrong_token_is_rejected(server: MonitorServer, path: str, query: str) -> None:
    status, body, _ = ask(server, path + query)
    assert status == 403
    assert server.token not in body


@pytest.mark.parametrize(
    "host", ["attacker.example", "127.0.0.1.attacker.example", "localhost.evil:80", "", "10.0.0.1", "[::2]"]
)
def test_a_host_that_is_not_loopback_is_rejected(server: MonitorServer, host: str) -> None:
    status, body, _ = ask(server, with_token(server), host=host)
    assert status == 403
    assert "gpus" not in body


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1234", "LOCALHOST:9", "[::1]:80"])
def test_loopback_names_work_with_any_port(server: MonitorServer, host: str) -> None:
    """With `ssh -L`, the browser uses another port."""
    assert ask(server, with_token(server), host=host)[0] == 200


def test_a_request_without_a_host_is_rejected(server: MonitorServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(f"GET {with_token(server)} HTTP/1.0\r\n\r\n".encode())
        assert b" 403 " in connection.makefile("rb").readline()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_the_server_is_read_only(server: MonitorServer, method: str) -> None:
    status, _, headers = ask(server, with_token(server), method=method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


def test_head_has_no_body(server: MonitorServer) -> None:
    status, body, headers = ask(server, with_token(server), method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 100


@pytest.mark.parametrize("path", ["/../etc/passwd", "/data/", "/page.js", "/%2e%2e"])
def test_there_are_no_other_pages(server: MonitorServer, path: str) -> None:
    assert ask(server, with_token(server, path))[0] == 404


def test_the_page_is_self_contained_and_escapes_names(server: MonitorServer) -> None:
    status, body, headers = ask(server, with_token(server, "/"))
    assert status == 200
    assert "connect-src 'self'" in body
    assert "default-src 'none'" in body
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "<img" not in body
    assert "\x1b" not in body
    assert "\\u003cimg src=x" in body
    assert not re.search(r"(src|href)=[\"']?https?:", body)
    assert server.token not in body


def test_other_pages_still_block_all_requests() -> None:
    from legroom.show.common.html_page import fill_template

    made = fill_template("legroom.show.monitor", title="t", style="page.css", scripts=(), name="n", data={})
    assert "connect-src" not in made


def test_the_machine_is_read_at_most_once_per_interval() -> None:
    class Counting:
        reads = 0

        def read(self) -> object:
            Counting.reads += 1
            return sampler().read()

    readings = Readings(Counting(), 3600)  # type: ignore[arg-type]
    for _ in range(5):
        readings.document()
    assert Counting.reads == 1


def test_a_port_in_use_is_reported_in_one_line(
    server: MonitorServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["monitor", "--serve", "--port", str(server.port)]) == 2
    error = capsys.readouterr().err
    assert f"Cannot use port {server.port}" in error
    assert "`--port`" in error


@pytest.mark.parametrize("words", [["--port", "80"], ["--serve", "--once"], ["--serve", "--port", "70000"]])
def test_incompatible_options_are_usage_errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", *words]) == 2
    assert "--" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_the_server() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "legroom", "monitor", "--serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LEGROOM_LIVE": "off"},
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert errors.endswith("legroom: Stopped.\n")
    assert "Traceback" not in errors
