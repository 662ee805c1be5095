"""`legroom estimate` on complete scripts."""

import contextlib
import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from legroom.cli import main

TRAINING = """
import argparse
import atexit
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

atexit.register(lambda: open("at_exit", "w").write("yes"))
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--workers", type=int, default=0)
arguments = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
data = TensorDataset(torch.randn(300, 256), torch.randint(0, 10, (300,)))
loader = DataLoader(data, arguments.batch_size, shuffle=True, num_workers=arguments.workers)
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
try:
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            torch.save(model.state_dict(), "checkpoint.pt")
            save_file(model.state_dict(), "checkpoint.safetensors")
            if loss.item() > 100:
                break
        open("epoch", "w").write("over")
finally:
    open("finished", "w").write("yes")
"""


def estimate(
    folder: Path, script: str, *words: str, gpu: str = "2GiB", before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the command in this process. The scripts still run in separate processes, which are forks of one process
    that has imported torch."""
    (folder / "train.py").write_text(script)
    command = ["estimate", "--gpu", gpu, "--format", "json", *before, "train.py", *words]
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        exit_code = main(command)
    return subprocess.CompletedProcess(command, exit_code, stdout.getvalue(), stderr.getvalue())


def answer_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def notes_of(answer: dict[str, Any]) -> list[str]:
    """Return the notes, except those about installed versions and validation."""
    common = ("The CUDA rules are based on", "No validation was traced")
    return [note for note in answer["notes"] if not note.startswith(common)]


def test_an_unmodified_script_is_estimated_and_leaves_no_files(tmp_path: Path) -> None:
    done = estimate(tmp_path, TRAINING, "--batch-size", "32", before=("--plan",))
    answer = answer_of(done)
    assert done.returncode == 0
    assert answer["verdict"] == "fits"
    assert (answer["batch_size"], answer["steps"], answer["mode"]) == (32, 2, "fake")
    largest = answer["max_batch_size"]
    assert largest > 10_000, "larger than the data set"
    assert answer["batch_setting"] == {
        "name": "--batch-size",
        "value": 32,
        "change": f"Use `--batch-size {answer['recommended_batch_size']}`",
    }
    assert 0.85 * largest < answer["recommended_batch_size"] <= largest
    assert answer["by_category"]["parameter"] >= (256 * 2048 + 2048 + 20480 + 10) * 4
    assert answer["top"][0]["file"].endswith("train.py")
    assert answer["options"]
    assert all(option["saves_bytes"] > 0 for option in answer["options"])
    assert sorted(os.listdir(tmp_path)) == ["train.py"], "no checkpoint, no finally, no exit handler"


@pytest.mark.parametrize(
    ("kept", "grows"),
    [
        ("kept.append(model[0](x.to(device)))", True),  # outputs with their autograd graphs
        ("before, previous = previous, model[0](x.to(device))", False),
        ("kept.append(loss.detach())", False),
    ],
)
def test_memory_that_grows_from_step_to_step_is_reported(tmp_path: Path, kept: str, grows: bool) -> None:
    script = TRAINING.replace(
        "            optimizer.zero_grad()\n", f"            optimizer.zero_grad()\n            {kept}\n"
    )
    script = script.replace("try:\n", "kept, previous, loss = [], None, torch.zeros(())\ntry:\n", 1)
    answer = answer_of(estimate(tmp_path, script, gpu="256MiB"))
    assert answer["verdict"] == "fits"
    if not grows:
        assert answer["growth"] is None
        return
    growth = answer["growth"]
    line = next(number for number, text in enumerate(script.splitlines(), 1) if kept in text)
    assert (Path(growth["file"]).name, growth["line"]) == ("train.py", line)
    assert growth["bytes"] == 64 * 2048 * 4 + 64 * 256 * 4  # the output, and the input that its graph retains
    free = 256 * 1024**2 - answer["peak_allocated_bytes"]
    assert growth["steps_left"] == pytest.approx(free / growth["bytes"], rel=0.1)
    assert answer["notes"][0] == (
        f"Memory grows by 576.0 KiB per step, allocated at train.py:{line}. If it continues to grow, memory runs out "
        f"after about {growth['steps_left']} steps"
    )


def test_the_batch_size_can_be_overridden(tmp_path: Path) -> None:
    small = answer_of(estimate(tmp_path, TRAINING, before=("--batch-size", "16")))
    large = answer_of(estimate(tmp_path, TRAINING, before=("--batch-size", "4096"), gpu="4GiB"))
    assert (small["batch_size"], large["batch_size"]) == (16, 4096)
    assert large["peak_allocated_bytes"] > small["peak_allocated_bytes"]


VALIDATION = TRAINING.replace(
    """        open("epoch", "w").write("over")
""",
    """
        model.eval()
        correct = 0
        with torch.no_grad():
            for x, y in DataLoader(data, VALIDATION_BATCH):
                wide = model[0](x.to(device)).repeat(1, VALIDATION_WIDTH)
                correct += wide.argmax(1).cpu().numpy().sum()
        print("accuracy", correct)
""",
)


def test_the_first_validation_batch_is_estimated_too(tmp_path: Path) -> None:
    training = json.loads(estimate(tmp_path, TRAINING).stdout)
    small, large = (
        json.loads(estimate(tmp_path, f"VALIDATION_BATCH, VALIDATION_WIDTH = {sizes}\n{VALIDATION}").stdout)
        for sizes in ((8, 1), (300, 100))
    )

    assert training["decided_by"] == small["decided_by"] == "training"
    assert small["peak_allocated_bytes"] == training["peak_allocated_bytes"]
    assert any("No validation was traced" in note for note in training["notes"])
    assert not any("No validation was traced" in note for note in small["notes"])

    assert large["decided_by"] == "validation"
    assert large["peak_allocated_bytes"] > 300 * 2048 * 100 * 4
    assert large["verdict"] == "fits"
    assert small["max_batch_size"] == training["max_batch_size"]


def test_the_next_epoch_of_a_new_loader_is_not_called_a_validation(tmp_path: Path) -> None:
    script = """
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(64, 512).cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for batch in DataLoader(torch.randn(256, 64), batch_size=64):
        model(batch.cuda()).sum().backward()
        optimizer.step()
    restored = torch.zeros(40 << 20, device="cuda")
    del restored
"""
    answer = answer_of(estimate(tmp_path, script, gpu="100MiB"))
    assert (answer["steps"], answer["verdict"], answer["max_batch_size"]) == (2, "does-not-fit", None)
    assert notes_of(answer) == ["The code after the training steps needs more memory than the training"]


def test_an_evaluation_that_the_trace_does_not_reach_is_noted(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn

model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(1000, 64).cuda()

def evaluate():
    model.eval()
    with torch.no_grad():
        return model(data).sum().item()

for epoch in range(3):
    for start in range(0, 1000, 8):
        model.train()
        model(data[start : start + 8]).sum().backward()
        optimizer.step()
"""
    evaluated = answer_of(estimate(tmp_path, f"{script}    evaluate()\n"))
    assert evaluated["notes"][0] == "The evaluation at train.py:9 was not traced and may need more memory"
    before = answer_of(estimate(tmp_path, script.replace("for epoch", "evaluate()\nfor epoch")))
    assert not any("was not traced and" in note for note in before["notes"])


@pytest.mark.parametrize("has_own_setting", [True, False])
def test_an_evaluation_with_its_own_batch_size_keeps_it(tmp_path: Path, has_own_setting: bool) -> None:
    script = VALIDATION
    if has_own_setting:
        option = '"--batch-size", type=int, default=64)'
        script = script.replace(
            option, f'{option}\nparser.add_argument("--test-batch-size", type=int, default=64)'
        )
    size = "arguments.test_batch_size" if has_own_setting else "arguments.batch_size"
    script = script.replace("VALIDATION_BATCH", size).replace("VALIDATION_WIDTH", "500")
    answer = answer_of(
        estimate(tmp_path, script, gpu="400MiB")
    )  # the evaluation needs 500 MiB for 64 samples
    assert (answer["verdict"], answer["decided_by"]) == ("does-not-fit", "validation")
    assert (answer["max_batch_size"] is None) is has_own_setting


def test_a_partial_last_batch_is_not_the_batch_size(tmp_path: Path) -> None:
    script = TRAINING.replace("(300", "(260").replace("default=64", "default=200")
    answer = answer_of(estimate(tmp_path, script, gpu="40MiB"))
    assert answer["batch_size"] == 200
    assert answer["batch_setting"]["value"] == 200
    full = answer_of(estimate(tmp_path, TRAINING, gpu="40MiB", before=("--batch-size", "200")))
    assert answer["peak_allocated_bytes"] == full["peak_allocated_bytes"]


def test_a_validation_with_gradients_is_estimated_with_two_autograd_graphs(tmp_path: Path) -> None:
    script = VALIDATION.replace("with torch.no_grad():", "if True:").replace(
        "correct += wide.argmax(1).cpu().numpy().sum()", "loss = wide.exp().sum()"
    )
    answer = answer_of(estimate(tmp_path, f"VALIDATION_BATCH, VALIDATION_WIDTH = 100, 100\n{script}"))
    assert answer["decided_by"] == "validation"
    assert answer["peak_allocated_bytes"] > 3 * 100 * 2048 * 100 * 4
    (note,) = [note for note in answer["notes"] if "no_grad" in note]
    assert note.startswith("The validation at train.py:")


def test_code_after_the_training_is_not_called_a_validation_loop(tmp_path: Path) -> None:
    after = """        torch.save(model.cpu(), "model.pt")
        model.cuda()
        raise ValueError("disk full")
"""
    failing = TRAINING.replace('        open("epoch", "w").write("over")\n', after)
    (note,) = notes_of(answer_of(estimate(tmp_path, failing)))
    assert note.startswith("Tracing the code after the training steps failed (train.py:")
    assert "ValueError: disk full" in note


def test_an_evaluation_before_the_training_is_not_estimated(tmp_path: Path) -> None:
    evaluated = """
with torch.no_grad():
    for x, y in DataLoader(data, 100):
        model(x.to(device))
try:
"""
    answer = answer_of(estimate(tmp_path, TRAINING.replace("\ntry:\n", evaluated), "--batch-size", "32"))
    assert (answer["batch_size"], answer["steps"]) == (32, 2)
    assert answer["by_category"]["optimizer state"] > 0


def test_prefetched_batches_do_not_count_as_steps(tmp_path: Path) -> None:
    """The Trainer of transformers fetches all batches of one accumulation before the first forward pass."""
    script = """
import torch
from torch import nn
from torch.utils.data import DataLoader
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
batches = iter(DataLoader(torch.randn(1000, 64), batch_size=20))
while ahead := [batch for batch, _ in zip(batches, range(5))]:
    for batch in ahead:
        model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    answer = answer_of(estimate(tmp_path, script))
    assert (answer["batch_size"], answer["steps"]) == (20, 2)
    assert answer["by_category"]["optimizer state"] > 0
    assert answer["max_batch_size"] < 1_000_000, "the batch size was changed"


def test_an_operation_without_a_fake_implementation_runs_on_the_cpu(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
@torch.library.custom_op("mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
twice.register_autograd(lambda context, gradient: gradient * 2)
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    twice(model(torch.randn(16, 64, device="cuda"))).sum().backward()
    optimizer.step()
"""
    answer = answer_of(estimate(tmp_path, script))
    assert (answer["mode"], answer["verdict"]) == ("cpu", "fits")
    assert "mine.twice, train.py:11: it has no fake implementation" in notes_of(answer)[0]


def test_loader_workers_exit_with_the_trace(tmp_path: Path) -> None:
    done = estimate(tmp_path, TRAINING, "--workers", "2")
    assert answer_of(done)["verdict"] == "fits"


def test_a_script_that_does_not_fit_has_exit_code_1(tmp_path: Path) -> None:
    script = TRAINING.replace("2048", "32768")
    done = estimate(tmp_path, script, gpu="100MiB")
    answer = answer_of(done)
    assert (done.returncode, answer["verdict"], answer["max_batch_size"]) == (1, "does-not-fit", None)


def test_inference_is_estimated_by_its_forward_passes(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 8)).cuda().eval()
with torch.no_grad():
    for (x,) in DataLoader(TensorDataset(torch.randn(1000, 64)), batch_size=100):
        print(model(x.cuda()).argmax(1).cpu().numpy().sum())
