"""Stores named tensors in one file in the safetensors format.

A file in this format contains the length of the header, a JSON header, and the bytes of the tensors. This module does
not use the safetensors library. The library writes with a single thread, makes a second copy of the tensors, and uses
neither fsync nor checksums. The tests read the files with the library.

Tensors with wider dtypes come first, so that every tensor is aligned and can be used directly in the memory-mapped
file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from legroom.train.checkpoints.files.checked_files import Checksum, read_file, write_file
from legroom.train.checkpoints.files.host_buffers import HostBuffers, bytes_of, memory_of

_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def can_hold(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and (
        tensor.layout is torch.strided and tensor.dtype in _NAMES and not tensor.is_meta
    )


@dataclass(slots=True)
class TensorFile:
    """Tensors to be written to a file."""

    head: bytes
    tensors: list[torch.Tensor]
    size: int
    buffers: HostBuffers | None = None

    def copy(self, buffers: HostBuffers) -> None:
        buffers.copy_from(self.tensors)
        self.buffers, self.tensors = buffers, []

    def write(self, path: Path) -> Checksum:
        if self.buffers is None:
            flat = [bytes_of(tensor) for tensor in self.tensors]
            return write_file(path, self.head, [memory_of(tensor) for tensor in flat])
        checksum = write_file(path, self.head, self.buffers.wait())
        self.buffers.release()
        return checksum


def tensor_file(tensors: Mapping[str, torch.Tensor]) -> TensorFile:
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in ordered:
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return TensorFile(head, [tensor for _, tensor in ordered], offset)


def read_tensors(path: Path, expected: Checksum) -> dict[str, torch.Tensor]:
    """Memory-map a file that `TensorFile` wrote, and return its tensors. Raises CheckpointError if the file is
    damaged."""
    contents = read_file(path, expected)
    header = json.loads(bytes(contents[8 : expected.head]))
    return _tensors(header, torch.frombuffer(contents, dtype=torch.uint8)[expected.head :])


def _tensors(header: dict[str, Any], data: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, stop = entry["data_offsets"]
            dtype = _TYPES[entry["dtype"]]
            tensors[name] = data[start:stop].view(dtype).reshape(entry["shape"])
    return tensors
