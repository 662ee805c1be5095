"""Small programs similar to those that the leak detector once got wrong, as files that can be run.

    python -m tests.data.leak_variations FOLDER

writes them into FOLDER, and `python -m bench.leaks.detector --folder FOLDER --names` runs them. Many are similar on
purpose, so that a rule is not fitted to a single spelling.
"""

import re
import sys
from pathlib import Path

TEXTS = Path(__file__).parent / "leak_variations"
PREAMBLE = """import copy, functools, heapq, random
import torch
import torch.nn.functional as F
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def batch(rows=6):
    return torch.randn(rows, 6, device=device), torch.randint(0, 2, (rows,), device=device)
def trained():
    x, y = batch()
    out = model(x)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return out, loss
"""
STEP = "trained()"


def write_programs(folder: Path) -> None:
    """Write one file per program into `folder/leaking` and `folder/healthy`."""
    for kind in ("leaking", "healthy"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        parts = re.split(r"(?m)^### (.+)\n", (TEXTS / f"{kind}.txt").read_text(encoding="utf-8"))[1:]
        for number, (title, code) in enumerate(zip(parts[::2], parts[1::2], strict=True), start=1):
            name = re.sub(r"\W+", "_", title).strip("_")
            text = PREAMBLE + code.replace("STEP", STEP)
            (folder / kind / f"{number:02}_{name}.py").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_programs(Path(sys.argv[1]))
