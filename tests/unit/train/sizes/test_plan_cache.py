"""Micro-batch sizes are cached between runs, and cache problems never raise."""

import json
import multiprocessing
from pathlib import Path

import pytest
import torch
from tests.unit.train.guarded import guarded, small_batch, small_model
from torch import nn

from legroom import VirtualGPU
from legroom.train.sizes.plan_cache import load_plan, plan_key, plans_folder, save_plan


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGROOM_CACHE", str(tmp_path))
    return tmp_path / "plans"


def a_model(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width))


class TestKeys:
    def test_the_same_configuration_has_the_same_key(self) -> None:
        assert plan_key(a_model(), batch=torch.zeros(3, 4)) == plan_key(a_model(), batch=torch.zeros(7, 4))

    @pytest.mark.parametrize(
        "other",
        [
            lambda: plan_key(a_model(9), batch=torch.zeros(3, 4)),
            lambda: plan_key(a_model().double(), batch=torch.zeros(3, 4)),
            lambda: plan_key(a_model().eval(), batch=torch.zeros(3, 4)),
            lambda: plan_key(a_model().requires_grad_(False), batch=torch.zeros(3, 4)),
            lambda: plan_key(a_model(), batch=torch.zeros(3, 5)),
            lambda: plan_key(a_model(), batch={"x": [torch.zeros(3, 4), torch.zeros(3)]}),
            lambda: plan_key(a_model(), batch=torch.zeros(3, 4), precision="bf16"),
            lambda: plan_key(a_model(), batch=torch.zeros(3, 4), device=torch.device("cpu")),
        ],
    )
    def test_another_configuration_has_another_key(self, other: object) -> None:
        assert other() != plan_key(a_model(), batch=torch.zeros(3, 4))  # type: ignore[operator]

    def test_allocator_settings_change_the_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = plan_key(a_model())
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        assert plan_key(a_model()) != before

    def test_the_gpu_and_the_memory_fraction_change_the_key(self) -> None:
        device = torch.device("cuda", 0)
        keys = set()
        for size in ("1GiB", "2GiB"):
            with VirtualGPU(size):
                keys.add(plan_key(a_model(), device=device))
                torch.cuda.set_per_process_memory_fraction(0.5)
                keys.add(plan_key(a_model(), device=device))
        assert len(keys) == 4


class TestStoring:
    def test_a_stored_plan_is_loaded(self) -> None:
        assert save_plan("key", {"size": 32})
        assert load_plan("key") == {"size": 32}

    def test_a_missing_plan_is_none(self) -> None:
        assert load_plan("key") is None

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[1]", '{"format": 99, "plan": {}}', '{"format": 1, "plan": 3}', "\ud800", "[" * 60000],
    )
    def test_a_damaged_file_is_ignored(self, cache: Path, text: str) -> None:
        cache.mkdir(parents=True)
        (cache / "key.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        assert load_plan("key") is None
        assert save_plan("key", {"size": 1})
        assert load_plan("key") == {"size": 1}

    def test_a_file_in_place_of_the_folder_is_not_changed(self, cache: Path) -> None:
        cache.write_text("other")
        assert not save_plan("key", {"size": 1})
        assert cache.read_text() == "other"

    def test_objects_are_not_stored_and_leave_no_file(self, cache: Path) -> None:
        assert not save_plan("key", {"size": object()})
        assert not cache.exists() or list(cache.iterdir()) == []

    @pytest.mark.slow
    def test_concurrent_writers_leave_a_complete_file(self, cache: Path) -> None:
        processes = multiprocessing.get_context("fork")
        writers = [processes.Process(target=_write, args=(number,)) for number in (1, 2)]
        for writer in writers:
            writer.start()
        while any(writer.is_alive() for writer in writers):
            plan = load_plan("key")
            assert plan is None or plan["long"] == [plan["writer"]] * 500
        assert [path.name for path in cache.iterdir()] == ["key.json"]
        assert json.loads((cache / "key.json").read_text())["format"] == 1


class TestSecondRun:
    def split(self, fail: bool = False) -> tuple[int, ...]:
        """Return the split of the first step of a run. The batch does not fit, or, with `fail`, allocations are made
        to fail."""
        with VirtualGPU("1GiB" if fail else "40MiB") as gpu:
            model = small_model().cuda()
            guard = guarded(model, reduction="mean")
            batch_sizes = []

            def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                batch_sizes.append(len(x))
                if fail and len(batch_sizes) <= 2:
                    gpu.fail_allocation(1)
                return model(x).repeat(1, 64 * 1024).mean()

            guard.step(loss_fn, *small_batch(96))
            assert guard.last_step is not None
            return guard.last_step.split

    def test_a_stored_size_is_used_and_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        first = self.split()
        assert len(first) > 1
        caplog.clear()
        assert self.split() == first
        assert "which fit in an earlier run. The results may differ" in caplog.text
        assert "cache_sizes=False" in caplog.text

    def test_an_injected_failure_is_not_stored(self, cache: Path) -> None:
        assert len(self.split(fail=True)) > 1
        assert not cache.exists()


def _write(number: int) -> None:
    for _ in range(100):
        save_plan("key", {"writer": number, "long": [number] * 500})


class TestFolder:
    def test_off_disables_the_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LEGROOM_CACHE", "off")
        assert plans_folder() is None
        assert not save_plan("key", {})

    def test_the_users_cache_folder_is_the_default(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("LEGROOM_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert plans_folder() == tmp_path / "legroom" / "plans"
