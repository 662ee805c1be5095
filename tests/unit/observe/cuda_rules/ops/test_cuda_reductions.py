"""The staging buffer of reductions, compared with measurements on an H200."""

import pytest
import torch

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.ops import reductions
from legroom.units import MiB

H200 = find_gpu("h200")


def sums(shape, dims, *, dtype=torch.float32, gpu=H200, **options):
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    return reductions.of_tensor(tensor, dims, gpu, accumulator=4, **options)


@pytest.mark.parametrize(
    ("shape", "buffer", "semaphores"),
    [
        ((8192, 4096), 132 * MiB, 128),
        ((12608, 2304), 139198464, 72),
        ((4704, 768), 29097984, 24),
        ((1400, 10000), 112640000, 316),
        ((2048, 768), 12 * MiB, 24),
    ],
)
def test_the_sum_over_rows_of_a_tall_matrix_equals_the_measurement(shape, buffer, semaphores):
    assert sums(shape, 0) == (buffer, semaphores)


@pytest.mark.parametrize("shape", [(32, 1000), (100, 10), (64, 512)])
def test_a_sum_over_few_rows_needs_no_buffer(shape):
    assert sums(shape, 0) == (0, 0)


def test_a_sum_of_all_values_has_one_partial_sum_per_block():
    assert sums((8192, 4096), None) == (2112, 4)


def test_a_channels_last_image_reduces_like_a_tall_matrix():
    picture = torch.empty(16, 192, 28, 28, device="meta").to(memory_format=torch.channels_last)

    found, _ = reductions.of_tensor(picture, (0, 2, 3), H200, accumulator=4)

    assert found == sums((16 * 28 * 28, 192), 0)[0] == 19267584


def test_a_contiguous_image_needs_no_staging_buffer():
    assert sums((16, 192, 28, 28), (0, 2, 3))[0] < MiB


def test_half_precision_is_summed_in_float32():
    assert sums((2048, 3072), 0, dtype=torch.bfloat16) == sums((2048, 3072), 0)


def test_a_smaller_gpu_runs_fewer_blocks_and_allocates_less():
    assert sums((8192, 4096), 0, gpu=find_gpu("t4"))[0] < sums((8192, 4096), 0)[0]


def test_a_variance_has_four_times_the_partial_results_of_a_sum():
    tensor = torch.empty(12608, 2304, device="meta")

    assert reductions.of_tensor(tensor, 0, H200, accumulator=reductions.WELFORD)[0] == 556793856


def test_an_empty_tensor_needs_no_buffer():
    assert sums((0, 10), 0) == (0, 0)


def test_a_dimension_counted_from_the_end_is_the_same_dimension():
    assert sums((8192, 4096), -2) == sums((8192, 4096), 0)
