"""Checks device-side asserts on a real GPU. With `legroom run --blocking`, the traceback must end at the line that failed.

    python -m tests.gpu.blocking FOLDER

The program also runs `legroom doctor`, and passes the real error messages to `legroom explain`. It prints one line per
check, and exits with 1 if a check fails.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from legroom.diagnose.explain.explain import explain

HEAD = "import torch, torch.nn.functional as F\nd = 'cuda'\n"
SCRIPTS = {
    "label": "x = torch.randn(8, 4, device=d, requires_grad=True)\ny = torch.full((8,), 4, device=d)\n"
    "loss = F.cross_entropy(x, y)  # <- here\n",
    "embedding": "w = torch.randn(10, 4, device=d, requires_grad=True)\ni = torch.tensor([3, 10], device=d)\n"
    "loss = F.embedding(i, w).sum()  # <- here\n",
    "gather": "x = torch.randn(4, 4, device=d, requires_grad=True)\ni = torch.full((4, 1), 9, device=d)\n"
    "loss = x.gather(1, i).sum()  # <- here\n",
}
TAIL = "other = torch.ones(1000, device=d) * 2\nloss.backward()\nprint(other.sum().item())\n"


def main(folder: Path) -> int:
    if not torch.cuda.is_available():
        print("Skipped: no CUDA device.")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    works = [(name, blocking) for name in SCRIPTS for blocking in (False, True)]
    with ThreadPoolExecutor(4) as pool:
        runs = dict(zip(works, pool.map(lambda work: _run(folder, *work), works), strict=True))
        doctor = pool.submit(_legroom, "doctor", "--format", "json").result()
    wrong = 0
    for (name, blocking), (code, errors) in runs.items():
        text = (HEAD + SCRIPTS[name] + TAIL).splitlines()
        line = next(number for number, each in enumerate(text, 1) if "# <- here" in each)
        (folder / f"{name}_{'blocking' if blocking else 'plain'}.txt").write_text(errors)
        explanation = explain(errors)
        if blocking:
            right = (
                f'.py", line {line}' in errors
                and "device-side assert triggered" not in errors
                and "legroom:" in errors
            )
        else:
            right = explanation.code == "LG710"
        wrong += not right
        print(
            f"{'pass' if right else 'FAIL'}  {name}{' --blocking' if blocking else ''}: exit code {code}, "
            f"explained as {explanation.kind} {explanation.code}: {explanation.message[:100]}"
        )
    print(f"doctor: exit code {doctor.returncode}")
    print(doctor.stdout or doctor.stderr)
    try:
        results = {check["name"]: check["value"] for check in json.loads(doctor.stdout)["checks"]}
        wrong += "cuda:0 OK" not in results["computation"]
    except ValueError:
        wrong += 1
    print(f"{wrong} wrong")
    return min(wrong, 1)


def _run(folder: Path, name: str, blocking: bool) -> tuple[int, str]:
    script = folder / f"{name}_{int(blocking)}.py"
    script.write_text(HEAD + SCRIPTS[name] + TAIL)
    if not blocking:
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    else:
        done = _legroom("run", "--blocking", "-o", str(folder / f"{name}.legroom"), "--force", str(script))
    script.unlink()
    (folder / f"{name}.legroom").unlink(missing_ok=True)
    return done.returncode, done.stderr


def _legroom(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "legroom", *words], capture_output=True, text=True, timeout=100
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "blocking_out")))
