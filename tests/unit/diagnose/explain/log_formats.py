"""The same error as different launchers, loggers, containers, terminals and notebooks print it.

The explanation of an error must not depend on the format of the log.
"""

import json
from collections.abc import Callable

_BAR = "Epoch 3:  45%|####5     | 45/100 [00:10<00:12,  4.31it/s, loss=0.412]"
_NOISE = "".join(f"[2025-03-01 12:00:{n % 60:02d}] INFO step {n} loss 0.41{n} lr 1e-4\n" for n in range(400))


def _prefix_lines(prefix: str) -> Callable[[str], str]:
    return lambda text: "\n".join(prefix + line for line in text.split("\n"))


def _color(text: str) -> str:
    lines = (f"\x1b[1;31m{line.replace(':', chr(27) + '[0m:', 1)}\x1b[0m" for line in text.split("\n"))
    return "\n".join(lines)


def _after_progress_bar(text: str) -> str:
    """Put the text after a progress bar, which redraws its line and does not end it."""
    return "\r".join(_BAR.replace("45", str(n)) for n in range(40, 46)) + text


def _between_progress_bars(text: str) -> str:
    return "\n".join(f"{_BAR}\r{' ' * len(_BAR)}\r{line}" for line in text.split("\n"))


def _notebook(output: dict[str, object]) -> str:
    cell = {
        "cell_type": "code",
        "execution_count": 3,
        "metadata": {},
        "outputs": [output],
        "source": ["train()"],
    }
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def _printed_in_notebook(text: str) -> str:
    lines = [line + "\n" for line in text.split("\n")]
    return _notebook({"output_type": "stream", "name": "stderr", "text": lines})


def _raised_in_notebook(text: str) -> str:
    kind, _, message = text.split("\n")[-1].partition(": ")
    return _notebook(
        {"output_type": "error", "ename": kind, "evalue": message, "traceback": _color(text).split("\n")}
    )


def _json_lines(text: str) -> str:
    rows = [{"level": "info", "msg": "epoch 3"}, {"level": "error", "msg": text, "logger": "train"}]
    return "\n".join(json.dumps(row) for row in rows)


LOG_FORMATS: dict[str, Callable[[str], str]] = {
    "rank": _prefix_lines("[rank3]: "),
    "rank from mpirun": _prefix_lines("[1,3]<stderr>:"),
    "rank from srun": _prefix_lines("3: "),
    "time and level": _prefix_lines("2025-03-01 12:00:01,234 - train - ERROR - "),
    "time, level and location": _prefix_lines("2025-03-01 12:00:01.234 | ERROR    | train:main:94 - "),
    "time in brackets": _prefix_lines("[2025-03-01 12:00:01,234] [ERROR] [engine.py:120:step] "),
    "container": _prefix_lines("trainer-1  | "),
    "pod": _prefix_lines("2025-03-01T12:00:01.234567890Z stderr F "),
    "journal": _prefix_lines("Mar 01 12:00:01 node7 python[4012]: "),
    "ray": _prefix_lines("(TorchTrainer pid=4012, ip=10.0.0.4) "),
    "ray in color": _prefix_lines("\x1b[36m(RayTrainWorker pid=4012)\x1b[0m "),
    "colors": _color,
    "after a progress bar": _after_progress_bar,
    "between progress bars": _between_progress_bars,
    "Windows": lambda text: text.replace("\n", "\r\n"),
    "quoted": _prefix_lines("> "),
    "indented": _prefix_lines("    "),
    "fenced": lambda text: f"I get this:\n```\n{text}\n```\nWhat should I do?",
    "in Korean": lambda text: (
        f"학습을 시작하면 다음과 같은 오류가 발생합니다.\n\n{text}\n\n어떻게 해결할 수 있을까요? 메모리는 충분합니다."
    ),
    "long log": lambda text: _NOISE + text + "\nwandb: Synced 5 W&B file(s)\n",
    "printed in a notebook": _printed_in_notebook,
    "raised in a notebook": _raised_in_notebook,
    "lines of JSON": _json_lines,
}
"""The function that converts an error text to each format, by name."""
