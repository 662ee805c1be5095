"""Measures the time of `legroom estimate` until its verdict and until its largest batch, relative to the script's imports.

    python -m bench.accuracy.estimate_speed                 four scripts, three rounds
    python -m bench.accuracy.estimate_speed --rounds 5 --only gpt2-small

Each round runs the script's imports alone, then the whole command. A final run prints the time of every phase. On a
shared machine, compare the ratio verdict / imports within a round. The host memory is the memory of the largest
process.
"""

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

from bench.lib.command_line import command_line
from bench.lib.table import print_table


class Kind(NamedTuple):
    """A script to estimate."""

    gpu: str
    imports: str
    model: str
    batch: str
    loss: str
    classes: str = ""
    """The source of the classes that the script defines after its imports."""


_LANGUAGE = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nfrom transformers import GPT2Config, GPT2LMHeadModel\n"
_PLAIN_GPT = """
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width=768, layers=12, heads=12, tokens=50257, length=1024):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(positions))))

"""
KINDS = {
    "gpt2-small": Kind(
        "24GiB", _LANGUAGE, "GPT2LMHeadModel(GPT2Config())", "torch.randint(0, 50257, (256, 1024))", "model(x, labels=x).loss"
    ),
    "gpt2-small, plain torch": Kind(
        "24GiB",
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nfrom torch.utils.data import DataLoader, TensorDataset\n",
        "GPT()",
        "torch.randint(0, 50257, (256, 1024))",
        "F.cross_entropy(model(x).flatten(0, 1), x.flatten())",
        _PLAIN_GPT,
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

PROGRAM = """{kind.imports}{kind.classes}
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
    parser = command_line(__doc__)
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
            _print_phases(KINDS[name], script)
    columns = ["script", "imports alone, s", "verdict, s", "whole, s", "CPU s", "MiB"]
    print_table(f"legroom estimate, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", columns, rows)


def _round(kind: Kind, script: Path) -> tuple[float, float, float, float, float]:
    """Return the seconds of the imports, the seconds until the verdict and in total, the CPU seconds, and the MiB of
    the largest process."""
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


def _print_phases(kind: Kind, script: Path) -> None:
    """Run the estimate in its own process and print when each phase begins."""
    subprocess.run([sys.executable, "-c", _CLOCK, str(script), kind.gpu], check=True)


_CLOCK = """
import sys, time
began = time.perf_counter()
def clock(phase): print(f"  {time.perf_counter() - began:5.2f} s  {phase}", flush=True)
from legroom.observe.script import Script
from legroom.gpus.catalog import find_gpu
from legroom.predict.tracing.worker_process import start_tracing
script, gpu = Script(sys.argv[1], ()), find_gpu(sys.argv[2])
process = start_tracing(script, gpu)
from legroom.predict.script_estimate import estimate_script
result = estimate_script(
    script, gpu, process=process, show_progress=clock, on_verdict=lambda estimate: clock("verdict")
)
clock(f"largest batch: {result.estimate.max_batch_size}")
"""


if __name__ == "__main__":
    main(sys.argv[1:])
