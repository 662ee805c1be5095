"""Does torch work here? Asked in a process of its own, which may fail to start, crash or hang without harm to who asks.

    python -m legroom.diagnose.doctor.torch_check     # prints one line of JSON per thing learnt

Lines come one by one, so that after a hang it is known which device it was.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SECONDS = 120.0
"""Enough for importing torch from a slow disk and for the first CUDA context of several GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """What computing on a device came to."""

    device: str
    """`cpu`, `cuda:0`."""
    name: str = ""
    capability: tuple[int, int] | None = None
    trouble: str = ""
    """What went wrong, in torch's words or ours; "" where all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """What torch says of itself."""

    version: str = ""
    cuda: str = ""
    hip: str = ""
    cudnn: str = ""
    nccl: str = ""
    architectures: tuple[str, ...] = ()
    device_count: int = 0
    devices: tuple[DeviceResult, ...] = ()
    trouble: str = ""
    """Why torch could not be asked: it cannot be imported, crashed, or hung; "" where it answered."""
    hung: bool = False


def check_torch(*, seconds: float = SECONDS, command: list[str] | None = None) -> TorchFacts:
    """What torch says, or why it says nothing."""
    words = command or [sys.executable, "-m", "legroom.diagnose.doctor.torch_check"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as late:
        told = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else (late.stdout or "")
        return _gathered(told, f"no answer within {seconds:.0f} s", hung=True)
    trouble = ""
    if done.returncode != 0:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        trouble = last.strip() or f"the process ended with {how}"
    return _gathered(done.stdout, trouble, hung=False)


def _gathered(output: str, trouble: str, *, hung: bool) -> TorchFacts:
    facts: dict[str, Any] = {}
    begun: dict[str, DeviceResult] = {}
    for line in output.splitlines():
        try:
            said = json.loads(line)
        except ValueError:  # a library printed something of its own
            continue
        if not isinstance(said, dict):
            continue
        if "device" in said:
            capability = said.pop("capability", None)
            begun[said["device"]] = DeviceResult(**said, capability=tuple(capability) if capability else None)
        elif "version" in said:
            facts.update(said)
    if trouble and begun:
        # What was begun and never ended is where it happened.
        open_ones = [device for device in begun.values() if device.trouble == _BEGUN]
        for device in open_ones:
            begun[device.device] = DeviceResult(
                device=device.device, name=device.name, capability=device.capability, trouble=trouble
            )
        trouble = "" if open_ones else trouble
    facts["architectures"] = tuple(facts.get("architectures", ()))
    return TorchFacts(**facts, devices=tuple(begun.values()), trouble=trouble, hung=hung)


_BEGUN = "begun"


def _tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> int:
    """In the process of its own."""
    import torch

    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    usable = torch.cuda.is_available()
    nccl = ""
    if torch.version.cuda and torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    count = torch.cuda.device_count() if usable else 0
    _tell(
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
        except RuntimeError:  # said again, and told, by the computation
            pass
        _try(f"cuda:{index}", name, capability, compute)
    return 0


def _try(device: str, name: str, capability: tuple[int, int] | None, work: Callable[[str], str]) -> None:
    _tell(device=device, name=name, capability=capability, trouble=_BEGUN)
    try:
        trouble = work(device)
    except Exception as error:  # whatever it is, it is what the doctor is asked about
        trouble = next(iter(str(error).splitlines()), "") or type(error).__name__
    _tell(device=device, name=name, capability=capability, trouble=trouble)


def compute(device: str) -> str:
    """A matrix product, a convolution and their gradients, compared with the host's; "" or what is wrong."""
    import torch

    torch.manual_seed(0)
    left = torch.randint(-4, 5, (64, 64)).float()
    image = torch.randint(-2, 3, (2, 3, 16, 16)).float()
    weight = torch.randint(-2, 3, (4, 3, 3, 3)).float()

    def results(place: str) -> list[torch.Tensor]:
        # small whole numbers: exact in every format, TF32 included
        parts = [part.to(place, copy=True).requires_grad_() for part in (left, image, weight)]
        product = parts[0] @ parts[0].detach()
        convolved = torch.nn.functional.conv2d(parts[1], parts[2])
        torch.autograd.backward(product.sum() + convolved.sum())
        gradients = [part.grad for part in parts if part.grad is not None]
        return [tensor.detach().cpu() for tensor in (product, convolved, *gradients)]

    expected, found = results("cpu"), results(device)
    wrong = [one for one, other in zip(expected, found, strict=True) if not torch.allclose(one, other)]
    return "it computes wrong numbers" if wrong else ""


if __name__ == "__main__":
    sys.exit(main())
