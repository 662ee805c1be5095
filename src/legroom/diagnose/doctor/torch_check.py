"""Tests torch in a separate process, because torch may crash or hang.

    python -m legroom.diagnose.doctor.torch_check     # prints one line of JSON per result

Each result is printed immediately, so that the output shows which device hangs.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

SECONDS = 120.0
"""The timeout of the test process in seconds. The timeout is long, because importing torch from a slow disk and
creating CUDA contexts can be slow.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """The result of a test computation on one device."""

    device: str
    name: str = ""
    capability: tuple[int, int] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """Facts that torch reports, and the results of the test computations."""

    version: str = ""
    cuda: str = ""
    hip: str = ""
    cudnn: str = ""
    nccl: str = ""
    architectures: tuple[str, ...] = ()
    device_count: int = 0
    devices: tuple[DeviceResult, ...] = ()
    error: str = ""
    """The reason why the test process failed, or "" if it succeeded."""
    hung: bool = False


def check_torch(*, seconds: float = SECONDS, command: list[str] | None = None) -> TorchFacts:
    arguments = command or [sys.executable, "-m", "legroom.diagnose.doctor.torch_check"]
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as late:
        output = (
            late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else (late.stdout or "")
        )
        return _parse_output(output, f"no response within {seconds:.0f} s", hung=True)
    error = ""
    if done.returncode != 0:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        error = last.strip().rstrip(".") or f"the process exited with {how}"
    return _parse_output(done.stdout, error, hung=False)


def _parse_output(output: str, error: str, *, hung: bool) -> TorchFacts:
    facts: dict[str, Any] = {}
    devices: dict[str, DeviceResult] = {}
    for line in output.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # printed by a library
            continue
        if not isinstance(entry, dict):
            continue
        if "device" in entry:
            capability = entry.pop("capability", None)
            result = DeviceResult(**entry, capability=tuple(capability) if capability else None)
            devices[result.device] = result
        elif "version" in entry:
            facts.update(entry)
    if error and devices:
        # The device whose test never finished caused the failure.
        unfinished = [device for device in devices.values() if device.error == _STARTED]
        for device in unfinished:
            devices[device.device] = replace(device, error=error)
        error = "" if unfinished else error
    facts["architectures"] = tuple(facts.get("architectures", ()))
    return TorchFacts(**facts, devices=tuple(devices.values()), error=error, hung=hung)


_STARTED = "started"


def _report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> int:
    import torch

    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    usable = torch.cuda.is_available()
    nccl = ""
    if torch.version.cuda and torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    count = torch.cuda.device_count() if usable else 0
    _report(
        version=torch.__version__,
        cuda=torch.version.cuda or "",
        hip=torch.version.hip or "",
        cudnn=str(cudnn or ""),
        nccl=nccl,
        architectures=list(torch.cuda.get_arch_list()) if usable else [],
        device_count=count,
    )
    _try("cpu", "", None, compute)
    for index in range(count):
        name, capability = "", None
        try:
            name = torch.cuda.get_device_name(index)
            capability = torch.cuda.get_device_capability(index)
        except RuntimeError:  # the computation reports the same error
            pass
        _try(f"cuda:{index}", name, capability, compute)
    return 0


def _try(device: str, name: str, capability: tuple[int, int] | None, work: Callable[[str], str]) -> None:
    _report(device=device, name=name, capability=capability, error=_STARTED)
    try:
        error = work(device)
    except Exception as raised:  # any exception is a result of the test
        error = (next(iter(str(raised).splitlines()), "") or type(raised).__name__).rstrip(".")
    _report(device=device, name=name, capability=capability, error=error)


def compute(device: str) -> str:
    """Compare a matrix product, a convolution and their gradients with the results on the CPU.

    Return an error message, or "" if the results agree.
    """
    import torch

    torch.manual_seed(0)
    left = torch.randint(-4, 5, (64, 64)).float()
    image = torch.randint(-2, 3, (2, 3, 16, 16)).float()
    weight = torch.randint(-2, 3, (4, 3, 3, 3)).float()

    def results(target: str) -> list[torch.Tensor]:
        # Small integers are exact in every format, including TF32.
        parts = [part.to(target, copy=True).requires_grad_() for part in (left, image, weight)]
        product = parts[0] @ parts[0].detach()
        convolved = torch.nn.functional.conv2d(parts[1], parts[2])
        torch.autograd.backward(product.sum() + convolved.sum())
        gradients = [part.grad for part in parts if part.grad is not None]
        return [tensor.detach().cpu() for tensor in (product, convolved, *gradients)]

    expected, found = results("cpu"), results(device)
    wrong = [one for one, other in zip(expected, found, strict=True) if not torch.allclose(one, other)]
    return "wrong results" if wrong else ""


if __name__ == "__main__":
    sys.exit(main())