"""
    answer = answer_of(estimate(tmp_path, script))
    assert answer["steps"] == 2
    assert "the peak memory use of its forward passes" in notes_of(answer)[0]
    assert answer["by_category"]["gradient"] == 0
    assert answer["by_category"]["activation"] == 0


def test_a_script_that_needs_its_data_runs_on_the_cpu(tmp_path: Path) -> None:
    script = TRAINING.replace("model(x.to(device))", "model(x.to(device)[model(x.to(device))[:, 0] > -9])")
    answer = answer_of(estimate(tmp_path, script))
    assert answer["mode"] == "cpu"
    assert "so Legroom ran the script with real values on the CPU" in notes_of(answer)[0]
    assert answer["verdict"] == "fits"
    assert answer["max_batch_size"] is None, "the batches would need too much host memory or time"


def test_the_batch_size_of_a_script_that_needs_its_data_is_searched_on_a_small_gpu(tmp_path: Path) -> None:
    script = TRAINING.replace("300", "4000").replace(
        "            optimizer.zero_grad()",
        "            (model(x.to(device)) > 9).nonzero()\n            optimizer.zero_grad()",
    )
    answer = answer_of(estimate(tmp_path, script, "--batch-size", "1000", gpu="100MiB"))
    assert (answer["mode"], answer["verdict"]) == ("cpu", "fits")
    assert 1000 < answer["recommended_batch_size"] <= answer["max_batch_size"] < 4000


def test_a_script_that_traces_its_model_first_runs_on_the_cpu(tmp_path: Path) -> None:
    traced = "torch.jit.trace(model, torch.randn(2, 256).to(device))\ntry:\n    for epoch"
    answer = answer_of(estimate(tmp_path, TRAINING.replace("try:\n    for epoch", traced)))
    assert answer["mode"] == "cpu"
    assert (answer["steps"], answer["batch_size"]) == (2, 64)


def test_a_script_with_a_hard_coded_batch_size_is_estimated_at_that_size(tmp_path: Path) -> None:
    script = TRAINING.replace("model(x.to(device))", "model(x.to(device).view(30, 256))")
    answer = answer_of(estimate(tmp_path, script, "--batch-size", "30"))
    assert (answer["verdict"], answer["max_batch_size"]) == ("fits", None)
    assert "No other batch size could be traced" in notes_of(answer)[0]
    assert "shape '[30, 256]' is invalid" in notes_of(answer)[0]


def test_batches_of_different_lengths_are_noted(tmp_path: Path) -> None:
    padded = "lambda rows: torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)"
    script = f"""
