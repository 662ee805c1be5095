"""A script behaves the same under `legroom run` and under `python`."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict

import pytest
from tests.system.conftest import free_port

from legroom.memory.annotations import RunEnded
from legroom.memory.capture.capture import read_capture
from legroom.memory.events import Alloc, Oom

GPU = ("--gpu", "64MiB")


def exit_facts(tmp_path, name="train.legroom"):
    capture = read_capture(tmp_path / name)
    endings = [event for event in capture.events if isinstance(event, RunEnded)]
    return {**asdict(endings[-1]), "truncated": capture.truncated}


def test_the_capture_is_complete_after_os_exit(write, legroom_in_new_interpreter, tmp_path):
    done = legroom_in_new_interpreter(
        "run", *GPU, write("import os\nprint('working', flush=True)\nos._exit(5)")
    )
    assert (done.returncode, done.stdout) == (5, "working\n")
    assert "Exited via os._exit(5)" in done.stderr
    assert exit_facts(tmp_path)["exit_code"] == 5
    assert not exit_facts(tmp_path)["truncated"]


def test_torch_is_not_imported_for_a_script_without_torch(write, legroom_in_new_interpreter, tmp_path):
    source = "import sys\nprint('imported' if 'tor' + 'ch' in sys.modules else 'not imported')"
    done = legroom_in_new_interpreter("run", write(source))
    assert (done.returncode, done.stdout) == (0, "not imported\n")
    assert done.stderr == "legroom: The script did not import torch, so there is no memory to report.\n"
    assert not list(tmp_path.glob("*.legroom"))


@pytest.mark.parametrize(
    "words", [["train.py"], ["folder"], ["-m", "folder"], ["-m", "train"], ["/dev/stdin"]]
)
def test_a_comment_about_torch_does_not_import_torch(write, legroom_in_new_interpreter, tmp_path, words):
    source = "# no torch\nimport sys\nif __name__ == '__main__':\n    print('torch' in sys.argv)\n"
    (tmp_path / "folder").mkdir()
    for name in ("train.py", "folder/__init__.py", "folder/__main__.py"):
        write(source, name)
    done = legroom_in_new_interpreter("run", *words, input=source)
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert done.stderr == "legroom: The script did not import torch, so there is no memory to report.\n"
    assert not list(tmp_path.glob("*.legroom"))


def test_a_module_with_a_syntax_error_is_not_recorded(write, legroom_in_new_interpreter, tmp_path):
    write("import torch\nx = (\n", "wrong.py")
    done = legroom_in_new_interpreter("run", "-m", "wrong")
    assert done.returncode == 1
    assert done.stderr.startswith('  File "')
    assert done.stderr.endswith("SyntaxError: '(' was never closed\n")
    assert not list(tmp_path.glob("*.legroom"))


def test_recording_starts_when_another_module_imports_torch(write, legroom_in_new_interpreter, tmp_path):
    write("import torch\nx = torch.zeros(1 << 20)\nx = x * 2\n", "helper.py")
    source = """
        import atexit, importlib.util
        atexit.register(print, "handler")
        importlib.util.find_spec("tor" + "ch")  # as a library that checks for torch does
        import helper
        raise SystemExit(7)
    """
    done = legroom_in_new_interpreter("run", write(source))
    assert (done.returncode, done.stdout) == (7, "handler\n")
    assert "Exited with code 7" in done.stderr
    assert "Peak memory: 8.0 MiB" in done.stderr
    assert exit_facts(tmp_path)["exit_code"] == 7


def test_os_exit_skips_exit_handlers_as_in_python(write, legroom):
    done = legroom("run", *GPU, write("import os, atexit\natexit.register(print, 'handler')\nos._exit(0)"))
    assert "handler" not in done.stdout


def test_exit_handlers_run_on_the_virtual_gpu_and_before_the_report(write, legroom):
    source = """
        import atexit, sys, torch
        x = torch.ones(3, device="cuda")
        @atexit.register
        def save():
            torch.cuda.synchronize()
            print("saved on", x.device, file=sys.stderr)
    """
    done = legroom("run", *GPU, write(source))
    assert done.returncode == 0
    assert done.stderr.index("saved on cuda:0") < done.stderr.index("Finished in")


def test_threads_are_joined_and_recorded(write, legroom):
    source = """
        import threading, time, torch
        def work():
            time.sleep(0.5)
            torch.zeros(4 << 20, device="cuda")
        threading.Thread(target=work).start()
    """
    done = legroom("run", *GPU, write(source))
    assert "Peak memory: 16.0 MiB" in done.stderr


def test_a_forked_child_prints_no_report_and_does_not_change_the_capture(write, legroom, tmp_path):
    source = """
        import os, sys, torch
        x = torch.zeros(1 << 20, device="cuda")
        pid = os.fork()
        if pid == 0:
            y = torch.zeros(8 << 20, device="cuda")
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = legroom("run", *GPU, write(source))
    assert (done.returncode, done.stdout) == (0, "7\n")
    assert done.stderr.count("Finished in") == 1
    assert "Peak memory: 4.0 MiB" in done.stderr
    assert not exit_facts(tmp_path)["truncated"]


def test_a_forked_child_that_fails_prints_its_own_traceback(write, legroom):
    source = """
        import os
        pid = os.fork()
        if pid == 0:
            1 / 0
        os.waitpid(pid, 0)
    """
    done = legroom("run", *GPU, write(source))
    assert done.returncode == 0
    assert done.stderr.count("ZeroDivisionError: division by zero") == 1
    assert "legroom/observe" not in done.stderr
    assert done.stderr.count("Recorded in") == 1


