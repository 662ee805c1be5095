"""The choice of checkpoints to resume and to keep, and the errors if a checkpoint does not match."""

import logging

import pytest
import torch
from tests.unit.train.checkpoints.small_training import Training, saved_at
from torch import nn
from torch.utils.data import DataLoader

import legroom
from legroom.errors import CheckpointError, UsageError
from legroom.train.checkpoints.key_check import closest_name


def with_losses(folder, losses, **options):
    checkpoints = legroom.Checkpoints(folder, **{"best": "val_loss", **options})
    model = nn.Linear(2, 2)
    checkpoints.track(model=model)
    for step, loss in enumerate(losses, 1):
        nn.init.constant_(model.weight, step)
        checkpoints.save(step, **({} if loss is None else {"val_loss": loss}))
    return model, checkpoints


def steps(checkpoints):
    return [saved.step for saved in checkpoints.saved]


def test_the_newest_and_the_best_are_kept(tmp_path):
    _, checkpoints = with_losses(tmp_path, [0.5, 0.2, 0.9, 0.8, 0.7], keep=2)
    assert steps(checkpoints) == [5, 4, 2]
    assert (checkpoints.last.step, checkpoints.best.step) == (5, 2)
    assert checkpoints.best.metrics == {"val_loss": 0.2}


def test_several_best_checkpoints_are_kept(tmp_path):
    _, checkpoints = with_losses(tmp_path, [0.5, 0.2, 0.3, 0.8, 0.7], keep=1, keep_best=2)
    assert steps(checkpoints) == [5, 3, 2]
    assert checkpoints.best.step == 2


@pytest.mark.parametrize(("best", "step", "name"), [("val_loss", 2, "best"), (None, 3, "last")])
def test_load_weights_loads_the_best_checkpoint_or_else_the_last(tmp_path, caplog, best, step, name):
    _, checkpoints = with_losses(tmp_path, [0.5, 0.2, 0.9], best=best)
    model = nn.Linear(2, 2)
    checkpoints.load_weights(model)
    assert model.weight[0, 0] == step
    assert f"Loading weights from the {name} checkpoint" in caplog.text


def test_higher_is_better_selects_the_highest_and_never_nan(tmp_path):
    _, checkpoints = with_losses(tmp_path, [0.5, 0.9, float("nan"), None, 0.1], keep=1, higher_is_better=True)
    assert steps(checkpoints) == [5, 2]


def test_keep_none_keeps_all(tmp_path):
    assert steps(with_losses(tmp_path, [1.0] * 5, keep=None)[1]) == [5, 4, 3, 2, 1]


def test_the_best_checkpoint_can_be_resumed_and_weights_can_be_loaded(tmp_path):
    model, checkpoints = with_losses(tmp_path, [0.5, 0.2, 0.9])
    assert checkpoints.resume("best") == 2
    assert model.weight[0, 0] == 2
    other = nn.Linear(2, 2)
    checkpoints.load_weights(other, "last")
    assert other.weight[0, 0] == 3


def test_the_last_checkpoint_is_the_last_saved_one_not_the_highest_step(tmp_path):
    model, checkpoints = with_losses(tmp_path, [0.5, 0.2, 0.9])
    assert checkpoints.resume("best") == 2
    nn.init.constant_(model.weight, 22.0)
    checkpoints.save(3, val_loss=0.3)
    assert checkpoints.resume("last") == 3
    assert model.weight[0, 0] == 22


def test_a_damaged_last_checkpoint_is_skipped_with_a_warning(tmp_path, caplog):
    with_losses(tmp_path, [0.5, 0.2, 0.9])
    damaged = tmp_path / "step-00000003" / "model.safetensors"
    contents = bytearray(damaged.read_bytes())
    contents[-1] ^= 1
    damaged.write_bytes(contents)
    model, checkpoints = nn.Linear(2, 2), legroom.Checkpoints(tmp_path)
    checkpoints.track(model=model)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.resume() == 2
    assert model.weight[0, 0] == 2
    assert caplog.messages == [
        f"{damaged} is damaged: the contents have changed since the file was written. Resuming from the previous checkpoint."
    ]
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoints.resume("step-00000003")


@pytest.mark.parametrize("file", ["model.safetensors", "state.safetensors", "state.pt", "rank-0.pt"])
def test_a_missing_file_is_named_and_nothing_is_loaded(tmp_path, file):
    saved_at(tmp_path, [2])
    (tmp_path / "step-00000002" / file).unlink()
    training = Training().track(checkpoints := legroom.Checkpoints(tmp_path))
    before = [value.clone() for value in training.model.state_dict().values()]
    with pytest.raises(CheckpointError, match=f"{file} is damaged: the file is missing"):
        checkpoints.resume()
    assert all(torch.equal(a, b) for a, b in zip(before, training.model.state_dict().values(), strict=True))


