"""The batch size among a script's arguments."""

import pytest

from legroom.observe.source.batch_argument import declared_batch_argument, find_batch_argument


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
    ("source", "arguments"),
    [
        ('parser.add_argument("--batch-size", type=int, default=32)', ["--batch-size", "32"]),
        ('parser.add_argument("-b", "--batch_size", default=8, type=int)', ["--batch_size", "8"]),
        ('parser.add_argument("--batch-size", type=int)', []),
        ('parser.add_argument("--epochs", default=3)\nbatch_size = 8', []),
        ("print 'Python 2'", []),
    ],
)
def test_the_declared_default_is_found(source, arguments):
    assert declared_batch_argument(source) == arguments
