"""Reading files of `torch.cuda.memory._dump_snapshot`: their content, and the rejection of hostile files."""

import copy
import gzip
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.cli import main
from legroom.diagnose.report.run_report import report_from_capture
from legroom.errors import CaptureError
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc
from legroom.memory.ledger import Ledger
from legroom.observe.cuda.plain_pickle import UnsafePickle, read_plain_pickle
from legroom.observe.cuda.snapshot_file import read_snapshot
from legroom.units import MiB

DATA = gzip.decompress((Path(__file__).parents[3] / "data" / "h200_snapshot.pickle.gz").read_bytes())
"""Four training steps of an MLP with AdamW on an H200 with torch 2.11."""
CONTENT = read_plain_pickle(DATA)


@pytest.fixture
def snapshot(tmp_path: Path) -> Callable[[bytes], Path]:
    def snapshot(data: bytes) -> Path:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(data)
        return path

    return snapshot


def test_peaks_and_steps_are_those_that_torch_reported(snapshot: Callable[[bytes], Path]) -> None:
    capture = read_snapshot(snapshot(DATA))
    ledger = Ledger(capture.events)
    assert ledger.peak().bytes == 131_214_848  # torch.cuda.max_memory_allocated()
    assert ledger.peak(of="reserved").bytes == 153_092_096
    assert [step.step for step in ledger.steps()] == [0, 1, 2, 3]
    assert max(step.peak_allocated for step in ledger.steps()) == 131_214_848


def test_categories_and_lines_are_inferred(snapshot: Callable[[bytes], Path]) -> None:
    capture = read_snapshot(snapshot(DATA))
    ledger = Ledger(capture.events)
    state = ledger.at_step(2)
    parameters = 4 * (512 * 2048 * 2 + 2048 + 512 + 2 * 512 + 512 * 10 + 10)
    sizes = dict.fromkeys(Category, 0)
    for alloc in state.live:
        sizes[alloc.category] += alloc.bytes
    assert sizes[Category.PARAMETER] == sizes[Category.GRADIENT] == parameters
    assert 2 * parameters <= sizes[Category.OPTIMIZER_STATE] < 2 * parameters + 1024
    assert sizes[Category.WORKSPACE] == 65 * MiB
    assert ledger.at(ledger.peak().index).coverage() > 0.99
    report = report_from_capture(capture)
    assert report.command.target == ("/home/ada/train.py",)
    assert "PyTorch snapshot" in report.remarks[0]


