"""GPU specifications: the values that `--gpu` and `gpu=` accept, and the table of GPUs that can be given by name.

A size (`8GiB`) is the memory that PyTorch's allocator can use. The CUDA context is not subtracted from a size. For a
name (`t4`), the memory that PyTorch's allocator can use is the total memory of that GPU minus the CUDA context.
`find_gpu` converts a size or a name to a `GpuSpec`.
"""

import difflib
import re
from dataclasses import dataclass

from legroom.errors import UsageError
from legroom.units import GiB, KiB, MiB, parse_size


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU: its memory, and the properties that determine which kernels run on it."""

    name: str
    """The name (`t4`) or size (`8GiB`, `8GiB:sm90`), as `find_gpu` accepts it."""
    total: int
    """The total memory in bytes, as torch and nvidia-smi report it."""
    context: int
    """The bytes that a training process uses outside PyTorch's allocator, or 0 if the GPU was given as a size."""
    capability: tuple[int, int]
    sm_count: int
    """The number of streaming multiprocessors.

    Kernels divide their work among the multiprocessors, so this number determines the size of some workspaces.
    """
    aliases: tuple[str, ...] = ()

    @property
    def usable(self) -> int:
        return self.total - self.context

    @property
    def is_size(self) -> bool:
        return self.name[:1].isdigit()

    @property
    def threads_per_sm(self) -> int:
        """The maximum number of resident threads per SM, from the table of compute capabilities in the CUDA
        programming guide.
        """
        if self.capability == (7, 5):
            return 1024
        return 1536 if self.capability in _FEWER_THREADS else 2048

    @property
    def shared_memory_per_sm(self) -> int:
        """The shared memory per SM in bytes, from the table of compute capabilities in the CUDA programming guide."""
        return next(size for since, size in _SHARED_MEMORY if self.capability >= since)

    @property
    def shared_memory_per_block(self) -> int:
        """The maximum shared memory of one block in bytes, if the kernel requests more than the default.

        Since Ampere, CUDA reserves 1 KiB of shared memory per block.
        """
        if self.capability < (7, 0):
            return 48 * KiB
        return self.shared_memory_per_sm - (KiB if self.capability >= (8, 0) else 0)


_FEWER_THREADS = {(8, 6), (8, 7), (8, 9), (12, 0), (12, 1)}
_SHARED_MEMORY = (
    ((12, 0), 100 * KiB),
    ((9, 0), 228 * KiB),
    ((8, 8), 100 * KiB),
    ((8, 7), 164 * KiB),
    ((8, 6), 100 * KiB),
    ((8, 0), 164 * KiB),
    ((7, 5), 64 * KiB),
    ((6, 1), 96 * KiB),
    ((0, 0), 64 * KiB),
)


def find_gpu(value: str | int | GpuSpec) -> GpuSpec:
    """Return the GPU for a name (`a100-80gb`, `RTX 4090`), a size (`24GiB`, `24GiB:sm90`) or a number of bytes.

    A GPU given as a size has compute capability 8.0 (Ampere), unless the size includes another capability. Ampere is
    the default because its kernels run on most GPUs in use.
    """
    if isinstance(value, GpuSpec):
        return value
    if isinstance(value, int):
        return _of_size(parse_size(value))
    if not isinstance(value, str):
        raise UsageError(
            f"The GPU must be given as a string such as `8GiB` or `t4`, not {type(value).__name__}."
        )
    wanted = _normalized(value)
    for gpu in GPUS:
        if wanted in map(_normalized, (gpu.name, *gpu.aliases)):
            return gpu
    size, colon, architecture = value.partition(":")
    try:
        if size.strip().replace(".", "", 1).isdecimal() and float(size) < MiB:
            raise UsageError("a number without a unit")
        memory = parse_size(size)
    except UsageError:
        raise _invalid(value) from None
    if not colon:
        return _of_size(memory)
    match = re.fullmatch(r"sm_?(\d+)(\d)", architecture.strip().lower())
    capability = (int(match[1]), int(match[2])) if match else None
    if capability not in {gpu.capability for gpu in GPUS}:
        known = sorted({gpu.capability for gpu in GPUS})
        raise UsageError(
            f"`{architecture.strip()}` is not a supported compute capability. "
            f"Use one of {', '.join(f'`sm{major}{minor}`' for major, minor in known)}."
        )
    return _of_size(memory, capability)


