"""The batch size among a script's arguments."""

import pytest

from legroom.observe.source.batch_argument import declared_batch_argument, find_batch_argument


@pytest.mark.parametrize(
    ("words", "found"),
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
def test_the_usual_spellings_are_recognised(words, found):
    assert find_batch_argument(words).words == found


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--batch-size"],
        ["--batch-size", "auto"],
        ["--batch-size", "0"],
        ["batch", "3"],
        ["--batches", "4"],
    ],
)
def test_anything_else_is_left_alone(words):
    assert find_batch_argument(words) is None


@pytest.mark.parametrize(("fraction", "size"), [(0.5, 128), (0.4, 96), (0.05, 8), (0.03, 4), (1 / 256, 1)])
def test_smaller_is_rounded_down_to_a_usual_size(fraction, size):
    assert find_batch_argument(["--batch-size", "256"]).smaller(fraction).value == size


@pytest.mark.parametrize("fraction", [0.001, 1.0])
def test_there_may_be_no_smaller_one(fraction):
    assert find_batch_argument(["--batch-size", "256"]).smaller(fraction) is None


@pytest.mark.parametrize(
    ("words", "changed"),
    [(["a", "--batch-size", "8", "b"], ["a", "--batch-size", "4", "b"]), (["--bs=8"], ["--bs=4"])],
)
def test_the_smaller_one_takes_the_old_ones_place(words, changed):
    assert find_batch_argument(words).smaller(0.5).put_into(words) == changed


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('parser.add_argument("--batch-size", type=int, default=32)', ["--batch-size", "32"]),
        ('parser.add_argument("-b", "--batch_size", default=8, type=int)', ["--batch_size", "8"]),
        ('parser.add_argument("--batch-size", type=int)', []),
        ('parser.add_argument("--epochs", default=3)\nbatch_size = 8', []),
        ("print 'Python 2'", []),
    ],
)
def test_a_default_that_the_script_declares_is_known(source, words):
    assert declared_batch_argument(source) == words
