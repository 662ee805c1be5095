"""The files of a checkpoint: standard formats, checksums per block, only plain data."""

import json
import random

import numpy
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.train.checkpoints.small_training import Training, saved_at
from torch import nn

import legroom
from legroom.errors import CheckpointError, UsageError
from legroom.train.checkpoints.files import checked_files, host_buffers
from legroom.train.checkpoints.files.host_buffers import HostBuffers
from legroom.train.checkpoints.files.tensor_file import read_tensors, tensor_file
from legroom.train.checkpoints.plain_state import as_bytes, extract_tensors, insert_tensors
from legroom.train.checkpoints.random_states import random_states, restore_random_states

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@pytest.fixture
def small_blocks(monkeypatch):
    """Split small files into many blocks, as for large files."""
    monkeypatch.setattr(checked_files, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(host_buffers, "BLOCK_BYTES", 1000)


def tensors_of_all_types():
    torch.manual_seed(0)
    return {f"a.{index}": (torch.randn(index, 7, 13) * 9).to(dtype) for index, dtype in enumerate(DTYPES)}


def same(ours, theirs):
    return set(ours) == set(theirs) and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )


@pytest.mark.usefixtures("small_blocks")
def test_the_safetensors_library_reads_the_files(tmp_path):
    tensors = tensors_of_all_types()
    tensor_file(tensors).write(tmp_path / "x.safetensors")
    assert same(safetensors.torch.load_file(tmp_path / "x.safetensors"), tensors)


@pytest.mark.usefixtures("small_blocks")
def test_later_changes_do_not_affect_a_copy(tmp_path):
    tensors = tensors_of_all_types()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    file = tensor_file(tensors)
    file.copy(HostBuffers())
    for tensor in tensors.values():
        tensor.zero_()
    assert same(read_tensors(tmp_path / "x", file.write(tmp_path / "x")), before)


def test_buffers_are_reused_for_larger_and_smaller_files(tmp_path):
    buffers = HostBuffers()
    for number, size in enumerate((10, 3000, 700, 40)):
        tensors = {"x": torch.arange(size)}
        file = tensor_file(tensors)
        file.copy(buffers)
        assert same(read_tensors(tmp_path / str(number), file.write(tmp_path / str(number))), tensors)


@pytest.mark.usefixtures("small_blocks")
def test_written_tensors_are_read(tmp_path):
    tensors = tensors_of_all_types()
    checksum = tensor_file(tensors).write(tmp_path / "x.safetensors")
    assert len(checksum.sums) > 5
    assert same(read_tensors(tmp_path / "x.safetensors", checksum), tensors)


def test_views_and_transposed_tensors_are_written_in_logical_order(tmp_path):
    whole = torch.arange(60.0).reshape(3, 4, 5)
    tensors = {
        "part": whole[1],
        "transposed": whole.permute(2, 0, 1),
        "empty": whole[:0],
        "scalar": whole[0, 0, 3],
    }
    checksum = tensor_file(tensors).write(tmp_path / "x.safetensors")
    assert same(read_tensors(tmp_path / "x.safetensors", checksum), tensors)


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 1500), min_size=1, max_size=6), st.data())
def test_any_changed_byte_is_detected(tmp_path_factory, sizes, data):
    path = tmp_path_factory.mktemp("x") / "x.safetensors"
    tensors = {str(index): torch.arange(size, dtype=torch.int16) for index, size in enumerate(sizes)}
    checksum = tensor_file(tensors).write(path)
    contents = bytearray(path.read_bytes())
    contents[data.draw(st.integers(0, len(contents) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(contents)
    with pytest.raises(CheckpointError, match="is damaged: the contents have changed"):
        read_tensors(path, checksum)


def test_a_truncated_file_is_detected(tmp_path):
    checksum = tensor_file(tensors_of_all_types()).write(tmp_path / "x")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is damaged: the file has"):
        read_tensors(tmp_path / "x", checksum)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
)


@settings(deadline=None, max_examples=60)
@given(plain)
def test_plain_data_is_restored_unchanged(value):
    import io

    tensors = {}
    written = as_bytes(extract_tensors(value, "x", tensors))
    assert insert_tensors(torch.load(io.BytesIO(written), weights_only=True), tensors) == value


def test_a_tensor_with_two_names_is_written_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(50, 8)
            self.scores = nn.Linear(8, 50, bias=False)
            self.scores.weight = self.words.weight

    model = Tied()
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=model)
    checkpoints.save(1)
    assert list(safetensors.torch.load_file(checkpoints.last.path / "model.safetensors")) == ["words.weight"]
    before = model.words.weight.detach().clone()
    nn.init.zeros_(model.words.weight)
    checkpoints.resume()
    assert torch.equal(model.scores.weight, before)
    assert model.scores.weight is model.words.weight


def test_all_plain_files_load_with_weights_only(tmp_path):
    saved_at(tmp_path, [2])
    files = list(tmp_path.glob("*/*.pt"))
    assert len(files) == 2
    for file in files:
        torch.load(file, weights_only=True)


def test_a_whole_model_in_a_state_is_rejected_with_the_reason(tmp_path):
    class Trainer:
        def state_dict(self):
            return {"epoch": 3, "nets": [nn.Linear(2, 2)]}

        def load_state_dict(self, state):
            raise AssertionError

    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(trainer=Trainer())
    with pytest.raises(
        UsageError, match=r"trainer\.nets\.0 is a whole model \(Linear\)\. A pickled model needs its class"
    ) as caught:
        checkpoints.save(1)
    assert "trainer.nets.0.state_dict()" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_whole_model_as_a_metric_is_rejected(tmp_path):
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=nn.Linear(2, 2))
    with pytest.raises(UsageError, match="model is a whole model"):
        checkpoints.save(1, model=nn.Linear(2, 2))


def test_an_object_that_weights_only_cannot_read_is_rejected(tmp_path):
    class Custom:
        def state_dict(self):
            return {"value": Training}

        load_state_dict = None

    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(custom=Custom())
    with pytest.raises(
        UsageError, match=r"custom\.value is of type type, which torch\.load\(weights_only=True\) cannot read"
    ):
        checkpoints.save(1)


def test_sparse_tensors_and_numpy_numbers_are_restored(tmp_path):
    loaded = {}

    class Part:
        def state_dict(self):
            return {
                "sparse": torch.eye(3).to_sparse(),
                "number": numpy.float64(0.1),
                "several": (1, {2}, torch.Size([3])),
            }

        def load_state_dict(self, state):
            loaded.update(state)

    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(part=Part())
    checkpoints.save(1)
    checkpoints.resume()
    assert torch.equal(loaded["sparse"].to_dense(), torch.eye(3))
    assert loaded["number"] == 0.1
    assert loaded["several"] == (1, {2}, torch.Size([3]))


def test_all_random_generators_are_restored():
    state = random_states()
    drawn = [torch.rand(3).tolist(), random.random(), numpy.random.rand()]
    restore_random_states(state)
    assert [torch.rand(3).tolist(), random.random(), numpy.random.rand()] == drawn


def test_the_manifest_is_json_with_step_parts_and_files(tmp_path):
    saved_at(tmp_path, [2])
    manifest = json.loads((tmp_path / "step-00000002" / "legroom.json").read_text())
    assert (manifest["format"], manifest["step"], manifest["parts"]) == (
        1,
        2,
        ["model", "optimizer", "scheduler", "loader"],
    )
    assert set(manifest["files"]) == {"model.safetensors", "state.safetensors", "state.pt", "rank-0.pt"}