def test_a_folder_that_is_not_a_checkpoint_is_skipped_with_a_warning(tmp_path, caplog):
    (tmp_path / "step-00000009").mkdir()
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=nn.Linear(2, 2))
    assert checkpoints.resume() == 0
    assert (
        "step-00000009 is not a checkpoint: the folder contains no legroom.json. Skipping this checkpoint."
        in caplog.text
    )
    with pytest.raises(CheckpointError, match="is not a checkpoint: the folder contains no legroom.json"):
        checkpoints.resume("step-00000009")


def test_another_format_is_rejected(tmp_path):
    _, checkpoints = with_losses(tmp_path, [0.5])
    path = checkpoints.last.path / "legroom.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(
        CheckpointError, match=r"has checkpoint format 2, but this version of Legroom reads only format 1\."
    ):
        checkpoints.resume("step-00000001")


def test_the_error_for_an_unknown_name_suggests_the_closest(tmp_path):
    _, checkpoints = with_losses(tmp_path, [0.5])
    with pytest.raises(
        CheckpointError, match=r"There is no checkpoint .*step-0001\. Did you mean step-00000001\?"
    ):
        checkpoints.resume("step-0001")


# ------------------------------------------------------------ another model


class Net(nn.Module):
    def __init__(self, head="classifier", classes=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))
        setattr(self, head, nn.Linear(8, classes))


def mismatch(tmp_path, saved, current):
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=saved)
    checkpoints.save(1)
    before = {name: value.clone() for name, value in current.state_dict().items()}
    checkpoints.track(model=current)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.resume()
    assert all(torch.equal(before[name], value) for name, value in current.state_dict().items())
    return str(caught.value).replace(str(tmp_path), "RUNS")


def test_missing_names_are_listed_with_the_closest(tmp_path):
    assert mismatch(tmp_path, Net("classifier"), Net("classification")) == (
        "The weights in RUNS/step-00000001 do not match the model. Tensors with the same name and shape: 4 of 6.\n"
        "Missing in the file (2):\n"
        "  classification.weight   (closest in the file: classifier.weight)\n"
        "  classification.bias   (closest in the file: classifier.bias)\n"
        "Build the same model as before, or load only the matching tensors: load_weights(model, ..., strict=False)."
    )


def test_different_shapes_are_listed(tmp_path):
    message = mismatch(tmp_path, Net(classes=10), Net(classes=3))
    assert "Different shape (2):\n  classifier.weight: 10x8 in the file, 3x8 in the model" in message


def test_a_common_prefix_is_reported_in_one_line(tmp_path):
    wrapper = nn.Module()
    wrapper.net = Net()
    assert "All names in the file start with 'net.', but no name in the model does" in mismatch(
        tmp_path, wrapper, Net()
    )


def test_long_lists_of_names_are_shortened(tmp_path):
    message = mismatch(tmp_path, nn.Linear(2, 2), nn.Sequential(*(nn.Linear(2, 2) for _ in range(20))))
    assert "  and 35 more" in message
    assert len(message.splitlines()) < 16


def test_load_weights_without_strict_loads_matching_tensors(tmp_path, caplog):
    source = Net(classes=10)
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=source)
    checkpoints.save(1)
    target = Net(classes=3)
    checkpoints.load_weights(target, "last", strict=False)
    assert torch.equal(target.encoder[0].weight, source.encoder[0].weight)
    assert "2 of 6 (classifier.weight, classifier.bias)" in caplog.text
    assert "classifier.weight, classifier.bias" in caplog.text


@pytest.mark.slow
def test_wrapped_models_are_saved_under_their_own_names(tmp_path):
    source = Net()
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=torch.compile(nn.DataParallel(source)))
    checkpoints.save(1)
    target = Net()
    checkpoints.track(model=target)
    checkpoints.resume()
    assert torch.equal(target.classifier.weight, source.classifier.weight)


def test_an_optimizer_with_other_parameters_is_rejected(tmp_path):
    model = Net()
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=model, optimizer=torch.optim.SGD(model.classifier.parameters(), 0.1))
    checkpoints.save(1)
    checkpoints.track(optimizer=torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(
        CheckpointError,
        match=r"The optimizer in the checkpoint has no state for encoder\.0\.weight and 3 more",
    ):
        checkpoints.resume()


def test_optimizer_state_is_matched_by_parameter_name(tmp_path):
    model = Net()
    first = torch.optim.Adam(model.parameters(), 0.1)
    model.classifier(model.encoder(torch.randn(5, 4))).sum().backward()
    first.step()
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=model, optimizer=first)
    checkpoints.save(1)
    second = torch.optim.Adam(
        [{"params": list(model.classifier.parameters())}, {"params": list(model.encoder.parameters())}], 0.5
    )
    checkpoints.track(optimizer=second)
    checkpoints.resume()
    for parameter in model.parameters():
        assert torch.equal(first.state[parameter]["exp_avg"], second.state[parameter]["exp_avg"])
    assert [group["lr"] for group in second.param_groups] == [0.1, 0.1]


