"""The process that queries cuDNN: its answers, its crashes, and the setting that selects the library."""

import os
import pickle
import subprocess
import sys
import time

import pytest

from legroom.errors import UsageError
from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.convolution import cudnn_location
from legroom.observe.cuda_rules.convolution.cudnn_location import SETTING, library_paths
from legroom.observe.cuda_rules.convolution.cudnn_process import (
    MAX_CRASHES,
    Answer,
    CudnnProcess,
    check_setting,
    cudnn_process,
)
from legroom.observe.cuda_rules.convolution.recorded_table import ConvLayer, ConvQuery, convolution_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cuDNN is queried on Linux only")

LAYER = ConvLayer("float32", False, 64, 64, (16, 16), (3, 3), (1, 1), (1, 1), 1, False, (1, 1))
H200 = find_gpu("h200")
ABORTS_AT = 7
"""The batch size at which the fake library aborts."""
FAKE_WORKER = """
import os, socket, sys
from legroom.observe.cuda_rules.convolution import cudnn_worker

class FakeLibrary:
    def cudnnGetVersion(self):
        return 92100

class FakeCudnn:
    def __init__(self, functions, gpu):
        pass

    def workspaces(self, question, operation, c):
        if question.batch == ABORTS_AT:
            os.abort()
        return (question.batch, int(operation))

cudnn_worker.Cudnn = FakeCudnn
cudnn_worker.logs_skipped_kernels = lambda functions: True
cudnn_worker.serve(socket.socket(fileno=int(sys.argv[1])), FakeLibrary)
""".replace("ABORTS_AT", str(ABORTS_AT))


@pytest.fixture
def process():
    process = CudnnProcess([], command=[sys.executable, "-c", FAKE_WORKER])
    yield process
    process.close()


def ask(process, batch):
    return process.ask(ConvQuery(LAYER, batch, (16, 16)), convolution_of(LAYER, batch), H200)


def test_a_query_is_answered_for_all_three_operations(process):
    assert ask(process, 5) == Answer(92100, True, ((5, 10), (5, 12), (5, 11)))
    assert process.version == "9.21.0"
    assert not process.is_recorded_version


def test_a_library_that_aborts_leaves_this_process_alive_and_is_queried_again(process):
    assert ask(process, ABORTS_AT) is None
    assert ask(process, 5) is not None
    assert process.crashes == 1


@pytest.mark.slow
def test_a_library_that_keeps_crashing_is_no_longer_queried(process):
    for _ in range(MAX_CRASHES):
        assert ask(process, ABORTS_AT) is None

    assert ask(process, 5) is None
    assert process.crashes == MAX_CRASHES


def test_a_library_that_cannot_even_start_has_no_version():
    process = CudnnProcess([], command=[sys.executable, "-c", "import os; os.abort()"])

    assert process.version is None
    process.close()


def test_forks_share_the_process(process):
    ask(process, 5)
    before = process._process.pid

    assert os.waitpid(forked(lambda: ask(process, 8).sizes[0][0] == 8), 0)[1] == 0
    assert process._process.pid == before
    assert ask(process, 6).sizes[0] == (6, 10)


def test_forks_that_query_at_the_same_time_get_their_own_answers(process):
    def query_often(first):
        return lambda: all(ask(process, batch).sizes[0][0] == batch for batch in range(first, first + 50))

    pids = [forked(query_often(first)) for first in (100, 200, 300)]

    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]


@pytest.mark.slow
def test_a_crash_in_one_fork_does_not_affect_answers_to_others(process):
    ask(process, 5)
    os.waitpid(forked(lambda: ask(process, ABORTS_AT) is None), 0)

    assert ask(process, 6) is not None
    assert process.crashes == 0


def test_an_answer_that_a_killed_fork_left_unread_is_skipped(process):
    ask(process, 5)
    process._socket.send(pickle.dumps(((-1, 0), None)))
    time.sleep(0.1)

    assert ask(process, 6).sizes[0] == (6, 10)


def test_the_process_ends_when_its_script_is_killed():
    script = (
        "import os, sys\n"
        "from legroom.observe.cuda_rules.convolution.cudnn_process import CudnnProcess\n"
        f"process = CudnnProcess([], command=[sys.executable, '-c', {FAKE_WORKER!r}])\n"
        "print(process.version, process._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    version, pid = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    ).stdout.split()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)

    assert version == "9.21.0"
    assert not os.path.exists(f"/proc/{pid}")


def forked(check):
    """Fork a process that exits with 0 if `check()` is true. Return its process ID."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return pid


def test_the_process_loads_no_torch():
    code = "import sys, legroom.observe.cuda_rules.convolution.cudnn_worker; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# The setting


@pytest.fixture
def setting(monkeypatch):
    """Sets `LEGROOM_CUDNN`."""
    cudnn_process.cache_clear()
    yield lambda value: monkeypatch.setenv(SETTING, value)
    cudnn_process.cache_clear()


def installed(monkeypatch, tmp_path):
    """Simulate an installed cuDNN package, and return the path to its library."""
    library = tmp_path / "libcudnn.so.9"
    library.touch()
    monkeypatch.setattr(
        cudnn_location, "_packaged", lambda package, name: [str(library)] if package == "cudnn" else []
    )
    return str(library)


def test_off_disables_the_query(setting, monkeypatch, tmp_path):
    installed(monkeypatch, tmp_path)
    setting("off")

    check_setting()
    assert library_paths() == []
    assert cudnn_process() is None


def test_on_selects_the_installed_library(setting, monkeypatch, tmp_path):
    library = installed(monkeypatch, tmp_path)

    for value in ("on", ""):
        setting(value)
        check_setting()
        assert library in library_paths()


def test_a_path_selects_another_library(setting, tmp_path):
    library = tmp_path / "libcudnn.so.9"
    library.touch()
    setting(str(library))

    assert library_paths()[0] == str(library)


def test_a_file_that_does_not_exist_is_an_error(setting, tmp_path):
    setting("yes")

    with pytest.raises(UsageError) as error:
        check_setting()

    assert str(error.value) == (
        "LEGROOM_CUDNN='yes' is not valid, because the file does not exist. Set LEGROOM_CUDNN to `on`, `off`, or the "
        "path to libcudnn.so.9."
    )


def test_a_file_that_is_not_cudnn_is_an_error(setting, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("not a library")
    setting(str(file))

    with pytest.raises(UsageError, match="is not a usable cuDNN library"):
        check_setting()
