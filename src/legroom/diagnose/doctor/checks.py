"""The checks that `legroom doctor` makes: facts in, findings out. `checks_for_errors` makes those that bear on an error.

Each check is a function of the machine's facts alone, so that machines with every kind of trouble can be made up in a test.
"""

import difflib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from legroom.diagnose.doctor.machine import UNLIMITED, Machine
from legroom.diagnose.doctor.torch_check import TorchFacts
from legroom.errors import UsageError
from legroom.findings import Finding
from legroom.gpus.machine import Count, NotAvailable, named_gpus
from legroom.memory.allocator.settings import ENVIRONMENT_NAMES, AllocatorSettings
from legroom.units import GiB, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One thing looked at."""

    name: str
    value: str
    """What was seen."""
    findings: tuple[Finding, ...] = ()


def driver(machine: Machine) -> DoctorCheck:
    if machine.driver_trouble:
        return DoctorCheck(
            name="driver",
            value="does not answer",
            findings=(
                Finding(
                    code="LG901",
                    message=f"the NVIDIA driver is loaded but its library does not answer: {machine.driver_trouble}",
                    fix="restart the machine if the driver was updated; in a container, start it with GPUs (docker run --gpus all)",
                ),
            ),
        )
    if isinstance(machine.driver, NotAvailable):
        return DoctorCheck(name="driver", value="none: no NVIDIA GPU is used here")
    serves = f", serves CUDA up to {_dotted(machine.driver_cuda)}" if machine.driver_cuda else ""
    return DoctorCheck(name="driver", value=f"{machine.driver}{serves}", findings=tuple(_driver_age(machine)))


def _driver_age(machine: Machine) -> Iterator[Finding]:
    wanted = _version(machine.torch_cuda)
    if wanted is None or machine.driver_cuda is None or wanted[0] <= machine.driver_cuda[0]:
        return  # within one major version an older driver serves a newer CUDA
    yield Finding(
        code="LG902",
        message=f"torch {machine.torch} was built for CUDA {machine.torch_cuda}, and the driver {machine.driver} serves CUDA up to {_dotted(machine.driver_cuda)}",
        fix=f"install a driver for CUDA {wanted[0]}, or the torch build for CUDA {machine.driver_cuda[0]} (pytorch.org lists them)",
    )


def torch_build(machine: Machine, torch: TorchFacts | None = None) -> DoctorCheck:
    findings = []
    version = torch.version if torch is not None and torch.version else machine.torch
    built = (torch.cuda if torch is not None else "") or machine.torch_cuda
    if torch is not None and torch.trouble:
        findings.append(
            Finding(
                code="LG903",
                message=f"torch {'hangs' if torch.hung else 'cannot be used'}: {torch.trouble}",
                fix="`legroom explain` on this error says more; installing torch anew in a fresh environment is the usual cure",
            )
        )
    hip = torch is not None and bool(torch.hip)
    if version and not built and not hip and machine.gpus:
        findings.append(
            Finding(
                code="LG904",
                message=f"torch {version} was built without CUDA, and this machine has {_counted(len(machine.gpus), 'GPU')}",
                fix="install the CUDA build: pytorch.org gives the command for your driver",
            )
        )
    elif torch is not None and version and machine.gpus and not torch.device_count and not torch.trouble:
        findings.append(
            Finding(
                code="LG905",
                message=f"the driver shows {_counted(len(machine.gpus), 'GPU')} and torch can use none",
                fix="look at CUDA_VISIBLE_DEVICES and at the findings about the driver",
            )
        )
    kind = f"CUDA {built}" if built else (f"ROCm {torch.hip}" if torch is not None and hip else "no CUDA")
    return DoctorCheck(
        name="torch",
        value=f"{version}, built for {kind}" if built or hip else f"{version or 'not installed'} ({kind})",
        findings=tuple(findings),
    )


def libraries(machine: Machine, torch: TorchFacts) -> DoctorCheck:
    findings = []
    if torch.cuda and torch.device_count and not torch.cudnn:
        findings.append(
            Finding(
                code="LG906",
                message="torch finds no cuDNN: convolutions are slow or fail",
                fix="install torch anew; its wheels bring cuDNN along",
            )
        )
    if torch.cuda and torch.device_count > 1 and not torch.nccl:
        findings.append(
            Finding(
                code="LG907",
                message=f"torch was built without NCCL, and there are {torch.device_count} GPUs",
                fix="install a build with NCCL (the Linux wheels have it); without it use the gloo backend",
            )
        )
    told = [
        f"{name} {value}" for name, value in (("cuDNN", _cudnn(torch.cudnn)), ("NCCL", torch.nccl)) if value
    ]
    return DoctorCheck(
        name="libraries", value=", ".join(told) or "no cuDNN, no NCCL", findings=tuple(findings)
    )


def _cudnn(number: str) -> str:
    """91002 is 9.10.2, 8902 is 8.9.2."""
    if not number.isdecimal():
        return number
    whole = int(number)
    scale = 10000 if whole >= 90000 else 1000
    return f"{whole // scale}.{whole % scale // 100}.{whole % 100}"


def shadowing(machine: Machine) -> DoctorCheck:
    """Libraries that are found before torch's own."""
    path = machine.environ.get("LD_LIBRARY_PATH", "")
    found = sorted(
        {name for folder in path.split(os.pathsep) if folder for name in _cuda_libraries(Path(folder))}
    )
    if not found:
        return DoctorCheck(
            name="library path", value="nothing before torch's own libraries" if path else "not set"
        )
    return DoctorCheck(
        name="library path",
        value=", ".join(found),
        findings=(
            Finding(
                code="LG908",
                message=f"LD_LIBRARY_PATH leads to {', '.join(found)}, which torch may load instead of its own",
                fix="unset LD_LIBRARY_PATH for training; torch's wheels bring these libraries along",
            ),
        ),
    )


