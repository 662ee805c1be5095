"""`make demo`: a training run that does not fit its GPU, what Legroom says about it, and the same run mended.

No GPU is needed: the script is written for CUDA, and a virtual GPU of the given size serves it. The second command is
not made up here; it is the one that the report of the first ends with.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parent
GPU = "160MiB"
TOO_LARGE = "256"


def main() -> int:
    print(
        "A small CNN on handwritten digits, batches of 256, on a GPU that is too small for them.", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "too_large.legroom"
        first = legroom(
            "run", "--gpu", GPU, "-o", capture, EXAMPLES / "digits_cnn.py", "--batch-size", TOO_LARGE
        )
        if first.returncode != 1:
            return complain(
                f"the first run should have run out of memory (exit code 1), not {first.returncode}"
            )
        argument = suggested_argument(capture)
        if argument is None:
            return complain("the report of the first run named no batch size that fits")
        print(f"\nThe same with what the report says: {argument}", flush=True)
        words = shlex.split(argument)
        fixed = Path(folder) / "fixed.legroom"
        second = legroom("run", "--gpu", GPU, "-o", fixed, EXAMPLES / "digits_cnn.py", *words)
        if second.returncode != 0:
            return complain(
                f"the second run should have trained to its end, not stopped with {second.returncode}"
            )
    print("\nThat was the demo. On your own script:  .venv/bin/legroom run --gpu 8GiB train.py")
    return 0


def legroom(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    shown = [str(word) for word in words]
    print(f"\n$ {shlex.join(['legroom', *shown])}\n", flush=True)
    return subprocess.run([sys.executable, "-m", "legroom", *shown], check=False)


def suggested_argument(capture: Path) -> str | None:
    """The script's argument that the report's first such advice names."""
    words = [sys.executable, "-m", "legroom", "report", str(capture), "--format", "json"]
    report = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return next(
        (fix["evidence"]["argument"] for fix in report["oom"]["advice"] if fix["code"] == "LG603"), None
    )


def complain(sentence: str) -> int:
    print(f"\nThe demo did not go as meant: {sentence}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
