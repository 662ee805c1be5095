"""Inside `hide_real_gpus`, torch counts its GPUs while none is visible."""

import os

import pytest
import torch

from legroom.observe.fake.hidden_gpus import hide_real_gpus


@pytest.mark.parametrize("visible", [None, "0,1"])
def test_gpus_are_counted_while_hidden_and_the_environment_is_restored(visible, monkeypatch):
    visible_devices = []
    monkeypatch.setattr(
        torch._C,
        "_cuda_getDeviceCount",
        lambda: visible_devices.append(os.environ["CUDA_VISIBLE_DEVICES"]),
        raising=False,
    )
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    hide_real_gpus()

    assert visible_devices == [""]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


def test_a_failing_driver_is_ignored(monkeypatch):
    def fail() -> int:
        raise RuntimeError("no CUDA-capable device is detected")

    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", fail, raising=False)

    hide_real_gpus()
