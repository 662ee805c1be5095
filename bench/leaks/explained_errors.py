"""Measures how often the explainer classifies real error messages correctly, and the time for a log of 1 GB.

    python -m bench.leaks.explained_errors [--gigabyte] [--raised] [--decorated] [TABLE.json ...]

By default, the tables in tests/data/errors are scored. The first table was written together with the rules. Each other
table was scored once before rules were changed for it. These first scores are in bench/results/figures_log.md.
`--raised` explains messages from the source of installed libraries, few of which are about memory. `--decorated` adds
prefixes of launchers, loggers, terminals and notebooks to each text and counts how often the explanation stays the
same.

A table whose rows have a `class` and `device_oom` instead of a `kind` and `code` is scored by class. Such tables do not
depend on Legroom's codes, and `CODES_OF_CLASS` maps the codes to their classes.
"""

import ast
import importlib.util
import json
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.unit.diagnose.explain.log_formats import LOG_FORMATS

from bench.lib.command_line import command_line
from legroom.diagnose.explain.explain import explain, explain_file

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "errors"
TABLES = (
    "development",
    "development_02_host_device",
    "development_03_families",
    "development_04_long_logs",
    "development_05_unusual_forms",
    "heldout_01",
    "heldout_02",
    "heldout_03",
    "heldout_04",
    "heldout_05_issue_threads",
    "heldout_06",
    "heldout_07_many_libraries",
    "heldout_08_everyday_errors",
    "heldout_09",
    "heldout_10_search",
    "heldout_11",
    "heldout_12",
    "heldout_13",
    "heldout_14",
)
MEMORY = ("oom", "disguised-oom", "host-oom")

CODES_OF_CLASS: dict[str, tuple[str, ...]] = {
    "device out of memory": ("LG700",),
    "host out of memory": ("LG702", "LG705"),
    "shared memory /dev/shm": ("LG703",),
    "pinned memory": ("LG704", "LG745"),
    "cublas/cudnn could not allocate or initialise (ambiguous)": ("LG701",),
    "device-side assert / index out of range": ("LG710", "LG712"),
    "illegal memory access / launch failure": ("LG711", "LG725", "LG728", "LG750"),
    "device mismatch": ("LG713", "LG745"),
    "shape mismatch": ("LG714", "LG715", "LG716"),
    "state dict / checkpoint": ("LG717", "LG781"),
    "dtype mismatch": ("LG718",),
    "cudnn error": ("LG701", "LG720", "LG726"),
    "driver / cuda installation / wrong build": (
        "LG721",
        "LG722",
        "LG723",
        "LG724",
        "LG725",
        "LG726",
        "LG751",
    ),
    "nccl / distributed": ("LG706", "LG730", "LG731", "LG732", "LG733", "LG734"),
    "data loader worker": ("LG705", "LG727", "LG740", "LG741", "LG742", "LG743", "LG744", "LG745"),
    "amp / grad scaler": ("LG760", "LG761"),
    "autograd error (in-place, second backward, no grad)": ("LG770",),
    "disk full": ("LG780",),
    "not a torch problem": ("", "LG707", "LG735", "LG742", "LG782", "LG783", "LG790"),
}
"""The codes that are correct for each class. A code is in two classes if both describe it. For example, a worker that
the kernel killed (LG705) concerns host memory and data loader workers."""


def score(table: Path) -> tuple[int, int, int, int, list[str]]:
    """Return the number of texts, correct kinds, correct codes and false memory verdicts, and the wrong explanations."""
    rows = json.loads(table.read_text(encoding="utf-8"))
    kinds = codes = alarms = 0
    wrong = []
    for row in rows:
        answer = explain(row["text"])
        kinds += answer.kind == row["kind"]
        codes += answer.code == row["code"]
        alarms += answer.kind == "oom" and row["kind"] != "oom"
        if answer.kind != row["kind"] or answer.code != row["code"]:
            shown = next(iter(row["text"].splitlines()), "")
            wrong.append(
                f"{row['kind']} {row['code']}, classified as {answer.kind} {answer.code}: {shown[:90]}"
            )
    return len(rows), kinds, codes, alarms, wrong


