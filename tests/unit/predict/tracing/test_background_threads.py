"""Background threads that continue in a fork."""

import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from legroom.predict.tracing.background_threads import background_threads, restart

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_daemon_threads_and_pool_threads_are_restarted_except_the_current_thread() -> None:
    stop, found = threading.Event(), queue.Queue[list[str]]()
    daemon = threading.Thread(target=stop.wait, name="daemon", daemon=True)
    other = threading.Thread(target=stop.wait, name="other")
    for thread in (daemon, other):
        thread.start()
    current = threading.Thread(
        target=lambda: found.put([thread.name for thread in background_threads()]),
        name="current",
        daemon=True,
    )
    with ThreadPoolExecutor(1, "pool") as pool:
        pool.submit(int).result()
        current.start()
        names = found.get(timeout=10)
    stop.set()
    other.join()
    assert {"daemon", "pool_0"} <= set(names)
    assert not {"other", "current", "MainThread"} & set(names)


def test_a_restarted_thread_receives_the_next_item() -> None:
    requests, replies = queue.Queue[int](), queue.Queue[int]()

    def work() -> None:
        while True:
            replies.put(requests.get() + 1)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.1)  # until the thread waits for an item
    child = os.fork()
    if child == 0:
        code = 1
        try:
            restart([thread])
            requests.put(1)
            code = 0 if replies.get(timeout=10) == 2 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
