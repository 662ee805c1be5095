"""`legroom monitor` without a terminal, and the status that a run publishes for it."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from legroom.cli import main
from legroom.memory.live.folder import read_all

TRAIN = """
import json, sys, time
import torch
from legroom.memory.live.folder import read_all
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept, seen, deadline = [], [], time.time() + 20
while time.time() < deadline and not (seen and seen[0].step and seen[0].finding):
    loss = model(torch.randn(8, 64, device="cuda")).sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    kept.append(loss)
    time.sleep(0.02)
    seen = read_all()
open("seen.json", "w").write(json.dumps([run.as_json() for run in seen]))
"""


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGROOM_LIVE", str(tmp_path / "live"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "live"


def test_once_prints_text_and_json_prints_json(live: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "--once"]) == 0
    assert capsys.readouterr().out.startswith("legroom monitor")
    assert main(["monitor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "legroom.monitor/1"


def test_without_a_terminal_the_state_is_printed_once(live: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor"]) == 0
    assert "Host" in capsys.readouterr().out


@pytest.mark.slow
def test_printing_loads_neither_torch_nor_textual() -> None:
    program = (
        "import sys, legroom.cli; legroom.cli.main(['monitor', '--once']);"
        "print({'torch', 'textual'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"


@pytest.mark.slow
def test_a_run_publishes_steps_memory_and_findings_and_leaves_no_file(live: Path) -> None:
    Path("train.py").write_text(TRAIN)
    assert main(["run", "--gpu", "1GiB", "train.py"]) == 0
    (run,) = json.loads(Path("seen.json").read_text())
    assert run["verb"] == "run"
    assert run["command"] == "legroom run --gpu 1GiB train.py"
    assert run["step"] > 0
    assert run["seconds_per_step"] > 0
    assert run["devices"][0]["kind"] == "virtual"
    assert run["devices"][0]["capacity"] == 1 << 30
    assert run["devices"][0]["reserved"] >= run["devices"][0]["allocated"] > 0
    assert run["finding"].startswith("LG101 train.py:11 kept")
    assert run["advice"]
    assert read_all() == []
    assert list(live.iterdir()) == []


@pytest.mark.slow
def test_a_run_is_the_same_if_its_state_cannot_be_published(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sleep.py").write_text(
        "import torch, time\ntorch.ones(3, device='cuda')\ntime.sleep(1.2)\nprint('done')"
    )
    Path("file").write_text("")
    monkeypatch.setenv("LEGROOM_LIVE", str(tmp_path / "file" / "live"))
    with caplog.at_level(logging.DEBUG, logger="legroom"):
        assert main(["run", "--gpu", "1GiB", "sleep.py"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "done\n"
    assert "cannot show this run" not in printed.err
    assert [record.levelname for record in caplog.records if "cannot show this run" in record.message] == [
        "DEBUG"
    ]
