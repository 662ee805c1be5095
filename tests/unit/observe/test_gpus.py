import pytest

from legroom.errors import UsageError
from legroom.gpus.catalog import GPUS, find_gpu
from legroom.units import GiB


@pytest.mark.parametrize("name", ["rtx4090", "RTX 4090", "NVIDIA GeForce RTX 4090", "rtx_4090", "4090"])
def test_a_gpu_is_found_however_its_name_is_written(name):
    assert find_gpu(name).name == "rtx4090"


def test_a_size_stands_for_a_gpu_of_the_ampere_generation():
    gpu = find_gpu("24GiB")

    assert gpu.memory == 24 * GiB
    assert gpu.capability == (8, 0)


def test_bytes_are_a_size_too():
    assert find_gpu(8 * GiB).memory == 8 * GiB


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"no GPU is known as 'voodoo'.*a100-80gb.*24GiB"):
        find_gpu("voodoo")


def test_a_name_that_begins_like_a_size_but_is_none_says_how_sizes_are_written():
    with pytest.raises(UsageError, match="'4090xyz' is no size"):
        find_gpu("4090xyz")


@pytest.mark.parametrize("number", ["0", "1", "1.5", "24"])
def test_a_bare_number_is_no_gpu(number):
    with pytest.raises(UsageError, match=f"'{number}' is a number, and a GPU is wanted: a size such as 8GiB"):
        find_gpu(number)


def test_no_two_gpus_answer_to_one_name():
    names = [name for gpu in GPUS for name in (gpu.name, *gpu.aliases)]

    assert len(names) == len(set(names))


def test_a_gpu_holds_less_than_the_number_on_its_box():
    assert 79 * GiB < find_gpu("a100-80gb").memory < 80 * GiB
    assert 14 * GiB < find_gpu("t4").memory < 16 * GiB


@pytest.mark.parametrize(
    ("name", "threads"), [("t4", 1024), ("rtx3090", 1536), ("a100", 2048), ("h200", 2048)]
)
def test_threads_per_multiprocessor_follow_the_compute_capability(name, threads):
    assert find_gpu(name).threads_per_multiprocessor == threads


def test_a_newer_generation_has_a_larger_context():
    assert (
        find_gpu("h100").context
        > find_gpu("a100").context
        > find_gpu("v100").context
        > find_gpu("p100").context
    )
