"""`legroom run --spill` with an unmodified script."""

import json
import textwrap

import pytest

from legroom.cli import main

pytestmark = pytest.mark.slow

TRAINS = """
import threading
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(8))).cuda()

def step():
    model(torch.ones(2048, 256, device="cuda")).square().mean().backward()

{start}
print(sum(float(p.grad.double().sum()) for p in model.parameters()))
"""
IN_MAIN = TRAINS.format(start="step()")
IN_A_THREAD = TRAINS.format(start="thread = threading.Thread(target=step); thread.start(); thread.join()")


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    def run(source: str, *options: str) -> tuple[int, str, str]:
        (tmp_path / "train.py").write_text(textwrap.dedent(source))
        code = main(["run", *options, "train.py"])
        out, err = capfd.readouterr()
        return code, out, " ".join(err.split())

    return run


def test_spilling_makes_a_script_fit_with_the_same_result(run):
    code, _, err = run(IN_MAIN, "--gpu", "30MiB")
    assert code == 1
    assert "Out of memory" in err
    _, expected, _ = run(IN_MAIN, "--gpu", "1GiB")
    code, out, err = run(IN_MAIN, "--gpu", "30MiB", "--spill")
    assert code == 0
    assert out == expected
    assert "Spilled 3" in err
    assert "MiB of saved activations to host memory (at most" in err
    assert "Saved activations are moved to host memory. Recording to" in err


def test_threads_of_the_script_spill(run):
    code, _, err = run(IN_A_THREAD, "--gpu", "30MiB", "--spill")
    assert code == 0
    assert "Spilled 3" in err


def test_the_budget_limits_host_memory(run):
    _, _, err = run(IN_MAIN, "--gpu", "1GiB", "--spill=8MiB")
    assert "at most 8.0 MiB of 8.0 MiB allowed at a time" in err
    assert "stayed on the GPU because host memory ran out" in err


def test_a_run_without_spilled_activations_is_reported(run):
    _, _, err = run(
        "import torch; torch.ones(4, requires_grad=True).sum().backward()", "--gpu", "1GiB", "--spill"
    )
    assert "Nothing was spilled: no saved activation on the GPU was 1 MiB or larger." in err


def test_json_contains_the_spill_totals(run, capfd):
    def account(*options: str) -> dict[str, float] | None:
        run(IN_MAIN, "--gpu", "1GiB", "--force", "-o", "a.legroom", *options)
        assert main(["report", "a.legroom", "--format", "json"]) == 0
        return json.loads(capfd.readouterr().out)["spill"]

    spilled = account("--spill")
    assert spilled is not None
    assert spilled["moved_bytes"] > 20 << 20
    assert spilled["seconds"] > 0
    assert account() is None


def test_the_next_command_contains_the_spill_option(run, tmp_path):
    _, _, err = run("import torch; torch.ones(16 << 20, device='cuda')", "--gpu", "30MiB", "--spill=1GiB")
    assert "legroom run --gpu 30MiB --spill=1GiB train.py" in err


def test_a_size_without_equals_sign_is_rejected(run, capfd):
    assert main(["run", "--spill", "4GiB", "train.py"]) == 2
    assert "Use `--spill=4GiB`. Without `=`" in capfd.readouterr().err


def test_an_invalid_size_is_rejected(run, capfd):
    assert main(["run", "--spill=lots", "train.py"]) == 2
    assert "`lots` is not a valid size" in capfd.readouterr().err