import torch
from torch.utils.data import DataLoader
rows = [torch.randint(0, 99, (10 + number,)) for number in range(40)]
model = torch.nn.Embedding(99, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(rows, batch_size=4, collate_fn={padded}):
    model(batch.cuda()).sum().backward()
    optimizer.step()
"""
    notes = notes_of(answer_of(estimate(tmp_path, script)))
    assert notes == [
        "Batches differ in shape. Batches that are larger than the traced batches need more memory. Use `--steps 20` to trace more batches"
    ]


def test_inference_without_a_loader_and_with_a_compiled_model_is_estimated(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
model = torch.compile(nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 8)).cuda().eval())
with torch.inference_mode():
    answer = model(torch.randn(1000, 64, device="cuda")).sum().item()
open("answers.csv", "w").write(str(answer))
"""
    (tmp_path / "answers.csv").write_text("of a real run")
    answer = answer_of(estimate(tmp_path, script))
    assert (answer["verdict"], answer["steps"], answer["max_batch_size"]) == ("fits", 0, None)
    assert (tmp_path / "answers.csv").read_text() == "of a real run"
    assert answer["by_category"]["temporary"] >= 2 * 1000 * 4096 * 4
    assert "compiled" in notes_of(answer)[0]


def test_without_an_optimizer_each_backward_pass_is_a_step(
    tmp_path: Path,
) -> None:
    script = """
import torch
from torch import nn
model = nn.Linear(256, 2048).cuda()
for step in range(1000):
    loss = model(torch.randn(1000, 256, device="cuda")).square().mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    assert step < 3, "estimated by now"
"""
    answer = answer_of(estimate(tmp_path, script))
    assert (answer["verdict"], answer["steps"]) == ("fits", 2)
    assert "each backward pass counts as a step" in notes_of(answer)[0]
    assert answer["by_category"]["activation"] >= 1000 * 2048 * 4


def test_without_a_loader_the_batch_size_argument_is_changed(tmp_path: Path) -> None:
    script = """
import argparse
import torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch_norm", type=int, default=1)
parser.add_argument("--batch", type=int, default=4000)  # not the one that counts
parser.add_argument("--batchSize", type=int, default=4000)
size = parser.parse_args().batchSize
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(size, 256).cuda()).square().mean().backward()
    optimizer.step()
"""
    answer = answer_of(estimate(tmp_path, script, gpu="1GiB"))
    assert answer["batch_size"] == 4000
    largest = answer["max_batch_size"]
    assert answer["batch_setting"]["change"] == f"Add `--batchSize {answer['recommended_batch_size']}`"
    assert answer["batches_tried"][str(largest)]
    assert (
        0.9
        < largest
        * 2048
        * 4
        * 3
        / (answer["capacity_bytes"] - answer["peak_device_bytes"] + answer["peak_reserved_bytes"])
        < 1
    )


@pytest.mark.parametrize(
    ("script", "words", "message"),
    [
        ("print('no training here')", (), "ended without an optimizer step"),
        (TRAINING.replace('"cuda" if torch.cuda.is_available() else', ""), (), "used no GPU memory"),
        (
            "import torch\nraise RuntimeError('x must be a CUDA tensor')",
            (),
            "This code requires a real GPU, so the code after it cannot be estimated.",
        ),
        (
            "import torch\nx = torch.zeros(1 << 20, device='cuda')\nraise ValueError('my own mistake')",
            (),
            "failed after 0 steps: train.py:3, ValueError: my own mistake. The script needed 20.0 MiB up to that point.",
        ),
        (
            TRAINING,
            ("--no-such-argument",),
            "unrecognized arguments: --no-such-argument. The script had used no GPU memory. Put the script's arguments after its name.",
        ),
    ],
)
def test_a_script_that_cannot_be_traced_is_rejected_in_one_line(
    tmp_path: Path, script: str, words: tuple[str, ...], message: str
) -> None:
    done = estimate(tmp_path, script, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr.split("What it printed")[0]


def test_a_script_for_torchrun_is_traced_as_a_single_rank(tmp_path: Path) -> None:
    script = """
import os
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).to(rank), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(torch.randn(100, 64), batch_size=10):
    model(batch.to(rank)).sum().backward()
    optimizer.step()
"""
    answer = answer_of(estimate(tmp_path, script))
    assert answer["steps"] == 2
    assert any("traced as a single rank" in note for note in answer["notes"])


CRASHING_CUDNN = """
#include <stdlib.h>
size_t cudnnGetVersion(void) { return 92100; }
size_t cudnnGetCudartVersion(void) { return 13000; }
int cudnnBackendCreateDescriptor(int kind, void **out) { abort(); }
"""
CONVOLUTIONS = """
import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 37, 3), nn.ReLU(), nn.Conv2d(37, 41, 3), nn.Flatten(), nn.Linear(34481, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.zeros(8, 3, 33, 33, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_crash_of_cudnn_does_not_end_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in (("libcudnn.so.9", CRASHING_CUDNN), ("libcublasLt.so.13", "")):
        (tmp_path / "stub.c").write_text(source)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / name, tmp_path / "stub.c"], check=True)
    monkeypatch.setenv("LEGROOM_CUDNN", str(tmp_path / "libcudnn.so.9"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    done = estimate(tmp_path, CONVOLUTIONS, gpu="h200")
    notes = json.loads(done.stdout)["notes"]

    assert done.returncode == 0
    assert any(note.startswith("cuDNN crashed when it was queried") for note in notes)
    assert any("cuDNN 9.21" in note and "the safe bound is" in note for note in notes)


FAKE_WANDB = """
import os, tempfile

class Run:
    def __init__(self, mode):
        self.mode, self.pid, self.dir = mode, os.getpid(), os.path.join(tempfile.gettempdir(), "run", "files")

    def log(self, values):
        if self.mode != "disabled" and self.pid != os.getpid():
            raise RuntimeError("Unable to attach to run")

def init(project=None, mode=None):
    return Run(mode or os.environ.get("WANDB_MODE", "online"))
"""


@pytest.mark.parametrize("arguments", ["", "mode='online'"])
def test_a_run_of_an_experiment_tracker_is_disabled(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "wandb.py").write_text(FAKE_WANDB)
    script = TRAINING.replace("try:\n", f"import wandb\nrun = wandb.init({arguments})\ntry:\n", 1)
    script = script.replace(
        "if loss.item()", "run.log({'loss': loss}); open(run.dir + '/x', 'w')\n            if loss.item()"
    )
    answer = answer_of(estimate(tmp_path, script))
    assert (answer["mode"], answer["steps"]) == ("fake", 2)
    assert not any("failed" in note for note in answer["notes"])


def test_background_threads_that_the_script_started_continue_in_a_trace(tmp_path: Path) -> None:
    start = """
import logging.handlers, queue
from concurrent.futures import ThreadPoolExecutor
records = queue.Queue(2)
listener = logging.handlers.QueueListener(records, logging.FileHandler("log"))
listener.start()
pool = ThreadPoolExecutor(1)
pool.submit(int).result()
try:
"""
    script = TRAINING.replace("try:\n", start, 1).replace(
        "if loss.item()",
        "[records.put(logging.makeLogRecord({})) for _ in range(9)]\n            if pool.submit(loss.item).result()",
    )
    answer = answer_of(estimate(tmp_path, script))
    assert (answer["mode"], answer["steps"]) == ("fake", 2)
    assert not any("did not finish" in note for note in answer["notes"])
