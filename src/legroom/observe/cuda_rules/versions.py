"""The torch version, the cuDNN version and the GPU that were used to measure the shipped rules, tables and models.

This module does not import torch.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesVersion:
    """The versions and the GPU of the measurements. Only major and minor version numbers are compared."""

    torch: str
    cudnn: str
    gpu: str
    equal_cudnn: tuple[str, str]
    """The oldest and the newest cuDNN version that choose the same kernels as `cudnn`."""

    def covers_torch(self, version: str) -> bool:
        return minor_version(version) == minor_version(self.torch)

    def covers_cudnn(self, version: str) -> bool:
        oldest, newest = map(minor_version, self.equal_cudnn)
        return oldest <= minor_version(version) <= newest

    def differing(self, *, torch: str, cudnn: str | None) -> dict[str, str]:
        """Return the name and version of each installed library that the rules do not cover.

        `cudnn` is None if cuDNN is not installed, or if the program does not use it.
        """
        found = {} if self.covers_torch(torch) else {"torch": torch}
        if cudnn is not None and not self.covers_cudnn(cudnn):
            found["cuDNN"] = cudnn
        return {name: ".".join(map(str, minor_version(version))) for name, version in found.items()}


RULES_VERSION = RulesVersion(torch="2.11", cudnn="9.19", gpu="NVIDIA H200", equal_cudnn=("9.12", "9.20"))
"""`make rules` rebuilds all shipped rules, tables and models. Change this value after running `make rules` with other
versions.

For 600 layers of the table, cuDNN 9.12, 9.19.1 and 9.20 returned the same 1,800 results as 9.19.0. Version 9.21
returned different results for 26% of the forward passes and 58% of the weight gradients.
"""


def minor_version(version: str) -> tuple[int, int]:
    """Return the major and minor version as numbers: (2, 13) for `2.13.0+cpu`."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
