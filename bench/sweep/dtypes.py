"""Runs every operation in the dtypes that CUDA supports and the CPU does not, on a virtual GPU and in a trace. Needs
no GPU.

    python -m bench.sweep.dtypes                # both
    python -m bench.sweep.dtypes --mode virtual

The dtypes of every operation come from torch's own tests (`op_db`). A case is one operation in one dtype, with or
without its backward pass. `legroom.observe.dispatch.wider_dtypes` lists the operations that are computed in a wider
dtype. A case that fails in this program is missing from that list, or cannot be computed on the CPU at all.
"""

import argparse
import contextlib
import logging
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

SAMPLES = 2
"""The number of inputs per case."""


class DtypeCase(NamedTuple):
    operation: Any
    dtype: torch.dtype
    backward: bool

    def __str__(self) -> str:
        name = " ".join(filter(None, (self.operation.name, self.operation.variant_test_name)))
        return f"{name} {str(self.dtype).removeprefix('torch.')}{' backward' if self.backward else ''}"

    def run(self) -> None:
        samples = self.operation.sample_inputs("cuda", self.dtype, requires_grad=self.backward)
        for _, sample in zip(range(SAMPLES), samples, strict=False):
            result = sample.output_process_fn_grad(
                self.operation(sample.input, *sample.args, **sample.kwargs)
            )
            results = result if isinstance(result, tuple | list) else [result]
            differentiable = [one for one in results if getattr(one, "requires_grad", False)]
            if self.backward and differentiable:
                torch.autograd.backward(differentiable, [torch.ones_like(one) for one in differentiable])


def operations() -> list[Any]:
    """Return torch's descriptions of its operations. Their module imports `expecttest`, which the descriptions do not
    need."""
    placeholder: Any = types.ModuleType("expecttest")
    placeholder.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", placeholder)
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def cases() -> Iterator[DtypeCase]:
    """Return the cases that CUDA supports and the CPU does not."""
    for operation in operations():
        for dtype in sorted(set(operation.dtypesIfCUDA) - set(operation.dtypes), key=str):
            yield DtypeCase(operation, dtype, False)
        if operation.supports_autograd:
            dtypes = set(operation.backward_dtypesIfCUDA) - set(operation.backward_dtypes)
            for dtype in sorted(dtypes, key=str):
                if dtype.is_floating_point or dtype.is_complex:
                    yield DtypeCase(operation, dtype, True)


def failures(device: contextlib.AbstractContextManager[Any]) -> tuple[int, dict[str, str]]:
    """Return the number of cases, and the error of each case that fails on `device`."""
    failed: dict[str, str] = {}
    with device, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = list(cases())
        for case in every:
            try:
                case.run()
            except Exception as error:
                failed[str(case)] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return len(every), failed


def devices() -> dict[str, contextlib.AbstractContextManager[Any]]:
    from legroom.gpus.catalog import find_gpu
    from legroom.observe.virtual.gpu import VirtualGPU
    from legroom.predict.tracing.virtual_trace import make_device

    return {"virtual": VirtualGPU("8GiB"), "trace": make_device(find_gpu("8GiB"), "fake", lambda event: None)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=["virtual", "trace"])
    chosen = parser.parse_args().mode
    logging.disable(logging.CRITICAL)  # fake mode logs every error
    for mode, device in devices().items():
        if chosen in (None, mode):
            count, failed = failures(device)
            print(f"{mode}: {count - len(failed)} of {count} cases run")
            for name, error in failed.items():
                print(f"  {name:45} {error}")


if __name__ == "__main__":
    main()
