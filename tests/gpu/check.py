"""Runs the checks of `runs` without pytest. Prints one line per check, and exits with 1 if a check fails.

    python -m tests.gpu.check FOLDER [SCRIPT ...] [--command]

With `--command`, the scripts run with `legroom run`. Without `--command`, only the CUDA history is recorded, and its
snapshots are written to FOLDER.
"""

import sys
import tempfile
import traceback
from pathlib import Path

import torch
from tests.gpu import runs


def main(words: list[str]) -> int:
    if not torch.cuda.is_available():
        print("Skipped: no CUDA device.")
        return 0
    by_command = "--command" in words
    folder, *names = [word for word in words if not word.startswith("--")]
    wrong = 0
    with tempfile.TemporaryDirectory() as captures:
        for name in names or runs.CHECKS:
            print(f"== {name}{' (legroom run)' if by_command else ''}", flush=True)
            try:
                if by_command:
                    run = runs.command(name, Path(captures))
                    checks = [*runs.CHECKS[name](run), *runs.report(run)]
                else:
                    run = runs.watch(name, Path(captures), Path(folder))
                    checks = [*runs.agreement(run), *runs.CHECKS[name](run)]
                for what, right, figures in checks:
                    wrong += not right
                    print(f"{'pass' if right else 'FAIL'}  {what}: {figures}")
                for annotation in run.annotations:
                    print(f"annotation  {str(annotation)[:200]}")
                print("output ", *run.output.strip().splitlines()[-2:], sep=" | ")
            except Exception:
                wrong += 1
                print("FAIL ", traceback.format_exc(), flush=True)
    print(f"{wrong} wrong")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
