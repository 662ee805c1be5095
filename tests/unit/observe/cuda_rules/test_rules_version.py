"""The versions that the measurements for the CUDA rules were made with."""

import pytest
import torch

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.convolution import cudnn_process
from legroom.observe.cuda_rules.rules import MEASURED_RELEASE, CudaRules
from legroom.observe.cuda_rules.versions import RULES_VERSION


def test_the_rules_state_the_versions_and_the_gpu_of_their_measurements():
    assert (RULES_VERSION.torch, RULES_VERSION.cudnn, RULES_VERSION.gpu) == ("2.11", "9.19", "NVIDIA H200")
    assert MEASURED_RELEASE == (2, 11)


@pytest.mark.parametrize(
    ("installed", "described"), [("2.6.0+cu124", (2, 6)), ("2.11.0", (2, 11)), ("2.13.0+cpu", (2, 11))]
)
def test_the_kernels_are_those_of_the_installed_torch_up_to_the_measured_one(
    monkeypatch, installed, described
):
    monkeypatch.setattr(torch, "__version__", installed)

    assert CudaRules(find_gpu("h200")).release == described


def test_patch_releases_and_build_tags_do_not_count_as_another_version():
    assert RULES_VERSION.differing(torch="2.11.3+cu130", cudnn="9.19.1") == {}


def test_cudnn_releases_that_choose_the_same_kernels_do_not_count_as_another_version():
    assert RULES_VERSION.differing(torch="2.11", cudnn="9.12.0") == {}
    assert RULES_VERSION.differing(torch="2.11", cudnn="9.20.0.48") == {}


def test_other_versions_are_named():
    differing = RULES_VERSION.differing(torch="2.13.0+cpu", cudnn="9.21.1")

    assert differing == {"torch": "2.13", "cuDNN": "9.21"}
    assert RULES_VERSION.differing(torch="2.11", cudnn="9.8.0") == {"cuDNN": "9.8"}


def test_a_cudnn_that_is_not_installed_does_not_differ():
    assert RULES_VERSION.differing(torch="2.11", cudnn=None) == {}


def differing_after(monkeypatch, *operations):
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    monkeypatch.setattr("legroom.observe.cuda_rules.rules.installed_cudnn", lambda: "9.21.0")
    rules = CudaRules(find_gpu("v100"))  # a GPU without a table and a forest
    for func, *args in operations:
        rules.plan(func, args, {}, func(*args))
    return rules.differing_versions()


def test_another_cudnn_matters_only_to_programs_that_use_it(monkeypatch):
    images, weight = torch.zeros(2, 3, 8, 8), torch.zeros(4, 3, 3, 3)
    convolution = (
        torch.ops.aten.convolution.default, images, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
    )  # fmt: skip

    assert differing_after(monkeypatch, (torch.ops.aten.sum.default, images)) == {}
    assert differing_after(monkeypatch, convolution) == {"cuDNN": "9.21"}


def test_a_cudnn_package_has_a_version_even_if_it_is_not_queried(monkeypatch):
    monkeypatch.setattr(cudnn_process, "cudnn_process", lambda: None)
    monkeypatch.setattr(cudnn_process, "packaged_version", lambda: "9.21.1.3")

    assert cudnn_process.installed_cudnn() == "9.21.1.3"