def parse_gpus(text: str) -> list[GpuSpec]:
    return [find_gpu(part.strip()) for part in text.split(",")] if isinstance(text, str) else [find_gpu(text)]


def real_gpu(
    name: str, total: int, *, capability: tuple[int, int] | None = None, sm_count: int | None = None
) -> GpuSpec:
    """Return a GPU in this machine, given the name and the total memory that its driver reports.

    A GPU that is not in the table is treated as Ampere unless `capability` is given.
    """
    wanted = _normalized(name)
    known = next((gpu for gpu in GPUS if wanted in map(_normalized, (gpu.name, *gpu.aliases))), None)
    capability = capability or (known.capability if known else DEFAULT_CAPABILITY)
    return GpuSpec(
        name=known.name if known else name,
        total=total,
        context=_context(capability),
        capability=capability,
        sm_count=sm_count or (known or _first_with(capability)).sm_count,
    )


def _invalid(value: str) -> UsageError:
    if "," in value:
        return UsageError(
            f"`{value}` lists several GPUs. Specify only one GPU. `legroom launch` accepts several GPUs."
        )
    names = [gpu.name for gpu in GPUS]
    close = difflib.get_close_matches(_normalized(value), names, n=3) or ["t4", "rtx4090", "h200"]
    which = ", ".join(f"`{name}`" for name in close)
    number = " To select a real GPU, set `CUDA_VISIBLE_DEVICES`." if value.strip().isdecimal() else ""
    shown = f"`{value}`" if value.strip() else "An empty string"
    return UsageError(
        f"{shown} is not a valid GPU. Use a size (`8GiB`, `8GiB:sm90`) or a name ({which}, ...).{number}"
    )


DEFAULT_CAPABILITY = (8, 0)


def _of_size(size: int, capability: tuple[int, int] = DEFAULT_CAPABILITY) -> GpuSpec:
    unit, letters = next((unit, letters) for unit, letters in _UNITS if size % unit == 0)
    suffix = "" if capability == DEFAULT_CAPABILITY else f":sm{capability[0]}{capability[1]}"
    return GpuSpec(
        name=f"{size // unit}{letters}{suffix}",
        total=size,
        context=0,
        capability=capability,
        sm_count=_first_with(capability).sm_count,
    )


_UNITS = ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB"), (1, "B"))


def _first_with(capability: tuple[int, int]) -> GpuSpec:
    """Return the first GPU in the table with this capability, or an A100 if there is none."""
    same = [gpu for gpu in GPUS if gpu.capability == capability]
    return same[0] if same else next(gpu for gpu in GPUS if gpu.capability == DEFAULT_CAPABILITY)


CUBLAS_HANDLES = 2
"""The number of cuBLAS handles in `context`: one for the main thread and one for the thread of the backward pass."""


def cublas_handle_bytes(capability: tuple[int, int]) -> int:
    """Return the number of bytes that one cuBLAS handle uses outside PyTorch's allocator.

    PyTorch creates one handle for each thread.

    On an H200, a handle uses 64 to 66 MiB, which is twice the default workspace on this GPU. Other GPUs, whose
    default workspace is smaller, were not measured.
    """
    return (66 if capability[0] >= 9 else 10) * MiB


STREAM_BYTES = 70 * MiB
"""The number of bytes outside PyTorch's allocator for the streams that torch creates when the first stream is used,
measured on an H200.
"""
SOLVER_BYTES = 98 * MiB
"""The number of bytes that a cuSOLVER handle uses outside PyTorch's allocator, measured on an H200."""
FOURIER_BYTES = 8 * MiB
"""The number of bytes that cuFFT uses outside PyTorch's allocator, measured on an H200."""


