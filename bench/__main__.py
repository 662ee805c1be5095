"""Lists the benchmark programs and runs the quick programs, as `make bench` does.

python -m bench            run the quick programs; those that need a GPU are skipped without one
python -m bench --list     list all programs with what they measure
"""

import argparse
import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent
QUICK = ("accuracy.allocator_replay", "overhead.capture_file", "overhead.recorder", "leaks.linter")
WITH_A_GPU = ("overhead.run_command",)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list all programs and run none")
    options = parser.parse_args(argv)
    if options.list:
        for name, summary in programs():
            print(f"python -m bench.{name}\n    {summary}")
        return 0
    import torch

    for name in QUICK:
        run(name)
    for name in WITH_A_GPU:
        if torch.cuda.is_available():
            run(name)
        else:
            print(f"=== python -m bench.{name}: skipped, it needs a CUDA GPU", flush=True)
    return 0


def run(name: str) -> None:
    print(f"=== python -m bench.{name}", flush=True)
    subprocess.run([sys.executable, "-m", f"bench.{name}"], check=True)


def programs() -> list[tuple[str, str]]:
    """Return the name and the first line of the docstring of every module that can be run."""
    found = []
    for path in sorted(ROOT.glob("*/**/*.py")):
        text = path.read_text()
        if '__name__ == "__main__"' in text:
            summary = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found.append((name, " ".join(summary.split())))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
