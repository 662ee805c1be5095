"""`make demo`: a training run that does not fit its GPU, what Legroom says about it, and the same run mended.

No GPU is needed: the script is written for CUDA, and a virtual GPU of the given size serves it. The second command is
not made up here: it is the one that the report of the first ends with.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOO_LARGE = "run --gpu 384MiB examples/digits_cnn.py --batch-size 256"


def main() -> int:
    print("A small CNN on handwritten digits, in batches of 256, on a GPU that is too small for them.")
    first = legroom(TOO_LARGE, capture="demo.legroom")
    if first != 1:
        return complain(f"the first run should have run out of memory and ended with 1, not {first}")
    mended = next_command("demo.legroom")
    if "--batch-size" not in mended or mended == TOO_LARGE:
        return complain(f"the report should have ended with a smaller batch, not '{mended}'")
    print("\nAnd now as the report says.")
    second = legroom(mended, capture="demo-mended.legroom")
    if second != 0:
        return complain(f"the second run should have trained to its end, not ended with {second}")
    print(
        "\nThat was the demo. Your own script, on a GPU of any size:  .venv/bin/legroom run --gpu 8GiB train.py"
    )
    return 0


def legroom(words: str, *, capture: str) -> int:
    """Run a command as a person would; the capture's name is kept out of what is shown."""
    print(f"\n$ legroom {words}\n", flush=True)
    verb, *rest = shlex.split(words)
    command = [sys.executable, "-m", "legroom", verb, "-o", capture, "--force", *rest]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def next_command(capture: str) -> str:
    """What the report says to type next, without the program's name."""
    command = [sys.executable, "-m", "legroom", "report", capture, "--format", "json"]
    report = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    return report["next"][0].removeprefix("legroom ")


def complain(sentence: str) -> int:
    print(f"\nThe demo did not go as meant: {sentence}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