def _context(capability: tuple[int, int]) -> int:
    """Return the bytes that a training process uses outside PyTorch's allocator after loading cuBLAS and cuDNN.

    The value was measured on an H200 (767 MiB with torch 2.11 for CUDA 13). Other GPUs were not measured. Older
    generations have fewer kernels to load, so a smaller value is assumed for older GPUs.
    """
    for generation, size in ((9, 770), (8, 550), (7, 400)):
        if capability[0] >= generation:
            return size * MiB
    return 300 * MiB


def _normalized(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in ("nvidia", "geforce", "tesla", "quadro"))


def _gpu(
    name: str, total: float, capability: tuple[int, int], sm_count: int, *aliases: str, exact: int = 0
) -> GpuSpec:
    return GpuSpec(
        name=name,
        total=exact or int(total * GiB),
        context=_context(capability),
        capability=capability,
        sm_count=sm_count,
        aliases=aliases,
    )


GPUS: tuple[GpuSpec, ...] = (
    _gpu("b200", 178.3, (10, 0), 148),
    _gpu("h200", 139.8, (9, 0), 132, "h200-141gb", "h200-sxm", exact=150109880320),
    _gpu("gh200", 94.5, (9, 0), 132, "gh200-96gb"),
    _gpu("h100", 79.1, (9, 0), 132, "h100-80gb", "h100-sxm", "h100-80gb-hbm3"),
    _gpu("h100-pcie", 79.1, (9, 0), 114, "h100-80gb-pcie"),
    _gpu("a100-80gb", 79.1, (8, 0), 108, "a100-sxm4-80gb", "a100-80gb-pcie"),
    _gpu("a100-40gb", 39.4, (8, 0), 108, "a100", "a100-sxm4-40gb", "a100-pcie-40gb"),
    _gpu("l40s", 44.4, (8, 9), 142),
    _gpu("l40", 44.4, (8, 9), 142),
    _gpu("l4", 22.0, (8, 9), 58),
    _gpu("a40", 44.4, (8, 6), 84),
    _gpu("a10", 22.0, (8, 6), 72),
    _gpu("a10g", 22.0, (8, 6), 80),
    _gpu("rtx-a6000", 47.5, (8, 6), 84, "a6000"),
    _gpu("rtx-6000-ada", 47.4, (8, 9), 142),
    _gpu("rtx5090", 31.3, (12, 0), 170, "5090"),
    _gpu("rtx5080", 15.4, (12, 0), 84, "5080"),
    _gpu("rtx4090", 23.6, (8, 9), 128, "4090"),
    _gpu("rtx4080", 15.6, (8, 9), 76, "4080"),
    _gpu("rtx4070", 11.7, (8, 9), 46, "4070"),
    _gpu("rtx4060ti-16gb", 15.6, (8, 9), 34),
    _gpu("rtx4060", 7.7, (8, 9), 24, "4060"),
    _gpu("rtx3090", 23.6, (8, 6), 82, "3090"),
    _gpu("rtx3080", 9.7, (8, 6), 68, "3080", "rtx3080-10gb"),
    _gpu("rtx3070", 7.7, (8, 6), 46, "3070"),
    _gpu("rtx3060", 11.7, (8, 6), 28, "3060", "rtx3060-12gb"),
    _gpu("rtx2080ti", 10.7, (7, 5), 68, "2080ti"),
    _gpu("t4", 14.7, (7, 5), 40, "colab"),
    _gpu("v100-32gb", 31.7, (7, 0), 80),
    _gpu("v100-16gb", 15.7, (7, 0), 80, "v100"),
    _gpu("p100", 15.8, (6, 0), 56, "p100-16gb"),
    _gpu("gtx1080ti", 10.9, (6, 1), 28, "1080ti"),
)
"""The table of GPUs. The total memory is less than the advertised size, and differs by a few MiB between driver
versions.
"""
