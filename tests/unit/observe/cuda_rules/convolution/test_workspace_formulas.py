"""Workspace sizes computed from kernel numbers and settings, compared with cuDNN 9.19 on an H200."""

import pytest

from legroom.observe.cuda_rules.convolution.cudnn_library import ConvOperation
from legroom.observe.cuda_rules.convolution.recorded_table import (
    ConvLayer,
    ConvQuery,
    convolution_of,
    output_sizes,
)
from legroom.observe.cuda_rules.convolution.workspace_formulas import (
    formula_bytes,
    formula_for,
    kernel_formula,
)


def convolution(batch, *words):
    """Return the query and the sizes of a convolution."""
    layer = ConvLayer(*words)
    return ConvQuery(layer, batch, tuple(output_sizes(layer, layer.padding))), convolution_of(layer, batch)


@pytest.mark.parametrize(
    ("operation", "batch", "layer", "engine", "knobs", "size"),
    [
        ("INPUT_GRADIENT", 4, ("float32", False, 320, 640, (42, 42), (1, 1), (2, 2), (1, 1), 1, False, (0, 0)), 76, {2: 1, 27: 2, 28: 2}, 13_547_667),
        ("FORWARD", 80, ("float16", False, 2048, 256, (24, 24), (3, 3), (1, 1), (4, 4), 1, False, (4, 4)), 62, {2: 0, 25: 0, 27: 4, 28: 2}, 221_773_971),
        ("FORWARD", 100, ("bfloat16", False, 60, 12, (128, 215), (1, 5), (1, 1), (1, 1), 1, False, (0, 2)), 45, {2: 4}, 440_330_256),
        ("FORWARD", 16, ("float32", False, 32, 64, (64, 156), (3, 3), (1, 1), (1, 1), 1, False, (1, 1)), 38, {2: 1}, 20_520_976),
        ("FORWARD", 6, ("float32", True, 2048, 256, (48, 48), (3, 3), (1, 1), (18, 18), 1, False, (18, 18)), 38, {2: 0}, 146_276_368),
        ("FORWARD", 128, ("float32", True, 1, 384, (196, 196), (7, 7), (7, 7), (1, 1), 1, False, (0, 0)), 48, {2: 2}, 19_744_272),
        ("FORWARD", 512, ("float16", False, 24, 24, (30, 30), (3, 3), (1, 1), (1, 1), 1, False, (0, 0)), 47, {2: 2}, 41_396_368),
        ("FORWARD", 150, ("float32", True, 12, 64, (84, 84), (8, 8), (4, 4), (1, 1), 1, False, (0, 0)), 46, {2: 4}, 50_999_824),
        ("FORWARD", 100, ("bfloat16", True, 64, 1, (128, 128), (4, 4), (2, 2), (1, 1), 1, True, (1, 1)), 73, {2: 4, 27: 4, 28: 1}, 104_874_131),
        ("INPUT_GRADIENT", 128, ("float32", True, 1, 384, (196, 196), (7, 7), (7, 7), (1, 1), 1, False, (0, 0)), 25, {2: 2}, 154_215_952),
        ("INPUT_GRADIENT", 256, ("float32", True, 48, 48, (112, 112), (3, 3), (1, 1), (1, 1), 1, False, (1, 1)), 58, {2: 4}, 616_645_648),
    ],
)  # fmt: skip
def test_copies_depend_on_the_layout_code_of_the_kernel(operation, batch, layer, engine, knobs, size):
    question, c = convolution(batch, *layer)

    assert (
        formula_bytes(
            kernel_formula(engine, knobs, c, ConvOperation[operation]), question, c, ConvOperation[operation]
        )
        == size
    )


@pytest.mark.parametrize(
    ("batch", "layer", "engine", "knobs", "size"),
    [
        (256, ("bfloat16", False, 1, 16, (128, 128), (3, 3), (1, 1), (1, 1), 1, False, (1, 1)), 49, {0: 34, 2: 5}, 201_485_712),
        (48, ("float16", True, 3, 512, (224, 224), (16, 16), (16, 16), (1, 1), 1, False, (0, 0)), 33, {0: 3, 2: 4}, 53_215_376),
        (128, ("float32", True, 1, 384, (196, 196), (7, 7), (7, 7), (1, 1), 1, False, (0, 0)), 50, {0: 36, 2: 5}, 243_955_856),
        (16, ("float32", False, 32, 64, (64, 156), (3, 3), (1, 1), (1, 1), 1, False, (1, 1)), 30, {2: 5, 12: 49}, 65_430_679),
        (100, ("bfloat16", False, 60, 12, (128, 215), (1, 5), (1, 1), (1, 1), 1, False, (0, 2)), 10, {2: 23, 12: 46}, 442_591_971),
        (32, ("float16", False, 3, 40, (150, 150), (2, 2), (2, 2), (1, 1), 1, False, (0, 0)), 39, {2: 12, 12: 158}, 20_016_743),
        (20, ("float32", True, 96, 3, (14, 14), (4, 4), (2, 2), (1, 1), 1, True, (1, 1)), 40, {2: 11, 12: 30}, 2_247_691),
    ],
)  # fmt: skip
def test_the_copies_of_weight_gradients_follow_the_kernel_setting(batch, layer, engine, knobs, size):
    question, c = convolution(batch, *layer)
    operation = ConvOperation.WEIGHT_GRADIENT

    assert formula_bytes(kernel_formula(engine, knobs, c, operation), question, c, operation) == size


