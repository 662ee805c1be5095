"""A resumed training run is bit-for-bit identical to an uninterrupted run."""

import sys
import types

import pytest
import torch
from tests.unit.train.checkpoints.small_training import Training, saved_at, tensors
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import legroom
from legroom.errors import UsageError
from legroom.train.checkpoints.loader_position import ResumableLoader


def stopped_and_resumed(folder, stop, **options):
    first = Training(**options).track(checkpoints := legroom.Checkpoints(folder))

    def after_step(training):
        if training.step == stop:
            checkpoints.save(training.step)
        return training.step == stop

    first.run(after_step)
    torch.manual_seed(12345)  # another process has another random state
    second = Training(**options).track(checkpoints := legroom.Checkpoints(folder))
    second.step = checkpoints.resume()
    second.run()
    return first.losses + second.losses, second


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9, nesterov=True),
    "amsgrad": lambda parameters, lr: torch.optim.Adam(parameters, lr, amsgrad=True),
}


@pytest.mark.parametrize("stop", [1, 4, 7, 10, 20])
def test_resuming_continues_bit_for_bit(tmp_path, stop):
    uninterrupted = Training()
    uninterrupted.loader = ResumableLoader(uninterrupted.loader)
    uninterrupted.run()
    losses, resumed = stopped_and_resumed(tmp_path, stop)
    assert losses == uninterrupted.losses
    assert all(torch.equal(a, b) for a, b in zip(tensors(resumed), tensors(uninterrupted), strict=True))
    assert resumed.scheduler.get_last_lr() == uninterrupted.scheduler.get_last_lr()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_resumes_bit_for_bit(tmp_path, optimizer):
    uninterrupted = Training(OPTIMIZERS[optimizer])
    uninterrupted.loader = ResumableLoader(uninterrupted.loader)
    uninterrupted.run()
    losses, resumed = stopped_and_resumed(tmp_path, 9, optimizer=OPTIMIZERS[optimizer])
    assert losses == uninterrupted.losses
    assert all(torch.equal(a, b) for a, b in zip(tensors(resumed), tensors(uninterrupted), strict=True))


def test_without_random_states_the_result_would_differ(tmp_path, monkeypatch):
    uninterrupted = Training()
    uninterrupted.loader = ResumableLoader(uninterrupted.loader)
    uninterrupted.run()
    monkeypatch.setattr("legroom.train.checkpoints.reading.restore_random_states", lambda state: None)
    losses, _ = stopped_and_resumed(tmp_path, 9)
    assert losses != uninterrupted.losses


@pytest.mark.slow
def test_a_loader_with_workers_and_a_generator_resumes_bit_for_bit(tmp_path):
    def options():
        return {"num_workers": 1, "generator": torch.Generator().manual_seed(3)}

    uninterrupted = Training(**options())
    uninterrupted.loader = ResumableLoader(uninterrupted.loader)
    uninterrupted.run()
    first = Training(**options()).track(checkpoints := legroom.Checkpoints(tmp_path))

    def after_step(training):
        if training.step == 9:
            checkpoints.save(9)
        return training.step == 9

    first.run(after_step)
    second = Training(**options()).track(checkpoints := legroom.Checkpoints(tmp_path))
    second.step = checkpoints.resume()
    second.run()
    assert first.losses + second.losses == uninterrupted.losses


def test_resume_returns_0_without_a_checkpoint(tmp_path):
    checkpoints = legroom.Checkpoints(tmp_path / "none")
    training = Training().track(checkpoints)
    before = [tensor.clone() for tensor in tensors(training)]
    assert checkpoints.resume() == 0
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(training), strict=True))


def test_the_sizes_and_the_loss_scale_of_a_guard_are_restored(tmp_path):
    def build():
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        guard = legroom.Guard(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            precision=legroom.precision("fp16", device="cpu"),
            reduction="sum",
        )
        checkpoints = legroom.Checkpoints(tmp_path)
        checkpoints.track(model=model, guard=guard)
        return guard, checkpoints

    guard, checkpoints = build()
    guard.sizer.set_size(5, "test")
    guard.scaler.scale(torch.ones(1))
    guard.scaler.update(new_scale=77.0)
    checkpoints.save(1)
    other, checkpoints = build()
    checkpoints.resume()
    assert other.sizer.micro_batch(20) == guard.sizer.micro_batch(20) == 5
    assert other.scaler.get_scale() == 77.0


def test_the_fallbacks_of_a_guard_are_restored():
    def build():
        model = nn.Linear(4, 2)
        return legroom.Guard(model, torch.optim.SGD(model.parameters(), 0.1))

    guard = build()
    guard._fallbacks.activate_next()
    other = build()
    other.load_state_dict(guard.state_dict())
    assert other.state_dict()["fallbacks"] == ["spill"]


