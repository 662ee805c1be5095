"""The GPUs that can be named instead of a size: what they hold and how they behave.

Memory is what torch reports as a device's total (below the number on the box; it differs by some MiB between driver
versions). Multiprocessors and threads decide how kernels divide work, hence how much scratch some of them take;
the compute capability decides which kernels there are. The CUDA context is what a training process holds outside
PyTorch's allocator once cuBLAS and cuDNN are loaded: an estimate, since it depends on the driver.
"""

from dataclasses import dataclass

from legroom.errors import UsageError
from legroom.units import GiB, MiB, format_size, parse_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory: int
    """Total bytes, as torch reports them."""
    capability: tuple[int, int]
    multiprocessors: int
    aliases: tuple[str, ...] = ()

    @property
    def context(self) -> int:
        """Bytes that a training process holds outside PyTorch's allocator. Measured on an H200 (767 MiB once cuBLAS and
        cuDNN are loaded, with torch 2.11 for CUDA 13); smaller for older generations, which have fewer kernels to load."""
        for generation, size in ((9, 770), (8, 550), (7, 400)):
            if self.capability[0] >= generation:
                return size * MiB
        return 300 * MiB

    @property
    def threads_per_multiprocessor(self) -> int:
        """From the table of compute capabilities in the CUDA programming guide."""
        if self.capability == (7, 5):
            return 1024
        return 1536 if self.capability in _FEWER_THREADS else 2048


_FEWER_THREADS = {(8, 6), (8, 7), (8, 9), (12, 0), (12, 1)}


def find_gpu(named: str | int) -> Gpu:
    """A GPU by name (`a100-80gb`, `RTX 4090`, `t4`), or one of a given size (`24GiB`, bytes).

    A plain size is taken for a GPU of the Ampere generation: the kernels that most GPUs in use have.
    """
    if isinstance(named, str):
        wanted = _plain(named)
        for gpu in GPUS:
            if wanted in map(_plain, (gpu.name, *gpu.aliases)):
                return gpu
        if (
            wanted
            and not any(letter.isdigit() for letter in named[:1])
            and not named.lstrip().startswith(".")
        ):
            raise UsageError(
                f"no GPU is known as '{named}': name one of {', '.join(gpu.name for gpu in GPUS)}, "
                "or give its memory, such as 24GiB"
            )
        if wanted.replace(".", "", 1).isdecimal() and float(wanted) < MiB:  # no bytes, whatever was meant
            raise UsageError(
                f"'{named}' is a number, and a GPU is wanted: a size such as 8GiB, or a name such as rtx4090; to choose among real "
                "GPUs, set CUDA_VISIBLE_DEVICES"
            )
    size = parse_size(named)
    return Gpu(name=format_size(size), memory=size, capability=(8, 0), multiprocessors=108)


def _plain(name: str) -> str:
    """Names as people write them: case, spaces, dashes and the maker's own words do not matter."""
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in ("nvidia", "geforce", "tesla", "quadro"))


def _gpu(
    name: str, memory: float, capability: tuple[int, int], multiprocessors: int, *aliases: str, exact: int = 0
) -> Gpu:
    return Gpu(
        name=name,
        memory=exact or int(memory * GiB),
        capability=capability,
        multiprocessors=multiprocessors,
        aliases=aliases,
    )


GPUS: tuple[Gpu, ...] = (
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


def parse_gpus(text: str) -> list[int]:
    """`8GiB`, `8GiB,8GiB` or `rtx4090` as bytes for PyTorch, one per GPU.

    A size is what PyTorch may use; of a GPU by name, the CUDA context takes its part first.
    """
    gpus = [find_gpu(part.strip()) for part in text.split(",")]
    return [gpu.memory - gpu.context if gpu in GPUS else gpu.memory for gpu in gpus]