_SHADOWED = (
    "libcudnn.so",
    "libcublas.so",
    "libcublasLt.so",
    "libnccl.so",
    "libcusparse.so",
    "libcusolver.so",
    "libnvJitLink.so",
)


def _cuda_libraries(folder: Path) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    if folder.parent.name in ("nvidia", "torch") or "site-packages" in folder.parts:
        return  # torch's own
    for library in _SHADOWED:
        if any(name.startswith(library) for name in names):
            yield library


def visible(machine: Machine) -> DoctorCheck:
    words = named_gpus(machine.environ)
    count = len(machine.gpus)
    if words is None:
        shown = ", ".join(f"{gpu.index}: {gpu.name}, {_size(gpu.total)}" for gpu in machine.gpus)
        return DoctorCheck(name="GPUs", value=shown or "none")
    named = machine.environ["CUDA_VISIBLE_DEVICES"]
    value = f"{_counted(count, 'GPU')}; CUDA_VISIBLE_DEVICES={named or '(empty)'}"
    if not count:
        return DoctorCheck(name="GPUs", value=f"none; CUDA_VISIBLE_DEVICES={named or '(empty)'}")
    if not words or words[0] == "-1":
        return DoctorCheck(
            name="GPUs", value=value, findings=(_hidden(f"CUDA_VISIBLE_DEVICES={named} hides all GPUs"),)
        )
    for word in words:
        if word.startswith(("GPU-", "MIG-")):
            continue
        if not word.isdecimal() or int(word) >= count:
            numbers = "0" if count == 1 else f"0 to {count - 1}"
            return DoctorCheck(
                name="GPUs",
                value=value,
                findings=(
                    _hidden(
                        f"CUDA_VISIBLE_DEVICES names '{word}', and GPUs here are {numbers}: CUDA ignores it and all after it"
                    ),
                ),
            )
    return DoctorCheck(name="GPUs", value=value)


def _hidden(message: str) -> Finding:
    return Finding(
        code="LG909",
        message=message,
        fix="unset CUDA_VISIBLE_DEVICES, or name GPUs that exist, such as 0 or 0,1",
    )


def divided(machine: Machine) -> DoctorCheck:
    mig = [gpu for gpu in machine.gpus if gpu.is_mig is True]
    if not mig:
        return DoctorCheck(name="MIG", value="no GPU is divided" if machine.gpus else "no GPU")
    which = ", ".join(str(gpu.index) for gpu in mig)
    return DoctorCheck(
        name="MIG",
        value=f"GPU {which} divided into instances",
        findings=(
            Finding(
                code="LG910",
                message=f"GPU {which} is divided into instances: a process uses one of them, with its share of the memory",
                fix="reckon with the instance's memory; `nvidia-smi -L` lists them, CUDA_VISIBLE_DEVICES=MIG-... chooses one",
            ),
        ),
    )


