"""The process that loads the cuDNN library and answers queries about convolutions (see `cudnn_process`).

The process does not import torch.
"""

import pickle
import signal
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from legroom.observe.cuda_rules.convolution.cudnn_library import load_library
from legroom.observe.cuda_rules.convolution.cudnn_process import MAX_MESSAGE, TIMEOUT, Answer
from legroom.observe.cuda_rules.convolution.cudnn_query import OPERATIONS, Cudnn, logs_skipped_kernels


def main(paths: Sequence[str], descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the script handles Ctrl-C
    serve(socket.socket(fileno=descriptor), lambda: load_library(paths))


def serve(connection: socket.socket, load: Callable[[], Any | None]) -> None:
    # At the first query, `load` is called and returns cuDNN's functions.
    load = lru_cache(maxsize=1)(load)
    while message := connection.recv(MAX_MESSAGE):
        signal.alarm(2 * TIMEOUT)  # a query that hangs ends the process, even if the script is gone
        number, query = pickle.loads(message)
        connection.send(pickle.dumps((number, tuple(_answer(load(), query)))))
        signal.alarm(0)


def _answer(functions: Any | None, query: Any) -> Answer:
    if functions is None:
        return Answer(version=0)
    version = int(functions.cudnnGetVersion())
    if query is None:
        return Answer(version)
    conv_query, c, gpu = query
    cudnn = Cudnn(functions, gpu)
    sizes = tuple(cudnn.workspaces(conv_query, operation, c) for operation in OPERATIONS)
    return Answer(version, logs_skipped_kernels(functions), sizes)