def score_classes(table: Path) -> None:
    """Print the fraction of correct classes, the wrong and missed out-of-memory verdicts, and the wrong
    explanations."""
    rows = json.loads(table.read_text(encoding="utf-8"))
    right = 0
    wrong_oom, missed, wrong = [], [], []
    for row in rows:
        answer = explain(row["text"])
        classes = [row["class"], *row.get("class_alt", ())]
        is_right = answer.kind != "unknown" and any(answer.code in CODES_OF_CLASS[each] for each in classes)
        right += is_right
        shown = f"{row['id']}: {row['class']}, classified as {answer.kind} {answer.code or '-'} ({answer.certainty})"
        if not is_right:
            wrong.append(shown)
        if answer.kind == "oom" and not row["device_oom"]:
            wrong_oom.append(shown)
        if row["device_oom"] and answer.kind != "oom":
            missed.append(shown)
    print(
        f"{table.stem}: {right} of {len(rows)} right ({right / len(rows):.1%}), {len(wrong_oom)} wrongly called OOM, "
        f"{len(missed)} OOMs missed"
    )
    for name, lines in (("wrong", wrong), ("wrongly called OOM", wrong_oom), ("missed OOM", missed)):
        for line in lines:
            print(f"  {name}: {line}")


def gigabyte() -> None:
    """Explain a training log of 1 GB with an error in the middle and another at the end."""
    line = (
        "2025-01-01 00:00:00 INFO train: step {:>9,} loss 0.4123 lr 1.0e-04 error 0.0312 gpu memory 4.2 GiB\n"
    )
    block = "".join(line.format(step) for step in range(10_000)).encode()
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        for number in range(1_000_000_000 // len(block)):
            file.write(block)
            if number == 500:
                file.write(b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
        file.write(b"RuntimeError: CUDA error: device-side assert triggered\n")
        file.flush()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        answer = explain_file(file.name)
        seconds = time.process_time() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        found = answer.code, answer.earlier.code if answer.earlier is not None else None
        assert found == ("LG710", "LG700"), found
        size = Path(file.name).stat().st_size
        print(
            f"log of {size / 1e9:.2f} GB: right, {seconds:.1f} s of CPU, {grown / 1024:.0f} MiB more memory"
        )


def raised(packages: tuple[str, ...] = ("torch", "transformers", "accelerate", "ray", "sklearn")) -> None:
    """Count the kinds of up to 4,000 messages in `raise SomeError("...")`."""
    messages = set()
    for package in packages:
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            for file in Path(found.origin).parent.rglob("*.py"):
                messages.update(_messages(file))
    chosen = random.Random(0).sample(sorted(messages), min(4000, len(messages)))
    kinds = Counter(explain(message).kind for message in chosen)
    print(f"raised by {', '.join(packages)}: {len(chosen)} of {len(messages)} messages, {dict(kinds)}")


def _messages(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
            continue
        name = getattr(node.exc.func, "id", "")
        shown = node.exc.args[0]
        parts = shown.values if isinstance(shown, ast.JoinedStr) else [shown]
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "3" for part in parts)
        if name.endswith("Error") and isinstance(shown, (ast.JoinedStr, ast.Constant)):
            yield f"{name}: {text.strip()}"


def decorated(tables: list[Path]) -> None:
    """Count how often an error has the same explanation with and without the prefixes of a log format."""
    rows = [row for table in tables for row in json.loads(table.read_text(encoding="utf-8"))]
    plain = [(row["text"], answer) for row in rows if (answer := explain(row["text"])).kind != "unknown"]
    same = Counter(
        name
        for name, add_format in LOG_FORMATS.items()
        for text, answer in plain
        if (again := explain(add_format(text))).kind == answer.kind and again.code == answer.code
    )
    print(
        f"{len(plain)} texts in {len(LOG_FORMATS)} log formats: {same.total() / len(plain) / len(LOG_FORMATS):.1%} explained the same"
    )
    for name, number in sorted(same.items(), key=lambda pair: pair[1])[:5]:
        print(f"  {name}: {number / len(plain):.1%}")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("tables", type=Path, nargs="*", metavar="TABLE.json")
    parser.add_argument("--gigabyte", action="store_true")
    parser.add_argument("--raised", action="store_true")
    parser.add_argument("--decorated", action="store_true")
    options = parser.parse_args()
    tables = options.tables or [FOLDER / f"{name}.json" for name in TABLES]
    by_class = [table for table in tables if "class" in json.loads(table.read_text(encoding="utf-8"))[0]]
    for table in by_class:
        score_classes(table)
    tables = [table for table in tables if table not in by_class]
    if tables:
        print(f"{'texts':<27} {'number':>7} {'right kind':>11} {'right code':>11} {'false oom':>10}")
    for table in tables:
        number, kinds, codes, alarms, wrong = score(table)
        print(f"{table.stem:<27} {number:>7} {kinds / number:>11.1%} {codes / number:>11.1%} {alarms:>10}")
        for row in wrong:
            print(f"  {row}")
    if options.decorated and tables:
        decorated(tables)
    if options.raised:
        raised()
    if options.gigabyte:
        gigabyte()


if __name__ == "__main__":
    main()
