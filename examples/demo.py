"""`make demo`: a training run that does not fit on its GPU, Legroom's report, and the same run with the suggested fix.

The demo needs no GPU: it runs a CUDA script on a virtual GPU. The second command is the one that the report of the
first run suggests.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOO_LARGE = "run --gpu 384MiB examples/digits_cnn.py --batch-size 256"


def main() -> int:
    print("Training a small CNN on handwritten digits with a batch size that does not fit on the GPU.")
    first = legroom(TOO_LARGE, capture="demo.legroom")
    if first != 1:
        return fail(
            f"the first run should run out of memory and exit with status 1, but its exit status was {first}"
        )
    suggested = next_command("demo.legroom")
    if "--batch-size" not in suggested or suggested == TOO_LARGE:
        return fail(f"the report should suggest a smaller batch size, not '{suggested}'")
    print("\nNow with the suggested batch size:")
    second = legroom(suggested, capture="demo-fixed.legroom")
    if second != 0:
        return fail(f"the second run should succeed, but it exited with {second}")
    print("\nDone. To run your own script on a virtual GPU:  .venv/bin/legroom run --gpu 8GiB train.py")
    return 0


def legroom(arguments: str, *, capture: str) -> int:
    """Run a legroom command. The printed command omits the name of the capture."""
    print(f"\n$ legroom {arguments}\n", flush=True)
    verb, *rest = shlex.split(arguments)
    command = [sys.executable, "-m", "legroom", verb, "-o", capture, "--force", *rest]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def next_command(capture: str) -> str:
    """The next command that the report suggests, without the program name."""
    command = [sys.executable, "-m", "legroom", "report", capture, "--format", "json"]
    report = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    return report["next"][0].removeprefix("legroom ")


def fail(reason: str) -> int:
    print(f"\nThe demo failed: {reason}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
