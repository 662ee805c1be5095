"""How the same error looks in different logs: what launchers, loggers, containers, terminals and notebooks put around its lines.

None of it changes what the error is, so the explanation must not change either.
"""

import json
from collections.abc import Callable

_BAR = "Epoch 3:  45%|####5     | 45/100 [00:10<00:12,  4.31it/s, loss=0.412]"
_NOISE = "".join(f"[2025-03-01 12:00:{n % 60:02d}] INFO step {n} loss 0.41{n} lr 1e-4\n" for n in range(400))


def _before_each(prefix: str) -> Callable[[str], str]:
    return lambda text: "\n".join(prefix + line for line in text.split("\n"))


def _coloured(text: str) -> str:
    lines = (f"\x1b[1;31m{line.replace(':', chr(27) + '[0m:', 1)}\x1b[0m" for line in text.split("\n"))
    return "\n".join(lines)


def _after_a_bar(text: str) -> str:
    """A progress bar draws over itself and leaves its line open."""
    return "\r".join(_BAR.replace("45", str(n)) for n in range(40, 46)) + text


def _between_bars(text: str) -> str:
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


def _printed_in_a_notebook(text: str) -> str:
    lines = [line + "\n" for line in text.split("\n")]
    return _notebook({"output_type": "stream", "name": "stderr", "text": lines})


def _raised_in_a_notebook(text: str) -> str:
    kind, _, said = text.split("\n")[-1].partition(": ")
    return _notebook(
        {"output_type": "error", "ename": kind, "evalue": said, "traceback": _coloured(text).split("\n")}
    )


def _as_json_lines(text: str) -> str:
    rows = [{"level": "info", "msg": "epoch 3"}, {"level": "error", "msg": text, "logger": "train"}]
    return "\n".join(json.dumps(row) for row in rows)


DRESSES: dict[str, Callable[[str], str]] = {
    "rank": _before_each("[rank3]: "),
    "rank of mpirun": _before_each("[1,3]<stderr>:"),
    "rank of srun": _before_each("3: "),
    "time and level": _before_each("2025-03-01 12:00:01,234 - train - ERROR - "),
    "time, level and place": _before_each("2025-03-01 12:00:01.234 | ERROR    | train:main:94 - "),
    "time in brackets": _before_each("[2025-03-01 12:00:01,234] [ERROR] [engine.py:120:step] "),
    "container": _before_each("trainer-1  | "),
    "pod": _before_each("2025-03-01T12:00:01.234567890Z stderr F "),
    "journal": _before_each("Mar 01 12:00:01 node7 python[4012]: "),
    "ray": _before_each("(TorchTrainer pid=4012, ip=10.0.0.4) "),
    "ray in colour": _before_each("\x1b[36m(RayTrainWorker pid=4012)\x1b[0m "),
    "colours": _coloured,
    "after a progress bar": _after_a_bar,
    "between progress bars": _between_bars,
    "Windows": lambda text: text.replace("\n", "\r\n"),
    "quoted": _before_each("> "),
    "indented": _before_each("    "),
    "fenced": lambda text: f"I get this:\n```\n{text}\n```\nWhat should I do?",
    "in Korean": lambda text: (
        f"학습을 시작하면 다음과 같은 오류가 발생합니다.\n\n{text}\n\n어떻게 해결할 수 있을까요? 메모리는 충분합니다."
    ),
    "long log": lambda text: _NOISE + text + "\nwandb: Synced 5 W&B file(s)\n",
    "printed in a notebook": _printed_in_a_notebook,
    "raised in a notebook": _raised_in_a_notebook,
    "lines of JSON": _as_json_lines,
}
"""Name → what it makes of an error's text."""