def test_a_snapshot_without_a_history_has_the_live_blocks(snapshot: Callable[[bytes], Path]) -> None:
    content = {**CONTENT, "device_traces": [[]], "external_annotations": []}
    capture = read_snapshot(snapshot(pickle.dumps(content)))
    live = [event for event in capture.events if isinstance(event, Alloc)]
    active = [
        block
        for segment in CONTENT["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert sorted(each.block_bytes for each in live) == sorted(block["size"] for block in active)


def test_a_failed_allocation_at_the_end_is_the_out_of_memory_error(snapshot: Callable[[bytes], Path]) -> None:
    content = copy.deepcopy(CONTENT)
    trace = content["device_traces"][0]
    oom = {**trace[-1], "action": "oom", "size": 900 * MiB, "device_free": 100 * MiB}
    trace.append(oom)
    (event,) = Ledger(read_snapshot(snapshot(pickle.dumps(content))).events).ooms()
    assert (event.requested, event.capacity) == (900 * MiB, 153_092_096 + 100 * MiB)
    alloc = next(entry for entry in trace if entry["action"] == "alloc")
    trace.append({**alloc, "time_us": oom["time_us"] + 1})  # the script continued
    assert Ledger(read_snapshot(snapshot(pickle.dumps(content))).events).ooms() == []


def test_reports_pages_and_comparisons_accept_snapshots(
    snapshot: Callable[[bytes], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(snapshot(DATA))
    assert main(["report", path]) == 0
    assert capfd.readouterr().out.startswith("Ended after 4 steps")
    assert main(["report", path, "--html", str(tmp_path / "page.html")]) == 0
    assert "Memory of train.py" in (tmp_path / "page.html").read_text()
    assert main(["diff", path, path, "--fail-over", "1MiB"]) == 0


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch attacked",)


ATTACKS = {
    **{f"protocol {protocol}": pickle.dumps(Attack(), protocol) for protocol in range(2, 6)},
    "inside a snapshot": pickle.dumps({**CONTENT, "external_annotations": [Attack()]}),
    "inst": b"\x80\x02(S'touch attacked'\nios\nsystem\n.",
    "obj": b"\x80\x02(cos\nsystem\nS'touch attacked'\no.",
    "persistent id": b"\x80\x02Pcommand\n.",
    "extension": b"\x80\x02\x82\x01.",
    "build": b"\x80\x02}}b.",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_malicious_pickle_is_rejected_and_does_not_run(
    name: str,
    snapshot: Callable[[bytes], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = snapshot(ATTACKS[name])
    assert main(["report", str(path)]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "Loading it could run code, so Legroom does not load it." in err
    assert not Path("attacked").exists()
    with pytest.raises(UnsafePickle):
        read_plain_pickle(ATTACKS[name])


SPOILED = {
    "truncated": DATA[: len(DATA) // 2],
    "only the first byte": b"\x80",
    "another pickle": pickle.dumps([1, 2, 3]),
    "another dict": pickle.dumps({"state_dict": {}}),
    "segments of another type": pickle.dumps({**CONTENT, "segments": [3]}),
    "a negative size": pickle.dumps(
        {**CONTENT, "device_traces": [[{**CONTENT["device_traces"][0][0], "size": -1}]]}
    ),
    "an entry without a frame's file": pickle.dumps(
        {**CONTENT, "device_traces": [[{**CONTENT["device_traces"][0][0], "frames": [{}]}]]}
    ),
    "a huge memo index": b"\x80\x04}r" + struct.pack("<I", 0xFFFFFFFF) + b".",
    "repeated lists": pickle.dumps({"segments": [], "device_traces": [[{}] * 10_000] * 10_000}),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_file_that_is_not_a_snapshot_is_rejected_in_one_line(
    name: str, snapshot: Callable[[bytes], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(snapshot(SPOILED[name]))]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_inconsistent_entries_are_read_or_rejected(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = copy.deepcopy(CONTENT)
    trace = content["device_traces"][0]
    for _ in range(data.draw(st.integers(1, 8))):
        entry = trace[data.draw(st.integers(0, len(trace) - 1))]
        key = data.draw(st.sampled_from(["action", "addr", "size", "stream", "time_us"]))
        other = trace[data.draw(st.integers(0, len(trace) - 1))]
        entry[key] = data.draw(st.sampled_from([other.get(key), 0, 1 << 59, "alloc", "oom"]))
    path = tmp_path_factory.mktemp("spoiled") / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    with suppress(CaptureError):
        report_from_capture(read_snapshot(path))


plain_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda each: (
        st.lists(each) | st.dictionaries(st.text() | st.integers(), each) | st.tuples(each, each, each)
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(plain_data, st.integers(3, 5))
def test_plain_data_is_read_as_the_standard_library_reads_it(content: Any, protocol: int) -> None:
    shared = [content, content, {"again": content}, (), (1,), ("x" * 300,), list(range(1500))]
    assert read_plain_pickle(pickle.dumps(shared, protocol)) == shared


@given(st.binary(max_size=60), st.integers(0, len(DATA)))
def test_any_bytes_are_read_or_rejected(inserted: bytes, position: int) -> None:
    for data in (b"\x80\x04" + inserted, DATA[:position] + inserted + DATA[position + len(inserted) :]):
        with suppress(ValueError, UnsafePickle):
            read_plain_pickle(data)
