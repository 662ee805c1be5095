"""What people read of an estimate."""

from dataclasses import replace

import torch
from rich.console import Group
from torch import nn

from legroom.predict.api import _Job
from legroom.predict.estimate import Estimate, judge
from legroom.predict.largest_batch import Search
from legroom.predict.options.plan import Option
from legroom.predict.script_estimate import Told
from legroom.show.common.terminal import render_to_string
from legroom.show.estimate.estimate import further_words, verdict_words
from legroom.units import MiB, format_size


def estimated(gpu: str) -> Estimate:
    model = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 10))
    batch = (torch.zeros(64, 1024), torch.zeros(64, dtype=torch.long))
    return judge(_Job(model, (batch,), gpu, None, 2).trace())


def words(
    gpu: str, *, options: tuple[Option, ...] = (), largest: int | None = 512, planned: bool = True
) -> str:
    search = Search(tried={64: True, 512: largest is not None})
    told = Told(
        script="train.py",
        estimate=replace(estimated(gpu), max_batch_size=largest),
        search=search,
        options=options,
        planned=planned,
    )
    return render_to_string(Group(verdict_words(told.estimate), further_words(told)), width=80)


def test_the_first_line_is_the_verdict() -> None:
    assert words("rtx4090").startswith("Fits: needs ")
    assert words("100MiB").startswith("Does not fit: needs ")


def test_the_largest_batch_stands_beside_todays() -> None:
    assert "Largest batch that fits: 512 (today: 64); traced at that size." in words("rtx4090")
    assert "Not even a batch of 64 fits (today: 64)." in words("100MiB", largest=None)


def test_what_is_needed_and_what_is_free_add_up_to_the_gpu_where_the_cache_grows_after_the_peak() -> None:
    now = estimated("8GiB")
    later = replace(now, peak_reserved=now.peak_reserved + 512 * MiB, peak_device=now.peak_device + 512 * MiB)
    free = format_size(now.gpu.total - later.peak_device)
    assert f"  free                  {free:>9}" in render_to_string(verdict_words(later), width=80)


def test_where_the_batch_is_an_argument_its_name_is_said() -> None:
    told = Told(
        script="train.py",
        estimate=replace(estimated("8GiB"), max_batch_size=512),
        search=Search(tried={512: True}),
        options=(),
        batch_argument="--batch_size",
    )
    assert "Largest `--batch_size` that fits: 512 (today: 64)" in render_to_string(
        further_words(told), width=80
    )


def test_means_have_their_peak_their_price_and_what_to_change() -> None:
    option = Option(
        means="fused optimizer",
        peak_device=1 << 30,
        saves=1 << 28,
        verdict="fits",
        price="nothing",
        how="give it `fused=True`",
    )
    text = words("rtx4090", options=(option,))
    assert "fused optimizer   1.00 GiB  fits" in text
    assert "Give it `fused=True`." in text
    assert "Costs nothing." in text


SMALLER_BATCH = Option(
    means="batch of 32",
    peak_device=1 << 29,
    saves=1 << 28,
    verdict="uncertain",
    price="smaller steps",
    how="give the DataLoader `batch_size=32`",
)


def test_the_largest_batch_as_a_means_just_fits() -> None:
    text = words("150MiB", options=(replace(SMALLER_BATCH, peak_device=140 << 20),))
    assert "What would make it fit" in text
    assert "batch of 32  140.0 MiB  just fits\n" in text


def test_what_fits_by_giving_back_its_cache_is_not_said_to_need_more_than_there_is() -> None:
    option = replace(SMALLER_BATCH, peak_device=3 << 29, verdict="fits")
    assert "batch of 32   1.00 GiB  fits, by giving back its cache" in words("1GiB", options=(option,))

    now = replace(estimated("8GiB"), peak_device=9 << 30)
    assert render_to_string(verdict_words(now), width=200).startswith(
        "Fits into 8.00 GiB because PyTorch gives back its cache in time; where there is more it takes 9.00 GiB"
    )


def test_the_next_command_has_the_size_as_people_write_it() -> None:
    text = words("8GiB", planned=False)
    assert "  legroom run --gpu 8GiB train.py" in text
    assert "  legroom estimate --plan --gpu 8GiB train.py" in text


def test_no_line_is_wider_than_the_terminal() -> None:
    assert max(map(len, words("a100-80gb").splitlines())) <= 80
