"""The search for a batch size that keeps the effective batch size."""

import torch
from torch import nn

import legroom
from legroom.integrations.training_monitor import fit_batch
from legroom.units import MiB

GPU = 100 * MiB


def test_the_gradients_of_the_previous_batch_count_if_gradients_are_accumulated() -> None:
    with legroom.VirtualGPU(GPU):
        # The weights and their gradients need 16 MiB each, and the activations 16 MiB per sample.
        model = nn.ParameterList([torch.ones(1 << 22, device="cuda")])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sizes = []

        def backward(batch: torch.Tensor) -> None:
            sizes.append(len(batch))
            (batch * model[0]).exp().sum().backward()

        fitted = fit_batch(backward, optimizer, torch.ones(8, 1, device="cuda"), effective=8)
        assert fitted.batch_size < 8
        assert sizes.count(fitted.batch_size) % 2 == 0
        for _ in range(fitted.accumulation_steps):  # the training itself
            backward(torch.ones(fitted.batch_size, 1, device="cuda"))
        whole = fit_batch(
            lambda batch: batch.sum().backward(),
            optimizer,
            torch.ones(2, 1, device="cuda", requires_grad=True),
            effective=2,
        )
    assert (whole.batch_size, whole.accumulation_steps) == (2, 1)