DATASET = """
    import sys, torch
    from torch.utils.data import DataLoader, Dataset
    class Squares(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return torch.tensor([float(index) ** 2])
    if __name__ == "__main__":
        for context in sys.argv[1:]:
            loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=context)
            print(sum(batch.cuda().sum().item() for batch in loader))
"""


def test_forked_and_spawned_loader_workers_find_the_classes_of_the_script(write, legroom):
    done = legroom("run", *GPU, write(DATASET), "fork", "spawn")
    assert (done.returncode, done.stdout) == (0, "140.0\n140.0\n")
    assert done.stderr.count("Finished") == 1


def test_a_spawned_child_finds_the_module(write, legroom, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    write(DATASET, "package/train.py")
    done = legroom("run", *GPU, "-m", "package.train", "spawn")
    assert (done.returncode, done.stdout) == (0, "140.0\n")
    assert (tmp_path / "train.legroom").exists()


def test_the_script_reads_stdin(write, legroom):
    done = legroom("run", *GPU, write("print(input().upper())"), input="hello\n")
    assert done.stdout == "HELLO\n"


WAITS = """
    import sys, time, torch
    x = torch.zeros(1 << 20, device="cuda")
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaning up", flush=True)
"""


def test_ctrl_c_reaches_the_script_and_the_report_is_printed(write, start, tmp_path):
    process = start("run", *GPU, write(WAITS))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "cleaning up\n"
    assert "Interrupted at train.py:" in err
    assert "Traceback" not in err
    assert exit_facts(tmp_path)["reason"] == "interrupted"


def test_the_capture_of_a_killed_run_can_be_reported(write, start, legroom, tmp_path):
    process = start("run", *GPU, write(WAITS))
    assert process.stdout.readline() == "ready\n"
    while not any(isinstance(event, Alloc) for event in read_capture(tmp_path / "train.legroom").events):
        time.sleep(0.1)  # recorded events are written even if no further events follow
    process.kill()
    process.communicate(timeout=60)
    done = legroom("report", "train.legroom")
    assert done.returncode == 0
    report = " ".join(done.stdout.split())
    assert report.startswith("The capture ends early, after")
    assert (
        "the file was cut off, or the process was killed. Peak memory: 4.0 MiB" in report
    )  # not "still running"


def test_a_read_only_directory_does_not_prevent_the_run(legroom, write, tmp_path):
    script = tmp_path / write("print('ran')")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    folder = next(
        str(each) for each in (locked, "/sys", "/proc") if not os.access(each, os.W_OK) or each == "/sys"
    )
    done = legroom("run", *GPU, str(script), cwd=folder)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "No capture is written. " in done.stderr
    assert "path with `-o`." in " ".join(done.stderr.split())
    assert not list(tmp_path.rglob("*.legroom"))


TRAINS_IN_THREADS = """
    import threading, torch
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train():
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to(device)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(60):
            optimizer.zero_grad()
            model(torch.randn(4, 8, device=device)).square().mean().backward()
            optimizer.step()

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("trained")
"""


@pytest.mark.parametrize("gpu", [(), GPU], ids=["host", "virtual"])
def test_several_threads_can_train_at_the_same_time(write, legroom, gpu):
    done = legroom("run", *gpu, write(TRAINS_IN_THREADS))
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "Memory leak" not in done.stderr
    assert "Several threads trained at the same time" in " ".join(done.stderr.split())


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a disk without free space."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a file system")
    try:
        with suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("options", [(), ("-o", "x.legroom"), ("--format", "json")], ids=["", "-o", "json"])
def test_a_script_runs_on_a_full_disk(legroom, write, tmp_path, full_disk, options):
    script = tmp_path / write("import sys\nprint('ran', file=sys.stderr)\nsys.exit(3)")
    done = legroom("run", *GPU, *options, str(script), cwd=str(full_disk))
    assert done.returncode == 3
    assert "ran" in done.stderr
    assert done.stderr.count("No capture is written. Cannot write") == 1
    assert "the disk is full" in " ".join(done.stderr.split())
    assert [each.name for each in full_disk.iterdir()] == ["filler"]


SPAWNS = """
    import sys, torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def train(rank, size, port):
        dist.init_process_group("nccl", f"tcp://127.0.0.1:{port}", rank=rank, world_size=1)
        torch.zeros(size, dtype=torch.uint8, device="cuda")

    if __name__ == "__main__":
        mp.spawn(train, args=tuple(map(int, sys.argv[1:])), nprocs=1)
"""


def test_the_memory_of_spawned_processes_is_reported(write, legroom, tmp_path):
    script = write(SPAWNS)
    done = legroom("run", *GPU, "--format", "json", script, str(8 << 20), str(free_port()))
    report = json.loads(done.stdout)
    assert (report["exit_code"], report["peak_allocated_bytes"]) == (0, 8 << 20)
    assert "this report is about rank 0, which the script started" in report["remarks"][0]
    done = legroom("run", *GPU, "--format", "json", script, str(1 << 30), str(free_port()))
    report = json.loads(done.stdout)
    assert (done.returncode, report["oom"]["line"], report["rank"]) == (1, 8, 0)
    assert any(type(event) is Oom for event in read_capture(tmp_path / report["capture"]).events)


def test_json_that_cannot_be_written_is_reported_and_changes_the_exit_code(write, legroom):
    with open("/dev/full", "w") as full:
        script = write("print('to stderr')")
        done = legroom("run", *GPU, "--format", "json", script, stdout=full)
    assert done.returncode == 2
    assert "legroom: Cannot write to standard output: the disk is full." in done.stderr
