"""The checks of `legroom doctor`.

The result of a check depends only on the collected facts, so tests can simulate any machine.
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
from legroom.gpus.machine import named_gpus
from legroom.gpus.nvml import Count, NotAvailable
from legroom.memory.allocator.settings import ENVIRONMENT_NAMES, AllocatorSettings
from legroom.units import GiB, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """The result of one check."""

    name: str
    value: str
    findings: tuple[Finding, ...] = ()


def driver(machine: Machine) -> DoctorCheck:
    if machine.driver_error:
        return DoctorCheck(
            name="driver",
            value="not responding",
            findings=(
                Finding(
                    code="LG901",
                    message=f"The NVIDIA driver is loaded, but its library does not respond: {machine.driver_error}.",
                    fix="If the driver was updated, restart the machine. In a container, enable GPUs with `docker run --gpus all`.",
                ),
            ),
        )
    if isinstance(machine.driver, NotAvailable):
        return DoctorCheck(name="driver", value="none (no NVIDIA GPU)")
    supported = f", supports CUDA up to {_dotted(machine.driver_cuda)}" if machine.driver_cuda else ""
    return DoctorCheck(
        name="driver", value=f"{machine.driver}{supported}", findings=tuple(_driver_age(machine))
    )


def _driver_age(machine: Machine) -> Iterator[Finding]:
    required = _version(machine.torch_cuda)
    if required is None or machine.driver_cuda is None or required[0] <= machine.driver_cuda[0]:
        return  # within one major version, an older driver supports a newer CUDA
    yield Finding(
        code="LG902",
        message=f"torch {machine.torch} was built for CUDA {machine.torch_cuda}, but driver {machine.driver} supports only CUDA {_dotted(machine.driver_cuda)}.",
        fix=f"Install a driver that supports CUDA {required[0]}, or a torch build for CUDA {machine.driver_cuda[0]} (see pytorch.org).",
    )


def torch_build(machine: Machine, torch: TorchFacts | None = None) -> DoctorCheck:
    findings = []
    version = torch.version if torch is not None and torch.version else machine.torch
    built = (torch.cuda if torch is not None else "") or machine.torch_cuda
    if torch is not None and torch.error:
        findings.append(
            Finding(
                code="LG903",
                message=f"torch {'hangs' if torch.hung else 'does not work'}: {torch.error}.",
                fix="Run `legroom explain` with this error. Reinstalling torch in a new environment usually helps.",
            )
        )
    hip = torch is not None and bool(torch.hip)
    if version and not built and not hip and machine.gpus:
        findings.append(
            Finding(
                code="LG904",
                message=f"torch {version} was built without CUDA, but this machine has {_count(len(machine.gpus), 'GPU')}.",
                fix="Install the CUDA build of torch. The command for your driver is on pytorch.org.",
            )
        )
    elif torch is not None and version and machine.gpus and not torch.device_count and not torch.error:
        findings.append(
            Finding(
                code="LG905",
                message=f"The driver reports {_count(len(machine.gpus), 'GPU')}, but no GPU is available to torch.",
                fix="Check CUDA_VISIBLE_DEVICES, and fix the driver problems in this report.",
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
                message="torch cannot find cuDNN. Convolutions are slow or fail.",
                fix="Reinstall torch. The torch wheels include cuDNN.",
            )
        )
    if torch.cuda and torch.device_count > 1 and not torch.nccl:
        findings.append(
            Finding(
                code="LG907",
                message=f"torch was built without NCCL, but this machine has {torch.device_count} GPUs.",
                fix="Install a build with NCCL (included in the Linux wheels), or use the gloo backend.",
            )
        )
    found = [
        f"{name} {value}" for name, value in (("cuDNN", _cudnn(torch.cudnn)), ("NCCL", torch.nccl)) if value
    ]
    return DoctorCheck(
        name="libraries", value=", ".join(found) or "no cuDNN, no NCCL", findings=tuple(findings)
    )


def _cudnn(number: str) -> str:
    """Convert cuDNN's version number to text: `9.10.2` for 91002, and `8.9.2` for 8902."""
    if not number.isdecimal():
        return number
    version = int(number)
    scale = 10000 if version >= 90000 else 1000
    return f"{version // scale}.{version % scale // 100}.{version % 100}"


