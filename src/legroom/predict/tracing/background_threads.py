"""Restarts the background threads of a script in a fork, because a fork inherits only the thread that called `fork`.

For example, `SummaryWriter` and `logging.handlers.QueueListener` pass their records to a thread. Without this thread,
the queue of records would become full, and the script would wait forever.

Most background threads run a loop that waits for work, so calling their function again continues their work. A thread
that is neither a daemon thread nor a thread of a `ThreadPoolExecutor` may do its work only once, so it is not restarted.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import thread as _pool

from legroom.predict.tracing.pause_gc import instances_of


def background_threads() -> list[threading.Thread]:
    """Return the threads to restart in a fork. Call this function before the fork, which marks them as finished."""
    pool_threads = set(_pool._threads_queues)
    this = threading.current_thread()  # the fork inherits this thread
    return [
        thread
        for thread in threading.enumerate()
        if (thread.daemon or thread in pool_threads)
        and thread is not this
        and not isinstance(thread, threading._DummyThread)
    ]


def restart(threads: Iterable[threading.Thread]) -> None:
    threads = list(threads)
    if not threads:
        return
    for condition in instances_of(threading.Condition):
        condition._waiters.clear()  # the waiting threads do not exist here, and would receive the next notification
    for thread in threads:
        threading.Thread(target=thread.run, name=thread.name, daemon=True).start()
