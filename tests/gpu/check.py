"""Everything in this folder without pytest: prints a line for each thing checked, exits with 1 if one is wrong.

    python -m tests.gpu.check FOLDER [SCRIPT ...] [--command]

With `--command`, by `legroom run`; otherwise by the history alone, whose readings are kept in FOLDER.
"""

import sys
import tempfile
import traceback
from pathlib import Path

import torch
from tests.gpu import runs


def main(words: list[str]) -> int:
    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
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
                    checks = [*runs.sound(run), *runs.CHECKS[name](run)]
                for what, right, figures in checks:
                    wrong += not right
                    print(f"{'pass' if right else 'FAIL'}  {what}: {figures}")
                for annotation in run.annotations:
                    print(f"annotation  {str(annotation)[:200]}")
                print("said ", *run.output.strip().splitlines()[-2:], sep=" | ")
            except Exception:
                wrong += 1
                print("FAIL ", traceback.format_exc(), flush=True)
    print(f"{wrong} wrong")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