def library_path(machine: Machine) -> DoctorCheck:
    """Check for CUDA libraries on LD_LIBRARY_PATH, which override the libraries bundled with torch."""
    path = machine.environ.get("LD_LIBRARY_PATH", "")
    found = sorted(
        {name for folder in path.split(os.pathsep) if folder for name in _cuda_libraries(Path(folder))}
    )
    if not found:
        return DoctorCheck(name="library path", value="no CUDA libraries" if path else "not set")
    return DoctorCheck(
        name="library path",
        value=", ".join(found),
        findings=(
            Finding(
                code="LG908",
                message=f"LD_LIBRARY_PATH contains {', '.join(found)}, which torch may load instead of its "
                "own libraries.",
                fix="Unset LD_LIBRARY_PATH for training. The torch wheels include these libraries.",
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


def visible_gpus(machine: Machine) -> DoctorCheck:
    entries = named_gpus(machine.environ)
    count = len(machine.gpus)
    if entries is None:
        shown = ", ".join(f"{gpu.index}: {gpu.name}, {_size(gpu.total)}" for gpu in machine.gpus)
        return DoctorCheck(name="GPUs", value=shown or "none")
    setting = machine.environ["CUDA_VISIBLE_DEVICES"]
    value = f"{_count(count, 'GPU')}; CUDA_VISIBLE_DEVICES={setting or '(empty)'}"
    if not count:
        return DoctorCheck(name="GPUs", value=f"none; CUDA_VISIBLE_DEVICES={setting or '(empty)'}")
    if not entries or entries[0] == "-1":
        return DoctorCheck(
            name="GPUs", value=value, findings=(_hidden(f"CUDA_VISIBLE_DEVICES={setting} hides all GPUs."),)
        )
    for entry in entries:
        if entry.startswith(("GPU-", "MIG-")):
            continue
        if not entry.isdecimal() or int(entry) >= count:
            available = (
                "only GPU 0 is available" if count == 1 else f"the available GPUs are 0 to {count - 1}"
            )
            return DoctorCheck(
                name="GPUs",
                value=value,
                findings=(
                    _hidden(
                        f"CUDA_VISIBLE_DEVICES contains '{entry}', but {available}. CUDA ignores "
                        "this entry and all entries after it."
                    ),
                ),
            )
    return DoctorCheck(name="GPUs", value=value)


def _hidden(message: str) -> Finding:
    return Finding(
        code="LG909",
        message=message,
        fix="Unset CUDA_VISIBLE_DEVICES, or list GPUs that exist, such as 0 or 0,1.",
    )


def mig(machine: Machine) -> DoctorCheck:
    partitioned = [gpu for gpu in machine.gpus if gpu.is_mig is True]
    if not partitioned:
        return DoctorCheck(name="MIG", value="disabled" if machine.gpus else "no GPU")
    which = ", ".join(str(gpu.index) for gpu in partitioned)
    gpus = f"GPU {which} is" if len(partitioned) == 1 else f"GPUs {which} are"
    return DoctorCheck(
        name="MIG",
        value=f"enabled on GPU {which}",
        findings=(
            Finding(
                code="LG910",
                message=f"{gpus} partitioned into MIG instances. A process can use only one instance and its memory.",
                fix="In estimates, use the memory of one instance. `nvidia-smi -L` lists the instances. "
                "Select an instance with CUDA_VISIBLE_DEVICES=MIG-...",
            ),
        ),
    )


def other_processes(machine: Machine) -> DoctorCheck:
    findings = []
    per_gpu = []
    for gpu in machine.gpus:
        if isinstance(gpu.processes, NotAvailable):
            per_gpu.append(f"GPU {gpu.index}: unknown")
            continue
        foreign = [process for process in gpu.processes if process.pid != os.getpid()]
        used = sum(process.bytes for process in foreign if not isinstance(process.bytes, NotAvailable))
        per_gpu.append(f"GPU {gpu.index}: {_count(len(foreign), 'process') if foreign else 'none'}")
        total = gpu.total if not isinstance(gpu.total, NotAvailable) else 0
        if foreign and used > total // 20:
            pids = ", ".join(str(process.pid) for process in foreign[:4]) + (
                ", ..." if len(foreign) > 4 else ""
            )
            processes = f"Another process ({pids})" if len(foreign) == 1 else f"Other processes ({pids})"
            findings.append(
                Finding(
                    code="LG911",
                    message=f"{processes} use{'s' if len(foreign) == 1 else ''} {format_size(used)} of {_size(gpu.total)} on GPU {gpu.index}.",
                    fix=f"Stop {'this process' if len(foreign) == 1 else 'processes that you no longer need'} (see `ps -p PID`), or select "
                    "another GPU with CUDA_VISIBLE_DEVICES.",
                    bytes=used,
                    evidence={"pids": [process.pid for process in foreign]},
                )
            )
    return DoctorCheck(name="other processes", value="; ".join(per_gpu) or "no GPU", findings=tuple(findings))


def health(machine: Machine) -> DoctorCheck:
    findings = []
    for gpu, state in zip(machine.gpus, machine.states, strict=False):
        if not isinstance(state.uncorrected_errors, NotAvailable) and state.uncorrected_errors:
            findings.append(
                Finding(
                    code="LG912",
                    message=f"GPU {gpu.index} had {_count(state.uncorrected_errors, 'uncorrected memory error')}.",
                    fix="Restart the machine. If more errors occur, replace the GPU.",
                )
            )
        if state.is_exclusive:
            findings.append(
                Finding(
                    code="LG913",
                    message=(
                        f"GPU {gpu.index} is in exclusive or prohibited compute mode, so at most one process "
                        "can use this GPU."
                    ),
                    fix="Run `nvidia-smi -c DEFAULT` as administrator, or wait until the other process exits.",
                )
            )
    value = (
        "no GPU"
        if not machine.gpus
        else ("problems found" if findings else "no memory errors, default compute mode")
    )
    return DoctorCheck(name="GPU health", value=value, findings=tuple(findings))


def host_memory(machine: Machine) -> DoctorCheck:
    host = machine.host
    memory = f"{_size(host.available)} free of {_size(host.total)}"
    if isinstance(host.limit, NotAvailable) or (
        not isinstance(host.total, NotAvailable) and host.limit >= host.total
    ):
        return DoctorCheck(name="host memory", value=f"{memory}, no container limit")
    value = f"{memory}; limit {format_size(host.limit)}"
    largest = max((gpu.total for gpu in machine.gpus if not isinstance(gpu.total, NotAvailable)), default=0)
    if host.limit < max(largest, 4 * GiB):
        comparison = (
            f"The GPU has more memory ({format_size(largest)})."
            if host.limit < largest
            else "This limit is too low for most training."
        )
        return DoctorCheck(
            name="host memory",
            value=value,
            findings=(
                Finding(
                    code="LG914",
                    message=(
                        f"The container or batch job limits host memory to {format_size(host.limit)}. "
                        f"{comparison}"
                    ),
                    fix="Raise the limit (`docker run --memory`, Slurm `--mem`), or use fewer workers and load checkpoints with `mmap=True`.",
                    bytes=host.limit,
                ),
            ),
        )
    return DoctorCheck(name="host memory", value=value)


def shared_memory(machine: Machine) -> DoctorCheck:
    if isinstance(machine.shared_total, NotAvailable) or isinstance(machine.shared_free, NotAvailable):
        return DoctorCheck(name="/dev/shm", value="not available")
    value = f"{format_size(machine.shared_free)} free of {format_size(machine.shared_total)}"
    if machine.shared_free >= GiB:
        return DoctorCheck(name="/dev/shm", value=value)
    return DoctorCheck(
        name="/dev/shm",
        value=value,
        findings=(
            Finding(
                code="LG915",
                message=f"Only {format_size(machine.shared_free)} of shared memory is free in /dev/shm. DataLoader workers may crash with a bus error.",
                fix="Start the container with `--ipc=host` or `--shm-size=8g`, or call `torch.multiprocessing.set_sharing_strategy('file_system')`.",
                bytes=machine.shared_total,
            ),
        ),
    )


def limits(machine: Machine) -> DoctorCheck:
    files = machine.open_files
    value = f"{_limit(files)} open files, {_limit(machine.locked, size=True)} locked memory"
    if isinstance(files, NotAvailable) or files == UNLIMITED or files >= 1024:
        return DoctorCheck(name="limits", value=value)
    return DoctorCheck(
        name="limits",
        value=value,
        findings=(
            Finding(
                code="LG916",
                message=f"This process can open only {files} files, which may be too few for DataLoader workers.",
                fix="Raise the limit with `ulimit -n 65536`.",
            ),
        ),
    )


def allocator(machine: Machine) -> DoctorCheck:
    """Check the allocator settings. Torch reads only the first variable of `ENVIRONMENT_NAMES` that is set."""
    settings = [(name, machine.environ[name]) for name in ENVIRONMENT_NAMES if name in machine.environ]
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
        intended = difflib.get_close_matches(name, ENVIRONMENT_NAMES, 1, 0.85)[0]
        findings.append(
            Finding(
                code="LG917",
                message=f"{name} is set, but torch does not read this variable.",
                fix=f"Did you mean {intended}?",
            )
        )
    if settings:
        name, text = settings[0]
        try:
            AllocatorSettings.parse(text)
        except UsageError as error:
            findings.append(
                Finding(
                    code="LG917",
                    message=f"torch rejects {name}={text}: {str(error).rstrip('.')}.",
                    fix="Correct or unset this variable.",
                )
            )
        for other, ignored in settings[1:]:
            if ignored != text:
                findings.append(
                    Finding(
                        code="LG918",
                        message=f"{other}={ignored} is ignored because {name} is also set.",
                        fix=f"Set only one of the two variables: unset {name}, or set all options in {name}.",
                    )
                )
    value = ", ".join(f"{name}={text}" for name, text in settings) or "default settings"
    return DoctorCheck(name="allocator", value=value, findings=tuple(findings))


_DEBUG_SETTINGS = {
    "CUDA_LAUNCH_BLOCKING": "every kernel launch waits for the kernel to finish",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation calls the driver",
    "NCCL_P2P_DISABLE": "GPUs exchange data through host memory",
}


def debug_settings(machine: Machine) -> DoctorCheck:
    active = [name for name in _DEBUG_SETTINGS if machine.environ.get(name, "0") not in ("0", "")]
    return DoctorCheck(
        name="debug settings",
        value=", ".join(f"{name}={machine.environ[name]}" for name in active) or "none",
        findings=tuple(
            Finding(
                code="LG919",
                message=f"{name} is set, which slows training down: {_DEBUG_SETTINGS[name]}.",
                fix=f"Unset {name} for training.",
            )
            for name in active
        ),
    )


def computation(torch: TorchFacts) -> DoctorCheck:
    findings = []
    results = []
    for device in torch.devices:
        sm = f"sm_{device.capability[0]}{device.capability[1]}" if device.capability else ""
        if not device.error:
            results.append(f"{device.device} OK")
        else:
            results.append(f"{device.device} failed")
            findings.append(
                Finding(
                    code="LG920",
                    message=f"A test computation on {device.device}{f' ({device.name})' if device.name else ''} failed: {device.error}.",
                    fix="Run `legroom explain` with this error. Restart the machine, or use another GPU.",
                )
            )
        if sm and torch.architectures and not _has_kernels(device.capability, torch.architectures):
            findings.append(
                Finding(
                    code="LG921",
                    message=f"{device.device} is {sm}, but this torch build has kernels only for {', '.join(torch.architectures)}.",
                    fix="Install a torch build that supports this GPU (see pytorch.org).",
                )
            )
    return DoctorCheck(name="computation", value=", ".join(results) or "not tested", findings=tuple(findings))


def _has_kernels(capability: tuple[int, int] | None, architectures: tuple[str, ...]) -> bool:
    """Return True if the build has kernels for a GPU. A kernel compiled for one GPU runs on GPUs with the same major
    version and the same or a higher minor version. PTX (`compute_`) runs on all newer GPUs.
    """
    if capability is None:
        return True
    for architecture in architectures:
        kind, _, number = architecture.partition("_")
        digits = "".join(character for character in number if character.isdecimal())
        if not digits:
            continue
        built = int(digits[:-1] or 0), int(digits[-1])
        if kind == "sm" and built[0] == capability[0] and built[1] <= capability[1]:
            return True
        if kind == "compute" and built <= capability:
            return True
    return False


MACHINE_CHECKS: tuple[Callable[[Machine], DoctorCheck], ...] = (
    driver, visible_gpus, mig, other_processes, health, library_path, host_memory, shared_memory, limits, allocator,
    debug_settings,
)  # fmt: skip


# --- formatting


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _dotted(version: tuple[int, int] | None) -> str:
    return "" if version is None else f"{version[0]}.{version[1]}"


def _size(size: Count) -> str:
    return "N/A" if isinstance(size, NotAvailable) else format_size(size)


def _limit(number: Count, *, size: bool = False) -> str:
    if isinstance(number, NotAvailable):
        return "unknown number of" if not size else "unknown"
    if number == UNLIMITED:
        return "unlimited"
    return format_size(number) if size else f"{number:,}"


def _count(number: int, one: str) -> str:
    many = f"{one}es" if one.endswith("s") else f"{one}s"
    return f"{number} {one if number == 1 else many}"
