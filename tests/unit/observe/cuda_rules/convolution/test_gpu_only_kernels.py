"""Kernels that cuDNN skips without a GPU. They are parsed from its log, and the sizes are those that cuDNN reports on
an H200."""

import ctypes

import pytest

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.convolution.cudnn_library import (
    ConvOperation,
    SkippedKernel,
    captured_log,
    find_library,
    skipped_kernels,
)
from legroom.observe.cuda_rules.convolution.cudnn_query import Cudnn, logs_skipped_kernels
from legroom.observe.cuda_rules.convolution.gpu_only_kernels import (
    Algorithm,
    algorithm_workspace,
    first_gpu_only,
    kernel_problem,
)
from legroom.observe.cuda_rules.convolution.recorded_table import (
    ConvLayer,
    ConvQuery,
    convolution_of,
    output_sizes,
)

BACK, WEIGHTS = ConvOperation.INPUT_GRADIENT, ConvOperation.WEIGHT_GRADIENT


def one(operation, batch, inputs, outputs, sizes, kernel, padding, **others):
    """Return a convolution with a stride of one."""
    size = len(sizes)
    said = {
        "dtype": "float32",
        "channels_last": False,
        "stride": (1,) * size,
        "dilation": (1,) * size,
        "groups": 1,
    }
    layer = ConvLayer(
        inputs=inputs, outputs=outputs, sizes=sizes, kernel=kernel, padding=padding, transposed=False, **(said | others)
    )  # fmt: skip
    return kernel_problem(operation, layer, convolution_of(layer, batch), tuple(output_sizes(layer, padding)))


@pytest.mark.parametrize(
    ("way", "convolution", "size"),
    [
        (Algorithm.FOURIER, one(WEIGHTS, 100, 64, 64, (16, 16), (3, 3), (1, 1)), 117_964_800),
        (Algorithm.FOURIER, one(WEIGHTS, 32, 192, 64, (24, 24), (3, 3), (1, 1)), 111_673_344),
        (Algorithm.FOURIER, one(ConvOperation.FORWARD, 96, 64, 32, (30, 28), (3, 3), (1, 1)), 71_376_896),
        (
            Algorithm.FOURIER,
            one(ConvOperation.FORWARD, 128, 1, 64, (105, 105), (10, 10), (0, 0)),
            1_090_544_640,
        ),
        (Algorithm.FOURIER_TILES, one(BACK, 80, 18, 36, (72, 48), (5, 5), (2, 2)), 40_421_376),
        (Algorithm.FOURIER_TILES, one(BACK, 150, 60, 60, (18, 18), (4, 4), (0, 0)), 94_003_200),
        (Algorithm.WINOGRAD, one(WEIGHTS, 100, 128, 64, (12, 12), (3, 3), (1, 1)), 26_062_848),
        (Algorithm.WINOGRAD, one(WEIGHTS, 8, 64, 128, (14, 14), (5, 5), (2, 2)), 13_844_480),
        (
            Algorithm.WINOGRAD,
            one(BACK, 48, 32, 32, (149, 149), (3, 3), (0, 0), dtype="bfloat16"),
            638_926_848,
        ),
        (
            Algorithm.WINOGRAD,
            one(ConvOperation.FORWARD, 50, 48, 48, (12, 12), (3, 3), (1, 1), dtype="bfloat16"),
            8_294_400,
        ),
        (Algorithm.PRODUCT, one(WEIGHTS, 64, 48, 144, (40, 40), (1, 1), (0, 0)), 1_769_472),
        (Algorithm.PRODUCT, one(ConvOperation.FORWARD, 64, 48, 144, (40, 40), (1, 1), (0, 0)), 0),
        (Algorithm.COMPILED, one(WEIGHTS, 16, 32, 64, (14, 14), (3, 3), (1, 1), dtype="bfloat16"), 0),
        (
            Algorithm.COMPILED,
            one(BACK, 16, 96, 96, (14, 14), (7, 7), (3, 3), groups=96, channels_last=True),
            0,
        ),
        (
            Algorithm.SUMMED,
            one(WEIGHTS, 2, 48, 48, (56, 56), (5, 5), (2, 2), groups=48, channels_last=True),
            102_400,
        ),
    ],
)
def test_the_workspace_of_a_gpu_only_kernel_equals_the_measurement(way, convolution, size):
    assert algorithm_workspace(way, convolution) == size


def test_at_most_eight_groups_run_at_once():
    few, many = (
        one(
            ConvOperation.FORWARD,
            32,
            16 * groups,
            16 * groups,
            (16, 16),
            (3, 3),
            (1, 1),
            groups=groups,
            dtype="bfloat16",
        )
        for groups in (4, 32)
    )

    assert algorithm_workspace(Algorithm.WINOGRAD, few) == 9_584_640
    assert algorithm_workspace(Algorithm.WINOGRAD, many) == 2 * 9_584_640


def test_fft_kernels_copy_the_images_of_groups():
    convolution = one(WEIGHTS, 128, 128, 128, (28, 28), (3, 3), (1, 1), groups=4)

    assert algorithm_workspace(Algorithm.FOURIER, convolution) == 439_353_408


