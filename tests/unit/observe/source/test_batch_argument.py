"""The batch size among a script's arguments."""

import pytest

from legroom.observe.source.batch_argument import batch_size_rank, find_batch_argument


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--batch-size", "256"], "--batch-size 256"),
        (["--epochs", "3", "--batch_size=64"], "--batch_size=64"),
        (["-b", "32"], "-b 32"),
        (["--bs", "8"], "--bs 8"),
        (["--per_device_train_batch_size", "16"], "--per_device_train_batch_size 16"),
        (["--train-batch-size", "16"], "--train-batch-size 16"),
        (["data.batch_size=64"], "data.batch_size=64"),
        (["--batchSize", "64"], "--batchSize 64"),
        (["--trainer.batch_size=64"], "--trainer.batch_size=64"),
        (["-b64"], "-b64"),
        (["--test-batch-size", "1000", "--batch-size", "64"], "--batch-size 64"),
        (["--batch-norm", "1", "-batch", "8"], "-batch 8"),
        (["--batch-size-per-gpu", "8"], "--batch-size-per-gpu 8"),
    ],
)
def test_common_spellings_are_recognized(arguments, found):
    assert find_batch_argument(arguments).text == found


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--batch-size"],
        ["--batch-size", "auto"],
        ["--batch-size", "0"],
        ["batch", "3"],
        ["--batches", "4"],
    ],
)
def test_other_arguments_are_ignored(arguments):
    assert find_batch_argument(arguments) is None


@pytest.mark.parametrize(("fraction", "size"), [(0.5, 128), (0.4, 96), (0.05, 8), (0.03, 4), (1 / 256, 1)])
def test_a_smaller_batch_is_rounded_down_to_a_common_size(fraction, size):
    assert find_batch_argument(["--batch-size", "256"]).smaller(fraction).value == size


@pytest.mark.parametrize("fraction", [0.001, 1.0])
def test_there_may_be_no_smaller_batch(fraction):
    assert find_batch_argument(["--batch-size", "256"]).smaller(fraction) is None


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [(["a", "--batch-size", "8", "b"], ["a", "--batch-size", "4", "b"]), (["--bs=8"], ["--bs=4"])],
)
def test_a_smaller_batch_replaces_the_old_argument(arguments, changed):
    assert find_batch_argument(arguments).smaller(0.5).replace_in(arguments) == changed


@pytest.mark.parametrize(
    ("likely", "less_likely"),
    [
        ("--batch-size", "--test-batch-size"), ("--batchSize", "--valBatchSize"), ("batch_size", "eval_batch_size"),
        ("per_device_train_batch_size", "per_device_eval_batch_size"), ("train_batch_size", "batch_size_multiplier"),
        ("BATCH_SIZE", "TEST_BATCH_SIZE"),
    ],
)  # fmt: skip
def test_the_batch_size_of_the_training_ranks_first(likely, less_likely):
    first, second = batch_size_rank(likely), batch_size_rank(less_likely)
    assert first == 0
    assert second is not None
    assert second > first


@pytest.mark.parametrize(
    "name",
    ["--batch-norm", "--num-batches", "batches", "--n_batch", "--batch-count", "-n", "--embed", "--log-every-batch", "--debug", "--robust"],
)  # fmt: skip
def test_other_names_are_not_batch_sizes(name):
    assert batch_size_rank(name) is None
