"""How long `legroom estimate` takes to its verdict and to its largest batch, beside the script's own imports.

    python -m bench.estimate_speed                 three scripts, three rounds
    python -m bench.estimate_speed --rounds 5 --only gpt2-small

In each round the script's import lines are run alone, then the whole command; then once more with a clock at every phase. A
shared machine makes times of little worth, so read the ratio: verdict / imports, within the same round. Host memory is the
largest process's, as the kernel counts it.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.table import print_table


class Kind(NamedTuple):
    """A script to estimate."""

    gpu: str
    imports: str
    model: str
    batch: str
    loss: str


_LANGUAGE = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nfrom transformers import GPT2Config, GPT2LMHeadModel\n"
KINDS = {
    "gpt2-small": Kind(
        "24GiB", _LANGUAGE, "GPT2LMHeadModel(GPT2Config())", "torch.randint(0, 50257, (256, 1024))", "model(x, labels=x).loss"
    ),
    "gpt2-1.5B": Kind(
        "a100-80gb",
        _LANGUAGE,
        "GPT2LMHeadModel(GPT2Config(n_embd=1600, n_layer=48, n_head=25))",
        "torch.randint(0, 50257, (64, 1024))",
        "model(x, labels=x).loss",
    ),
    "mlp": Kind(
        "8GiB",
        "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n",
        "nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))",
        "torch.rand(256, 1024)",
        "model(x).square().mean()",
    ),
}  # fmt: skip

PROGRAM = """{kind.imports}
model = {kind.model}.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for (x,) in DataLoader(TensorDataset({kind.batch}), batch_size=2):
    x = x.cuda()
    loss = {kind.loss}
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def main(argv: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=KINDS, nargs="*", default=list(KINDS))
    options = parser.parse_args(argv)
    rows = []
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / f"{name}.py"
            script.write_text(PROGRAM.format(kind=KINDS[name]))
            timed = [_round(KINDS[name], script) for _ in range(options.rounds)]
            rows += [[name, *map("{:.1f}".format, figures)] for figures in timed]
            middle = statistics.median(verdict / imports for imports, verdict, *_ in timed)
            print(f"{name}: verdict / imports {middle:.2f} (median of {options.rounds})", flush=True)
            _clocked(KINDS[name], script)
    columns = ["script", "imports alone, s", "verdict, s", "whole, s", "CPU s", "MiB"]
    print_table(f"legroom estimate, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", columns, rows)


def _round(kind: Kind, script: Path) -> tuple[float, float, float, float, float]:
    """Seconds of the imports alone, to the verdict, to the end; processor seconds; MiB of the largest process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", kind.imports], check=True, capture_output=True)
    imports = time.perf_counter() - began
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    command = [sys.executable, "-u", "-m", "legroom", "estimate", "--gpu", kind.gpu, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        running.stdout.readline()
        verdict = time.perf_counter() - began
        running.stdout.read()
    whole = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return imports, verdict, whole, processor, after.ru_maxrss / 1024


def _clocked(kind: Kind, script: Path) -> None:
    """The same in a process of its own that says when each phase begins."""
    subprocess.run([sys.executable, "-c", _CLOCK, str(script), kind.gpu], check=True)


_CLOCK = """
import sys, time
began = time.perf_counter()
def clock(phase): print(f"  {time.perf_counter() - began:5.2f} s  {phase}", flush=True)
from legroom.observe.script import Script
from legroom.predict.tracing_start import start
script, gpu = Script(sys.argv[1], ()), sys.argv[2]
started = start(script, gpu)
from legroom.predict.job import estimate_script
told = estimate_script(script, gpu, started=started, say=clock, tell=lambda now: clock("verdict"))
clock(f"largest batch: {told.estimate.max_batch_size}")
"""


if __name__ == "__main__":
    main(sys.argv[1:])
