"""A resumed training is the training that was never stopped, bit for bit."""

import pytest
import torch
from tests.unit.train.checkpoints.trainings import Training, saved_at, tensors
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import legroom
from legroom.errors import UsageError
from legroom.train.checkpoints.loader_position import PlacedLoader


def stopped_and_resumed(folder, stop, **options):
    first = Training(**options).track(checkpoints := legroom.Checkpoints(folder))

    def after_step(training):
        if training.step == stop:
            checkpoints.save(training.step)
        return training.step == stop

    first.run(after_step)
    torch.manual_seed(12345)  # another process would be elsewhere
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
    whole = Training()
    whole.loader = PlacedLoader(whole.loader)
    whole.run()
    losses, resumed = stopped_and_resumed(tmp_path, stop)
    assert losses == whole.losses
    assert all(torch.equal(a, b) for a, b in zip(tensors(resumed), tensors(whole), strict=True))
    assert resumed.scheduler.get_last_lr() == whole.scheduler.get_last_lr()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_resumes_bit_for_bit(tmp_path, optimizer):
    whole = Training(OPTIMIZERS[optimizer])
    whole.loader = PlacedLoader(whole.loader)
    whole.run()
    losses, resumed = stopped_and_resumed(tmp_path, 9, optimizer=OPTIMIZERS[optimizer])
    assert losses == whole.losses
    assert all(torch.equal(a, b) for a, b in zip(tensors(resumed), tensors(whole), strict=True))


def test_without_the_random_numbers_it_would_not_be_the_same(tmp_path, monkeypatch):
    whole = Training()
    whole.loader = PlacedLoader(whole.loader)
    whole.run()
    monkeypatch.setattr("legroom.train.checkpoints.reading.restore_random_numbers", lambda state: None)
    losses, _ = stopped_and_resumed(tmp_path, 9)
    assert losses != whole.losses


def test_workers_and_a_generator_of_ones_own_resume_bit_for_bit(tmp_path):
    def options():
        return {"num_workers": 1, "generator": torch.Generator().manual_seed(3)}

    whole = Training(**options())
    whole.loader = PlacedLoader(whole.loader)
    whole.run()
    first = Training(**options()).track(checkpoints := legroom.Checkpoints(tmp_path))

    def after_step(training):
        if training.step == 9:
            checkpoints.save(9)
        return training.step == 9

    first.run(after_step)
    second = Training(**options()).track(checkpoints := legroom.Checkpoints(tmp_path))
    second.step = checkpoints.resume()
    second.run()
    assert first.losses + second.losses == whole.losses


def test_nothing_to_resume_is_step_0(tmp_path):
    checkpoints = legroom.Checkpoints(tmp_path / "none")
    training = Training().track(checkpoints)
    before = [tensor.clone() for tensor in tensors(training)]
    assert checkpoints.resume() == 0
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(training), strict=True))


def test_a_guards_plan_and_loss_scale_come_back(tmp_path):
    def made():
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

    guard, checkpoints = made()
    guard.sizer.agree(5, "told so")
    guard.scaler.scale(torch.ones(1))
    guard.scaler.update(new_scale=77.0)
    checkpoints.save(1)
    other, checkpoints = made()
    checkpoints.resume()
    assert other.sizer.micro_batch(20) == guard.sizer.micro_batch(20) == 5
    assert other.scaler.get_scale() == 77.0


def test_a_guard_that_had_to_spill_goes_on_spilling():
    def made():
        model = nn.Linear(4, 2)
        return legroom.Guard(model, torch.optim.SGD(model.parameters(), 0.1))

    guard = made()
    guard._ladder.climb()
    other = made()
    other.load_state_dict(guard.state_dict())
    assert other.state_dict()["rungs"] == ["spill"]


def test_a_state_that_is_no_guards_is_told():
    model = nn.Linear(4, 2)
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(UsageError, match="this is no state of a Guard"):
        guard.load_state_dict({"sizes": {}})


class Counted(Dataset):
    """Knows which rows were read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.read.append(index)
        return torch.tensor(index)


def test_rows_that_are_passed_over_are_not_read():
    loader = PlacedLoader(DataLoader(Counted(), batch_size=2, shuffle=True))
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(4)]
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    data = Counted()
    resumed = PlacedLoader(DataLoader(data, batch_size=2, shuffle=True))
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest
    assert len(data.read) == 4
    assert sorted(row for batch in seen + rest for row in batch) == list(range(12))


def test_an_iterable_dataset_is_passed_over_by_reading():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(10))

    loader = PlacedLoader(DataLoader(Stream(), batch_size=2))
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    resumed = PlacedLoader(DataLoader(Stream(), batch_size=2))
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == [[4, 5], [6, 7], [8, 9]]


def test_a_finished_epoch_is_not_begun_again():
    loader = PlacedLoader(DataLoader(Counted(), batch_size=4))
    assert len(list(loader)) == 3
    resumed = PlacedLoader(DataLoader(Counted(), batch_size=4))
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed.epochs(3)) == [1, 2]


def test_a_loop_that_is_left_early_ends_its_epoch():
    loader = PlacedLoader(DataLoader(Counted(), batch_size=4))
    begun = []
    for epoch in loader.epochs(3):
        begun.append((epoch, loader.epoch))
        for _ in loader:
            break
    assert begun == [(0, 0), (1, 1), (2, 2)]


def test_a_look_at_the_first_batch_is_no_epoch():
    loader = PlacedLoader(DataLoader(Counted(), batch_size=4))
    next(iter(loader))
    assert list(loader.epochs(2)) == [0, 1]


def test_a_sampler_with_replacement_keeps_its_place():
    def made():
        generator = torch.Generator().manual_seed(5)
        data = TensorDataset(torch.arange(40))
        return PlacedLoader(
            DataLoader(
                data, 4, sampler=RandomSampler(data, replacement=True, num_samples=40, generator=generator)
            )
        )

    loader = made()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    rest = [batch[0].tolist() for batch in batches]
    resumed = made()
    resumed.load_state_dict(state)
    assert [batch[0].tolist() for batch in resumed] == rest


def test_another_batch_size_goes_on_at_the_same_row(caplog):
    loader = PlacedLoader(DataLoader(TensorDataset(torch.arange(24)), 4))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    resumed = PlacedLoader(DataLoader(TensorDataset(torch.arange(24)), 6))
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))[0].tolist() == [12, 13, 14, 15, 16, 17]
    assert not caplog.records
    uneven = PlacedLoader(DataLoader(TensorDataset(torch.arange(24)), 5))
    uneven.load_state_dict(loader.state_dict())
    assert next(iter(uneven))[0].tolist() == [10, 11, 12, 13, 14]
    assert "2 of these rows are seen again" in caplog.text


def test_a_distributed_sampler_is_told_the_epoch():
    data = TensorDataset(torch.arange(16))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
    loader = PlacedLoader(DataLoader(data, 4, sampler=sampler))
    first, second = ([batch[0].tolist() for batch in loader] for _ in range(2))
    assert first != second
    again = PlacedLoader(
        DataLoader(data, 4, sampler=torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0))
    )
    again.load_state_dict({**loader.state_dict(), "epoch": 1})
    assert [batch[0].tolist() for batch in again] == second


def test_the_step_is_what_was_saved(tmp_path):
    saved_at(tmp_path, [3, 8])
    checkpoints = legroom.Checkpoints(tmp_path)
    Training().track(checkpoints)
    assert checkpoints.resume() == 8
    assert checkpoints.resume("step-00000003") == 3