def others(machine: Machine) -> DoctorCheck:
    findings = []
    told = []
    for gpu in machine.gpus:
        if isinstance(gpu.processes, NotAvailable):
            told.append(f"GPU {gpu.index}: not told")
            continue
        foreign = [process for process in gpu.processes if process.pid != os.getpid()]
        held = sum(process.bytes for process in foreign if not isinstance(process.bytes, NotAvailable))
        told.append(f"GPU {gpu.index}: {_counted(len(foreign), 'process') if foreign else 'none'}")
        whole = gpu.total if not isinstance(gpu.total, NotAvailable) else 0
        if foreign and held > whole // 20:
            named = ", ".join(str(process.pid) for process in foreign[:4])
            findings.append(
                Finding(
                    code="LG911",
                    message=f"GPU {gpu.index}: other processes ({named}) hold {format_size(held)} of {_size(gpu.total)}",
                    fix="end them if they are left over (`ps -p PID`), or choose another GPU with CUDA_VISIBLE_DEVICES",
                    bytes=held,
                    evidence={"pids": [process.pid for process in foreign]},
                )
            )
    return DoctorCheck(name="other processes", value="; ".join(told) or "no GPU", findings=tuple(findings))


def health(machine: Machine) -> DoctorCheck:
    findings = []
    for gpu, state in zip(machine.gpus, machine.states, strict=False):
        if not isinstance(state.uncorrected_errors, NotAvailable) and state.uncorrected_errors:
            findings.append(
                Finding(
                    code="LG912",
                    message=f"GPU {gpu.index} had {_counted(state.uncorrected_errors, 'memory error')} that could not be corrected",
                    fix="restart the machine; if it comes again, have the card replaced",
                )
            )
        if state.is_exclusive:
            findings.append(
                Finding(
                    code="LG913",
                    message=f"GPU {gpu.index} takes one process at a time, or none",
                    fix="`nvidia-smi -c DEFAULT` (as administrator), or wait until the other process ends",
                )
            )
    value = (
        "no GPU"
        if not machine.gpus
        else ("see the findings" if findings else "no memory errors, open to all")
    )
    return DoctorCheck(name="GPU health", value=value, findings=tuple(findings))


def container(machine: Machine) -> DoctorCheck:
    host = machine.host
    memory = f"{_size(host.available)} free of {_size(host.total)}"
    if isinstance(host.limit, NotAvailable) or (
        not isinstance(host.total, NotAvailable) and host.limit >= host.total
    ):
        return DoctorCheck(name="host memory", value=f"{memory}, no limit below that")
    value = f"{memory}; this process may use {format_size(host.limit)}"
    largest = max((gpu.total for gpu in machine.gpus if not isinstance(gpu.total, NotAvailable)), default=0)
    if host.limit < max(largest, 4 * GiB):
        than = (
            f"less than the GPU has ({format_size(largest)})"
            if host.limit < largest
            else "little for training"
        )
        return DoctorCheck(
            name="host memory",
            value=value,
            findings=(
                Finding(
                    code="LG914",
                    message=f"a container or batch job allows {format_size(host.limit)} of host memory: {than}",
                    fix="raise the limit (docker run --memory, Slurm --mem); until then fewer workers, and load checkpoints with mmap=True",
                    bytes=host.limit,
                ),
            ),
        )
    return DoctorCheck(name="host memory", value=value)


def shared_memory(machine: Machine) -> DoctorCheck:
    if isinstance(machine.shared_total, NotAvailable) or isinstance(machine.shared_free, NotAvailable):
        return DoctorCheck(name="/dev/shm", value="none on this system")
    value = f"{format_size(machine.shared_free)} free of {format_size(machine.shared_total)}"
    if machine.shared_free >= GiB:
        return DoctorCheck(name="/dev/shm", value=value)
    return DoctorCheck(
        name="/dev/shm",
        value=value,
        findings=(
            Finding(
                code="LG915",
                message=f"{format_size(machine.shared_free)} of shared memory are free in /dev/shm: data loader workers may die of a bus error",
                fix="start the container with --ipc=host or --shm-size=8g; or torch.multiprocessing.set_sharing_strategy('file_system')",
                bytes=machine.shared_total,
            ),
        ),
    )


def limits(machine: Machine) -> DoctorCheck:
    files = machine.open_files
    value = f"{_plain(files)} open files, {_plain(machine.locked, size=True)} of locked memory"
    if isinstance(files, NotAvailable) or files == UNLIMITED or files >= 1024:
        return DoctorCheck(name="limits", value=value)
    return DoctorCheck(
        name="limits",
        value=value,
        findings=(
            Finding(
                code="LG916",
                message=f"this process may open {files} files: few for data loader workers",
                fix="raise it: ulimit -n 65536",
            ),
        ),
    )