def test_channels_last_tensors_are_copied_to_contiguous_first():
    convolution = one(WEIGHTS, 4, 512, 1024, (32, 32), (3, 3), (1, 1), channels_last=True)

    assert algorithm_workspace(Algorithm.WINOGRAD, convolution) == 176_160_784


@pytest.mark.parametrize(
    "convolution",
    [
        one(WEIGHTS, 1, 256, 512, (64, 64), (1, 1), (0, 0)),
        one(WEIGHTS, 200, 2048, 128, (1, 1), (1, 1), (0, 0)),
        one(WEIGHTS, 16, 48, 96, (80, 80), (1, 1), (0, 0), channels_last=True),
    ],
)
def test_the_size_of_a_single_product_that_cublas_may_split_is_unknown(convolution):
    assert algorithm_workspace(Algorithm.PRODUCT, convolution) is None


@pytest.mark.parametrize(
    ("convolution", "number"),
    [
        (one(WEIGHTS, 8, 80, 160, (56, 56), (4, 4), (0, 0)), 17),
        (one(WEIGHTS, 16, 16, 32, (23, 23), (3, 3), (0, 0), stride=(2, 2)), 17),
        (one(WEIGHTS, 64, 3, 8, (320, 320), (7, 7), (0, 0)), 18),
        (one(WEIGHTS, 64, 64, 64, (100,), (5,), (2,), dilation=(32,)), 18),
        (one(WEIGHTS, 64, 64, 64, (16, 16), (3, 3), (1, 1), dtype="bfloat16"), 18),
        (one(WEIGHTS, 24, 256, 256, (32, 32), (1, 1), (0, 0), groups=32), 62),
        (one(WEIGHTS, 24, 256, 256, (32, 32), (1, 1), (0, 0), dtype="float32_strict"), 62),
        (one(WEIGHTS, 24, 256, 256, (32, 32), (1, 1), (0, 0), stride=(2, 2)), 62),
        (one(WEIGHTS, 24, 8, 16, (36, 36), (5, 5), (0, 0), dtype="bfloat16"), 19),
    ],
)
def test_a_skipped_kernel_that_cannot_compute_the_layer_is_ignored(convolution, number):
    assert first_gpu_only(convolution, [SkippedKernel(number, "")]) is None


def test_the_first_skipped_kernel_that_can_compute_the_layer_is_used():
    convolution = one(WEIGHTS, 50, 64, 64, (16, 16), (3, 3), (1, 1))

    assert (
        first_gpu_only(convolution, [SkippedKernel(62, ""), SkippedKernel(18, ""), SkippedKernel(17, "")])
        == Algorithm.FOURIER
    )


def test_a_kernel_skipped_because_of_the_missing_driver_is_used():
    convolution = one(WEIGHTS, 24, 8, 16, (36, 36), (5, 5), (0, 0), dtype="bfloat16")

    assert (
        first_gpu_only(convolution, [SkippedKernel(19, "Reason: this->libcuda == nullptr")])
        == Algorithm.COMPILED
    )


# The log


def lines(*texts):
    """Return a message in cuDNN's format. Each line ends with a zero byte, and the message with another one."""
    return ctypes.create_string_buffer(b"".join(text.encode() + b"\0" for text in texts) + b"\0")


class LoggingCudnn:
    """A fake cuDNN that only calls the log callback."""

    def __init__(self):
        self.mask, self.listener = 0, None

    def cudnnGetCallback(self, mask, data, listener):
        mask._obj.value = self.mask
        return 0

    def cudnnSetCallback(self, mask, data, listener):
        self.mask, self.listener = mask.value, listener
        return 0

    def say(self, *texts):
        message = lines(*texts)
        self.listener(3, None, None, ctypes.addressof(message))


def test_cudnn_log_lines_are_captured_within_the_block_only():
    library = LoggingCudnn()

    with captured_log(library) as heard:
        library.say("one call", "    with a value")
        library.say("another")

    assert heard == ["one call\n    with a value", "another"]
    assert library.mask == 0


def test_skipped_kernels_and_their_reasons_are_parsed_from_the_log():
    checks = (
        "function cudnnBackendGetAttribute_CUDNN_ATTR_ENGINEHEUR_RESULTS_engine_config_support_checks() called:\n"
        '    engineConfig: type=json; val={"engineId":19,"smVersion":900};\n    Warning: Reason: this->libcuda == nullptr\n'
        '    engineConfig: type=json; val={"engineId":17,"smVersion":900};\n    Warning: Reason: status'
    )
    named = '    apiLog: type=json; val={"engine":{"engineId":68}}'

    found = skipped_kernels([named, checks])

    assert [one.engine for one in found] == [19, 17]
    assert "libcuda" in found[0].reason
    assert "libcuda" not in found[1].reason


@pytest.mark.skipif(find_library() is None, reason="cuDNN's library is not installed (nvidia-cudnn-cu13)")
def test_the_library_logs_the_kernels_that_it_skips():
    layer = ConvLayer("float32", False, 64, 64, (16, 16), (3, 3), (1, 1), (1, 1), 1, False, (1, 1))
    cudnn = Cudnn(find_library(), find_gpu("h200"))

    assert logs_skipped_kernels(find_library())
    assert (
        cudnn.workspace(ConvQuery(layer, 100, (16, 16)), WEIGHTS, convolution_of(layer, 100)) == 117_964_800
    )
