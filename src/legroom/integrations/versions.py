"""Checks that a library is installed in a version that an integration supports."""

import re
from importlib import metadata

from legroom.errors import LegroomError

MINIMUM = {
    "accelerate": "1.0",
    "lightning": "2.2",
    "pytorch-lightning": "2.2",
    "ray": "2.40",
    "transformers": "4.48",
}
"""The oldest supported version of each library. The Trainer in Transformers 4.46 does not divide the loss by the number
of accumulation steps for every model, so its effective learning rate depends on the accumulation."""


class UnsupportedLibrary(LegroomError, ImportError):  # noqa: N818
    """A library that is not installed, or is too old. The message is one line with the remedy."""


def check_library(*names: str) -> str:
    for name in names:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if _numbers(version) < _numbers(MINIMUM[name]):
            raise UnsupportedLibrary(
                f"Legroom supports {name} {MINIMUM[name]} and newer, but {version} is installed. "
                f"Run `pip install --upgrade {name}`."
            )
        return name
    raise UnsupportedLibrary(f"{names[0]} is not installed. Run `pip install {names[0]}`.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:2])
