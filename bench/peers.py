"""What other estimators say of the same training steps: torch's MemTracker, Accelerate's estimate-memory, torchinfo.

Each gives bytes, or None where it cannot do the case or takes longer than `PATIENCE`; each is asked in a process of its own, as one of them
hangs at GPT-2 medium. All look at the model without data. MemTracker watches one whole step
under fake tensors (it raises at a second one); Accelerate multiplies the size of the weights by four, which stands for
gradients and Adam; torchinfo adds up weights and outputs, twice the latter for the backward pass.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.workloads import BUILDERS, Case, build

PATIENCE = 120.0
"""Seconds for one case and one estimator."""


def ask_all(case: Case) -> tuple[int | None, ...]:
    """What each of PEERS says, in their order."""
    return tuple(_asked(ask, case) for ask in PEERS.values())


def _asked(ask: "Peer", case: Case) -> int | None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(ask, case, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(PATIENCE) else None
    except EOFError:  # it died
        return None
    finally:
        process.kill()
        process.join()


def _answer(ask: "Peer", case: Case, sender: Connection) -> None:
    sender.send(ask(case))


def mem_tracker(case: Case) -> int | None:
    from torch.distributed._tools.mem_tracker import MemTracker

    swap = torch.utils.swap_tensors
    torch.utils.swap_tensors = _take_over  # `Module.to` swaps fake tensors, which fails
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model, optimizer, step = build(case, "cpu")
            tracker = MemTracker()
            tracker.track_external(model, optimizer)
            with tracker:
                step()
            peak = tracker.get_tracker_snapshot("peak")
        return max(int(sizes["Total"]) for sizes in peak.values())
    except Exception:
        return None
    finally:
        torch.utils.swap_tensors = swap


def _take_over(tensor: Any, other: Any) -> None:
    tensor.data = other.data


def accelerate_estimate(case: Case) -> int | None:
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    try:
        with torch.device("meta"):
            model = BUILDERS[case.model]().model
        total, _ = calculate_maximum_sizes(model)
        precision = {"amp_fp16": "float16", "amp_bf16": "bfloat16", "bf16": "bfloat16"}.get(
            case.precision, "float32"
        )
        stages = estimate_training_usage(total, precision)
        return max(int(size) for size in stages.values())
    except Exception:
        return None


def torchinfo_estimate(case: Case) -> int | None:
    try:
        import torchinfo
    except ImportError:
        return None
    try:
        with torch.device("meta"):
            spec = BUILDERS[case.model]()
        inputs: Any = spec.batch(case.batch, "meta")[0]
        told = torchinfo.summary(spec.model, input_data=[inputs], device="meta", verbose=0)
        return int(told.total_input + told.total_param_bytes + 2 * told.total_output_bytes)
    except Exception:
        return None


Peer = Callable[[Case], int | None]
PEERS: dict[str, Peer] = {
    "MemTracker": mem_tracker,
    "Accelerate": accelerate_estimate,
    "torchinfo": torchinfo_estimate,
}