@pytest.mark.parametrize(
    ("operation", "batch", "layer", "engine", "knobs", "size"),
    [
        ("FORWARD", 128, ("float32", False, 256, 256, (16, 16), (3, 3), (1, 1), (1, 1), 4, False, (1, 1)), 67, {2: 5, 25: 0, 27: 7, 28: 1}, 67_698_835),
        ("INPUT_GRADIENT", 2, ("bfloat16", True, 384, 768, (20, 20), (7, 7), (1, 1), (1, 1), 384, False, (3, 3)), 40, {2: 5}, 5_517_328),
        ("WEIGHT_GRADIENT", 16, ("bfloat16", False, 32, 64, (96, 96), (7, 7), (1, 1), (1, 1), 4, False, (3, 3)), 10, {2: 5, 12: -1}, 38_652_471),
        ("WEIGHT_GRADIENT", 1000, ("float32", True, 32, 64, (28, 28), (3, 3), (1, 1), (1, 1), 8, False, (1, 1)), 30, {2: 5, 12: 11}, 403_049_055),
    ],
)  # fmt: skip
def test_kernels_with_group_support_pad_groups_to_the_wider_side(
    operation, batch, layer, engine, knobs, size
):
    question, c = convolution(batch, *layer)

    assert (
        formula_bytes(
            kernel_formula(engine, knobs, c, ConvOperation[operation]), question, c, ConvOperation[operation]
        )
        == size
    )


@pytest.mark.parametrize(
    ("operation", "batch", "layer", "engine", "knobs", "size"),
    [
        ("FORWARD", 100, ("float32", False, 512, 1024, (8, 8), (3, 3), (2, 2), (1, 1), 16, False, (1, 1)), 46, {2: 4}, 10_420_352),
        ("FORWARD", 64, ("float32", False, 4, 4, (7, 7), (3, 3), (1, 1), (1, 1), 2, False, (1, 1)), 70, {2: 12}, 100_384),
        ("FORWARD", 1, ("bfloat16", True, 16, 16, (56, 56), (7, 7), (2, 2), (1, 1), 2, False, (3, 3)), 45, {2: 0}, 125_472),
        ("INPUT_GRADIENT", 24, ("float32", True, 128, 128, (56, 56), (5, 5), (2, 2), (1, 1), 32, False, (2, 2)), 25, {2: 2}, 12_055_168),
        ("WEIGHT_GRADIENT", 12, ("float32", False, 128, 256, (56, 56), (5, 5), (1, 1), (1, 1), 4, False, (2, 2)), 34, {0: 20, 2: 7}, 75_006_528),
        ("WEIGHT_GRADIENT", 32, ("float32", True, 16, 32, (7, 7), (3, 3), (1, 1), (1, 1), 4, False, (1, 1)), 20, {2: 6}, 301_120),
    ],
)  # fmt: skip
def test_kernels_without_group_support_run_up_to_eight_groups_at_once(
    operation, batch, layer, engine, knobs, size
):
    question, c = convolution(batch, *layer)

    assert (
        formula_bytes(
            kernel_formula(engine, knobs, c, ConvOperation[operation]), question, c, ConvOperation[operation]
        )
        == size
    )


def test_a_workspace_that_matches_the_formula_of_its_kernel_has_that_formula():
    question, c = convolution(
        16, "float32", False, 32, 64, (64, 156), (3, 3), (1, 1), (1, 1), 1, False, (1, 1)
    )

    assert formula_for(20_520_976, 38, {2: 1}, question, c, ConvOperation.FORWARD) == "H"


def test_an_unknown_kernel_gets_a_formula_from_its_size():
    question, c = convolution(
        16, "float32", False, 32, 64, (64, 156), (3, 3), (1, 1), (1, 1), 1, False, (1, 1)
    )

    formula = formula_for(100_000_000, 999, {}, question, c, ConvOperation.FORWARD)

    assert formula_bytes(formula, question, c, ConvOperation.FORWARD) == pytest.approx(100_000_000, rel=0.05)


def test_a_tiny_workspace_counts_as_none():
    question, c = convolution(
        16, "float32", False, 32, 64, (64, 156), (3, 3), (1, 1), (1, 1), 1, False, (1, 1)
    )

    assert formula_for(400, 28, {}, question, c, ConvOperation.FORWARD) == "0"
