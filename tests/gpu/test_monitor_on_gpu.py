"""`legroom monitor` on a real GPU: driver values, and a run with its steps and memory."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GiB = 1 << 30
TRAIN = """
import time, torch
held = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.time() + 60
while time.time() < end:
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step(); optimizer.zero_grad(); time.sleep(0.01)
"""


def monitor(environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "legroom", "monitor", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_run_is_shown_with_its_steps_and_the_memory_of_the_gpu(tmp_path: Path) -> None:
    environment = {**os.environ, "LEGROOM_LIVE": str(tmp_path / "live")}
    (tmp_path / "train.py").write_text(TRAIN)
    process = subprocess.Popen(
        [sys.executable, "-m", "legroom", "run", "train.py"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        document, deadline = monitor(environment), time.monotonic() + 60
        while not (document["runs"] and document["runs"][0]["step"]) and time.monotonic() < deadline:
            time.sleep(0.5)
            document = monitor(environment)
    finally:
        process.kill()
        process.wait()
    print(json.dumps(document, indent=2))  # shown if the test fails
    (run,) = document["runs"]
    assert run["step"] > 0
    assert run["devices"][0]["kind"] == "cuda"
    assert run["allocated_bytes"] >= 2 * GiB
    gpu = next(each for each in document["gpus"] if each["uuid"] == run["devices"][0]["uuid"])
    assert gpu["memory_total_bytes"] > 4 * GiB
    assert gpu["memory_used_bytes"] >= run["reserved_bytes"]
    row = next(each for each in document["processes"] if each["pid"] == run["pid"])
    assert row["gpu"] == str(gpu["index"])
    assert row["gpu_memory_bytes"] >= 2 * GiB
    assert monitor(environment)["runs"] == []  # the run was killed
    assert list((tmp_path / "live").iterdir()) == []