def test_a_guard_rejects_the_state_of_another_object():
    model = nn.Linear(4, 2)
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(UsageError, match="The argument is not the state of a Guard"):
        guard.load_state_dict({"sizes": {}})


class Counted(Dataset):
    """Records which samples were read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.read.append(index)
        return torch.tensor(index)


def test_skipped_samples_are_not_read():
    loader = ResumableLoader(DataLoader(Counted(), batch_size=2, shuffle=True))
    batches = iter(loader)
    used = [next(batches).tolist() for _ in range(4)]
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    data = Counted()
    resumed = ResumableLoader(DataLoader(data, batch_size=2, shuffle=True))
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest
    assert len(data.read) == 4
    assert sorted(sample for batch in used + rest for sample in batch) == list(range(12))


def test_an_iterable_dataset_is_skipped_by_reading():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(10))

    loader = ResumableLoader(DataLoader(Stream(), batch_size=2))
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    resumed = ResumableLoader(DataLoader(Stream(), batch_size=2))
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == [[4, 5], [6, 7], [8, 9]]


def test_a_finished_epoch_is_not_repeated():
    loader = ResumableLoader(DataLoader(Counted(), batch_size=4))
    assert len(list(loader)) == 3
    resumed = ResumableLoader(DataLoader(Counted(), batch_size=4))
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed.epochs(3)) == [1, 2]


def test_leaving_a_loop_early_ends_the_epoch():
    loader = ResumableLoader(DataLoader(Counted(), batch_size=4))
    epochs = []
    for epoch in loader.epochs(3):
        epochs.append((epoch, loader.epoch))
        for _ in loader:
            break
    assert epochs == [(0, 0), (1, 1), (2, 2)]


def test_reading_the_first_batch_is_not_an_epoch():
    loader = ResumableLoader(DataLoader(Counted(), batch_size=4))
    next(iter(loader))
    assert list(loader.epochs(2)) == [0, 1]


def test_a_sampler_with_replacement_resumes_at_its_position():
    def build():
        generator = torch.Generator().manual_seed(5)
        data = TensorDataset(torch.arange(40))
        return ResumableLoader(
            DataLoader(
                data, 4, sampler=RandomSampler(data, replacement=True, num_samples=40, generator=generator)
            )
        )

    loader = build()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    rest = [batch[0].tolist() for batch in batches]
    resumed = build()
    resumed.load_state_dict(state)
    assert [batch[0].tolist() for batch in resumed] == rest


def test_another_batch_size_resumes_at_the_same_sample(caplog):
    loader = ResumableLoader(DataLoader(TensorDataset(torch.arange(24)), 4))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    resumed = ResumableLoader(DataLoader(TensorDataset(torch.arange(24)), 6))
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))[0].tolist() == [12, 13, 14, 15, 16, 17]
    assert not caplog.records
    uneven = ResumableLoader(DataLoader(TensorDataset(torch.arange(24)), 5))
    uneven.load_state_dict(loader.state_dict())
    assert next(iter(uneven))[0].tolist() == [10, 11, 12, 13, 14]
    assert "saved after 12 samples of epoch 0. The epoch resumes after 10 samples" in caplog.text


def test_set_epoch_is_called_on_a_distributed_sampler():
    data = TensorDataset(torch.arange(16))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
    loader = ResumableLoader(DataLoader(data, 4, sampler=sampler))
    first, second = ([batch[0].tolist() for batch in loader] for _ in range(2))
    assert first != second
    again = ResumableLoader(
        DataLoader(data, 4, sampler=torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0))
    )
    again.load_state_dict({**loader.state_dict(), "epoch": 1})
    assert [batch[0].tolist() for batch in again] == second


def test_resume_returns_the_saved_step(tmp_path):
    saved_at(tmp_path, [3, 8])
    checkpoints = legroom.Checkpoints(tmp_path)
    Training().track(checkpoints)
    assert checkpoints.resume() == 8
    assert checkpoints.resume("step-00000003") == 3


class StatefulLoader(DataLoader):
    """A DataLoader with its own state, like torchdata's StatefulDataLoader."""

    position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_a_stateful_dataloader_is_tracked_unchanged_with_a_state_per_rank(tmp_path, monkeypatch):
    module = types.SimpleNamespace(StatefulDataLoader=StatefulLoader)
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", module)
    loader = StatefulLoader([1, 2, 3])
    checkpoints = legroom.Checkpoints(tmp_path)
    assert checkpoints.loader(loader) is loader
    loader.position = 2
    checkpoints.save(1)
    own_state = torch.load(tmp_path / "step-00000001" / "rank-0.pt", weights_only=True)
    assert own_state["loaders"] == {"loader": {"position": 2}}
    loader.position = 0
    checkpoints.resume()
    assert loader.position == 2
