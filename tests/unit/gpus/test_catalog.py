"""The values that `--gpu` and `gpu=` accept."""

import pickle
from pathlib import Path

import pytest

from legroom.errors import UsageError
from legroom.gpus.catalog import GPUS, find_gpu, parse_gpus, real_gpu
from legroom.units import GiB, KiB, MiB


@pytest.mark.parametrize("name", ["rtx4090", "RTX 4090", "NVIDIA GeForce RTX 4090", "rtx_4090", "4090"])
def test_a_name_is_found_in_any_spelling(name):
    assert find_gpu(name).name == "rtx4090"


def test_a_size_is_the_memory_that_pytorch_can_use():
    gpu = find_gpu("24GiB")

    assert (gpu.total, gpu.context, gpu.usable) == (24 * GiB, 0, 24 * GiB)
    assert (gpu.capability, gpu.sm_count) == ((8, 0), 108)
    assert find_gpu(24 * GiB) == gpu


@pytest.mark.parametrize(
    ("text", "capability"), [("8GiB:sm90", (9, 0)), ("8 GiB: SM_75", (7, 5)), ("8GiB:sm120", (12, 0))]
)
def test_a_size_can_have_a_compute_capability(text, capability):
    gpu = find_gpu(text)

    assert (gpu.total, gpu.usable, gpu.capability) == (8 * GiB, 8 * GiB, capability)


def test_a_named_gpu_has_the_memory_of_the_card_without_the_cuda_context():
    t4 = find_gpu("t4")

    assert (t4.capability, t4.sm_count, t4.shared_memory_per_sm) == ((7, 5), 40, 64 * KiB)
    assert t4.usable == t4.total - t4.context
    assert t4.context == 400 * MiB


@pytest.mark.parametrize("text", ["t4", "8GiB", "8GiB:sm90", "1.5GiB", "600MB", "a100"])
def test_the_name_of_a_gpu_names_the_same_gpu(text):
    gpu = find_gpu(text)

    assert find_gpu(gpu.name) == find_gpu(gpu) == pickle.loads(pickle.dumps(gpu)) == gpu


def test_several_gpus_are_separated_by_commas():
    assert [gpu.name for gpu in parse_gpus("8GiB, t4,8GiB:sm90")] == ["8GiB", "t4", "8GiB:sm90"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "voodoo",
            "`voodoo` is not a valid GPU. Use a size (`8GiB`, `8GiB:sm90`) or a name (`t4`, `rtx4090`, `h200`, ...).",
        ),
        (
            "rtx4095",
            "`rtx4095` is not a valid GPU. Use a size (`8GiB`, `8GiB:sm90`) or a name (`rtx4090`, `rtx5090`, `rtx4080`, ...).",
        ),
        (
            "1",
            "`1` is not a valid GPU. Use a size (`8GiB`, `8GiB:sm90`) or a name (`t4`, `rtx4090`, `h200`, ...). "
            "To select a real GPU, set `CUDA_VISIBLE_DEVICES`.",
        ),
        ("t4,t4", "`t4,t4` lists several GPUs. Specify only one GPU. `legroom launch` accepts several GPUs."),
        (
            "8GiB:sm77",
            "`sm77` is not a supported compute capability. Use one of `sm60`, `sm61`, `sm70`, `sm75`, `sm80`, `sm86`, "
            "`sm89`, `sm90`, `sm100`, `sm120`.",
        ),
    ],
)
def test_an_invalid_gpu_is_rejected_in_one_line_with_the_remedy(text, message):
    with pytest.raises(UsageError) as caught:
        find_gpu(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text", ["", "0", "1.5", "24", "4090xyz", "0GiB", "-8GiB", "8GiB:", "t4:sm90", "8GiB,8GiB"]
)
def test_an_invalid_gpu_is_rejected(text):
    with pytest.raises(UsageError):
        find_gpu(text)


def test_no_two_gpus_share_a_name():
    names = [name for gpu in GPUS for name in (gpu.name, *gpu.aliases)]

    assert len(names) == len(set(names))


def test_the_total_of_a_gpu_is_less_than_its_nominal_memory():
    assert 79 * GiB < find_gpu("a100-80gb").total < 80 * GiB
    assert 14 * GiB < find_gpu("t4").total < 16 * GiB


@pytest.mark.parametrize(
    ("name", "threads", "shared"),
    [("t4", 1024, 64), ("rtx3090", 1536, 99), ("a100", 2048, 163), ("h200", 2048, 227), ("p100", 2048, 48)],
)
def test_threads_and_shared_memory_follow_the_compute_capability(name, threads, shared):
    gpu = find_gpu(name)

    assert (gpu.threads_per_sm, gpu.shared_memory_per_block) == (threads, shared * KiB)


def test_a_newer_generation_has_a_larger_context():
    contexts = [find_gpu(name).context for name in ("h100", "a100", "v100", "p100")]

    assert contexts == sorted(set(contexts), reverse=True)


def test_a_real_gpu_has_the_memory_that_its_driver_reports():
    gpu = real_gpu("NVIDIA H200", 140 * GiB)

    assert (gpu.name, gpu.total, gpu.capability, gpu.context) == ("h200", 140 * GiB, (9, 0), 770 * MiB)


def test_an_unknown_real_gpu_has_a_context_too():
    gpu = real_gpu("NVIDIA X1", 10 * GiB, capability=(7, 5), sm_count=12)

    assert (gpu.name, gpu.capability, gpu.sm_count, gpu.context) == ("NVIDIA X1", (7, 5), 12, 400 * MiB)
    assert not gpu.is_size


def test_the_documentation_lists_every_name():
    page = (Path(__file__).parents[3] / "docs" / "virtual-gpu.md").read_text()

    assert all(f"`{gpu.name}`" in page for gpu in GPUS)