def test_an_object_that_was_not_saved_is_rejected_unless_strict_is_false(tmp_path):
    model, checkpoints = with_losses(tmp_path, [0.5])
    checkpoints.track(optimizer=torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(
        CheckpointError,
        match=r"contains no 'optimizer'\. The checkpoint contains model\. Track only these objects, or call resume\(strict=False\)",
    ):
        checkpoints.resume()
    assert checkpoints.resume(strict=False) == 1


def test_an_object_that_is_no_longer_tracked_is_reported(tmp_path, caplog):
    saved_at(tmp_path, [2])
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=Training().model)
    checkpoints.resume()
    assert (
        "also contains optimizer, scheduler, loader, which is not tracked and was not loaded." in caplog.text
    )


def test_another_type_of_object_under_the_same_name_is_rejected(tmp_path):
    model = Net()
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(net=model, model=torch.optim.SGD(model.parameters(), 0.1))
    checkpoints.save(1)
    checkpoints.track(model=model)
    with pytest.raises(
        CheckpointError,
        match="'model' in .* is not a model. Track the model under the same name as in the checkpoint",
    ):
        checkpoints.resume()


def test_load_weights_reads_no_other_files(tmp_path):
    training = saved_at(tmp_path, [2])
    (tmp_path / "step-00000002" / "state.safetensors").unlink()
    model = Training().model
    legroom.Checkpoints(tmp_path).load_weights(model, "last")
    assert torch.equal(model[0].weight, training.model[0].weight)


def test_the_closest_name_has_the_same_last_part():
    assert closest_name("head.bias", ["head.weight", "heads.bias", "body.weight"]) == "heads.bias"
    assert closest_name("completely.other", ["x"]) is None


# ------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: legroom.Checkpoints(folder, keep=0), "keep=0 is not valid"),
        (lambda folder: legroom.Checkpoints(folder).save(1), "No objects are tracked"),
        (
            lambda folder: legroom.Checkpoints(folder).track(x=3),
            r"x \(int\) cannot be tracked, because it does not have both state_dict",
        ),
        (
            lambda folder: legroom.Checkpoints(folder).track(loader=DataLoader([1])),
            r"loader is a DataLoader, which has no state\. Use `loader = checkpoints\.loader\(loader\)`",
        ),
        (
            lambda folder: with_losses(folder, [0.1], best=None)[1].resume("best"),
            "No metric is set for selecting the best checkpoint",
        ),
        (
            lambda folder: with_losses(folder, ["low"]),
            "Checkpoint metrics must be single numbers, but the type of val_loss is str",
        ),
        (
            lambda folder: with_losses(folder, [0.1])[1].save(2, val_los=0.1),
            r"save\(\) received the metric val_los, .* Use the same name: save\(step, val_loss=...\)",
        ),
        (lambda folder: legroom.Checkpoints(folder, keep_best=0), "keep_best=0 is not valid"),
        (lambda folder: with_losses(folder, [0.1])[1].save("5"), "must be the step, a non-negative integer"),
    ],
)
def test_invalid_input_is_rejected(tmp_path, call, message):
    with pytest.raises(UsageError, match=message):
        call(tmp_path)


def test_a_file_in_place_of_the_folder_is_rejected(tmp_path):
    (tmp_path / "model.pt").write_text("")
    with pytest.raises(UsageError, match=r"model\.pt is a file. Pass a folder"):
        legroom.Checkpoints(tmp_path / "model.pt")


# ------------------------------------------------------------ on a GPU


@pytest.mark.parametrize("background", [False, True])
def test_a_gpu_training_is_saved_and_resumed_on_the_gpu(tmp_path, background):
    with legroom.VirtualGPU("64MiB"):
        model = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        model(torch.ones(2, 64, device="cuda")).sum().backward()
        optimizer.step()
        checkpoints = legroom.Checkpoints(tmp_path, background=background)
        checkpoints.track(model=model, optimizer=optimizer)
        checkpoints.save(1)
        before = model.weight.detach().clone()
        nn.init.zeros_(model.weight)
        optimizer.state.clear()
        assert checkpoints.resume() == 1
        assert model.weight.is_cuda
        assert torch.equal(model.weight, before)
        assert optimizer.state[model.weight]["exp_avg"].is_cuda
        checkpoints.close()


def test_a_gpu_checkpoint_loads_without_a_gpu(tmp_path):
    with legroom.VirtualGPU("64MiB"):
        model = nn.Linear(64, 64).cuda()
        checkpoints = legroom.Checkpoints(tmp_path)
        checkpoints.track(model=model)
        checkpoints.save(1)
        weights = model.weight.detach().cpu()
    plain = nn.Linear(64, 64)
    legroom.Checkpoints(tmp_path).load_weights(plain, "last")
    assert plain.weight.device.type == "cpu"
    assert torch.equal(plain.weight, weights)
