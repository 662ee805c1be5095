"""Calls that mix host and device tensors fail if they fail on CUDA, and only then."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from device_mismatch_cases import CASES, Case, outcome

from legroom import VirtualGPU


@pytest.fixture(scope="module", autouse=True)
def two_gpus() -> Iterator[None]:
    with VirtualGPU("1GiB,1GiB"):
        yield


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_call_succeeds_or_fails_as_on_cuda(case: Case) -> None:
    assert outcome(case) == case.expected


def test_the_error_names_both_devices_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match=r"found at least two devices, cuda:0 and cpu!"):
        torch.ones(3, device="cuda") + torch.ones(3)


def test_the_error_names_the_device_of_the_indexed_tensor() -> None:
    with pytest.raises(RuntimeError, match=r"same device as the indexed tensor \(cpu\)"):
        torch.ones(3)[torch.tensor([0], device="cuda")]


def test_intermediate_tensors_of_an_operation_may_be_on_the_host() -> None:
    log_probs = torch.randn(5, 1, 3, device="cuda").log_softmax(2)
    lengths = torch.tensor([5]), torch.tensor([2])
    loss = F.ctc_loss(log_probs, torch.tensor([[1, 2]], device="cuda"), *lengths, zero_infinity=True)
    assert loss.device == torch.device("cuda:0")


def test_batch_sizes_of_a_packed_sequence_stay_on_the_host() -> None:
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 1, device="cuda"), torch.tensor([3, 2]))
    assert (packed.data.device.type, packed.batch_sizes.device.type) == ("cuda", "cpu")


def test_a_failed_call_does_not_affect_the_next_one() -> None:
    with pytest.raises(RuntimeError):
        torch.ones(3, device="cuda") + torch.ones(3)
    assert (torch.ones(3, device="cuda") + torch.tensor(1.0)).sum().item() == 6
