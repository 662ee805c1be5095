"""The completed fraction of a forward pass counts the outputs of layers by their size."""

import pytest
import torch
from torch import nn

from legroom.observe.dispatch.forward_progress import forward_progress, pixels_of


def progress_at(model: nn.Module, position: int) -> float | None:
    modules = [module for name, module in model.named_modules() if name]
    return forward_progress(model, position + 1, id(modules[position]))


def test_the_vocabulary_of_a_language_model_counts_at_the_end() -> None:
    model = nn.Sequential(nn.Embedding(900, 10), nn.Linear(10, 10), nn.Linear(10, 900))
    assert progress_at(model, 1) == pytest.approx(20 / (20 + 3 * 900))


def test_a_loss_inside_the_model_is_part_of_the_pass() -> None:
    model = nn.Sequential(nn.Embedding(900, 10), nn.Linear(10, 900))
    in_head, in_loss = (
        forward_progress(model, 2, id(model[1]), has_returned=returned) for returned in (False, True)
    )
    assert in_head == pytest.approx(910 / (910 + 2 * 900))
    assert in_loss == pytest.approx(1810 / (910 + 2 * 900))
    assert forward_progress(model, 1, id(model[0]), has_returned=True) == pytest.approx(10 / (910 + 2 * 900))


def test_layers_with_large_images_count_more() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.MaxPool2d(4), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU())
    assert progress_at(model, 0) == pytest.approx(16 / (16 + 1 + 1 / 4 + 1 / 4 + 2 / 4))


def test_a_shortcut_with_stride_reduces_the_image_only_once() -> None:
    def last(shortcut: nn.Module) -> float | None:
        return progress_at(nn.Sequential(nn.Conv2d(8, 8, 3, stride=2), shortcut, nn.ReLU()), 2)

    assert last(nn.Conv2d(8, 8, 1, stride=2)) == last(nn.Conv2d(8, 8, 1))


def test_a_shortcut_with_a_larger_kernel_is_recognized_by_its_channels() -> None:
    def last(stride: int) -> float | None:
        shortcut = nn.Conv2d(4, 8, 3, stride=stride)
        return progress_at(nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), shortcut, nn.Conv2d(8, 8, 3)), 1)

    assert last(2) == last(1)


def test_progress_is_unknown_if_layers_run_in_another_order() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(12)])
    assert forward_progress(model, 1, id(model[11])) is None


@pytest.mark.parametrize("layer", [nn.ReLU(inplace=True), nn.Identity(), nn.Dropout(0.0)])
def test_layers_without_a_new_output_do_not_count(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 4))
    assert progress_at(model, 0) == progress_at(model, 1) == 1 / 4


def test_the_first_linear_layer_shows_how_much_functions_pool() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8 * 4 * 4, 10))
    # 16 × 16 pixels become 8 × 8 and then 4 × 4
    pooled = forward_progress(model, 1, id(model[0]), pixels=16 * 16)
    assert pooled == pytest.approx(8 / (8 + 8 / 4 + 3 * 10 / 16))
    assert forward_progress(model, 1, id(model[0])) == pytest.approx(8 / (8 + 8 + 3 * 10))


def test_the_size_of_images_averaged_at_the_end_is_unknown() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 10))
    assert forward_progress(model, 1, id(model[0]), pixels=256) == forward_progress(model, 1, id(model[0]))


def test_pixels_are_read_from_the_first_batch_of_images() -> None:
    assert pixels_of((None, torch.zeros(2, 7), torch.zeros(4, 3, 5, 6))) == 30
    assert pixels_of((torch.zeros(4, 3, 5),)) == 0