def allocator(machine: Machine) -> DoctorCheck:
    """As torch reads it: of several names the first that is set counts."""
    told = [(name, machine.environ[name]) for name in ENVIRONMENT_NAMES if name in machine.environ]
    findings = []
    similar = [
        name
        for name in machine.environ
        if name not in ENVIRONMENT_NAMES
        and name.startswith(("PYTORCH_", "PYTORH", "TORCH_"))
        and "ALLOC" in name
        and difflib.get_close_matches(name, ENVIRONMENT_NAMES, 1, 0.85)
    ]
    for name in similar:
        meant = difflib.get_close_matches(name, ENVIRONMENT_NAMES, 1, 0.85)[0]
        findings.append(
            Finding(
                code="LG917",
                message=f"{name} is set, and torch does not know it",
                fix=f"did you mean {meant}?",
            )
        )
    if told:
        name, text = told[0]
        try:
            AllocatorSettings.parse(text)
        except UsageError as error:
            findings.append(
                Finding(
                    code="LG917",
                    message=f"{name}={text} is refused by torch: {error}",
                    fix="mend or unset it",
                )
            )
        for other, ignored in told[1:]:
            if ignored != text:
                findings.append(
                    Finding(
                        code="LG918",
                        message=f"{other}={ignored} is ignored, because {name} is set too",
                        fix=f"set one of them: unset {name}, or write all options there",
                    )
                )
    value = ", ".join(f"{name}={text}" for name, text in told) or "torch's defaults"
    return DoctorCheck(name="allocator", value=value, findings=tuple(findings))


_SLOW = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation goes to the driver",
    "NCCL_P2P_DISABLE": "GPUs exchange data through the host",
}


def leftovers(machine: Machine) -> DoctorCheck:
    """Settings for debugging that make training slow."""
    on = [name for name in _SLOW if machine.environ.get(name, "0") not in ("0", "")]
    return DoctorCheck(
        name="debug settings",
        value=", ".join(f"{name}={machine.environ[name]}" for name in on) or "none",
        findings=tuple(
            Finding(
                code="LG919",
                message=f"{name} is set: {_SLOW[name]}, which is slow",
                fix=f"unset {name} for training",
            )
            for name in on
        ),
    )


def computation(torch: TorchFacts) -> DoctorCheck:
    findings = []
    told = []
    for device in torch.devices:
        sm = f"sm_{device.capability[0]}{device.capability[1]}" if device.capability else ""
        if not device.trouble:
            told.append(f"{device.device} right")
        else:
            told.append(f"{device.device} failed")
            findings.append(
                Finding(
                    code="LG920",
                    message=f"{device.device}{f' ({device.name})' if device.name else ''}: a small computation failed: {device.trouble}",
                    fix="`legroom explain` on this error says more; try another GPU, then restart the machine",
                )
            )
        if sm and torch.architectures and not _has_kernels(device.capability, torch.architectures):
            findings.append(
                Finding(
                    code="LG921",
                    message=f"{device.device} is {sm}, and this torch has kernels for {', '.join(torch.architectures)}",
                    fix="install a torch build that knows this GPU (pytorch.org)",
                )
            )
    return DoctorCheck(name="computation", value=", ".join(told) or "not tried", findings=tuple(findings))


def _has_kernels(capability: tuple[int, int] | None, architectures: tuple[str, ...]) -> bool:
    """A binary serves its own major version from its minor on; PTX (`compute_`) serves everything newer."""
    if capability is None:
        return True
    for architecture in architectures:
        kind, _, number = architecture.partition("_")
        digits = "".join(sign for sign in number if sign.isdecimal())
        if not digits:
            continue
        known = int(digits[:-1] or 0), int(digits[-1])
        if kind == "sm" and known[0] == capability[0] and known[1] <= capability[1]:
            return True
        if kind == "compute" and known <= capability:
            return True
    return False


MACHINE_CHECKS: tuple[Callable[[Machine], DoctorCheck], ...] = (
    driver, visible, divided, others, health, shadowing, container, shared_memory, limits, allocator, leftovers,
)  # fmt: skip


# --- words


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _dotted(version: tuple[int, int] | None) -> str:
    return "" if version is None else f"{version[0]}.{version[1]}"


def _size(size: Count) -> str:
    return "N/A" if isinstance(size, NotAvailable) else format_size(size)


def _plain(number: Count, *, size: bool = False) -> str:
    if isinstance(number, NotAvailable):
        return "an unknown number of" if not size else "N/A"
    if number == UNLIMITED:
        return "any number of" if not size else "any amount"
    return format_size(number) if size else f"{number:,}"


def _counted(number: int, one: str) -> str:
    many = f"{one}es" if one.endswith("s") else f"{one}s"
    return f"{number} {one if number == 1 else many}"
