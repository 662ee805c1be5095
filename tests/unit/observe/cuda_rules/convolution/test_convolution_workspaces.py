"""Workspaces of convolutions: queries of the cuDNN library, votes of the forest, and the choice between them."""

import json
import sys
from types import SimpleNamespace

import pytest
from bench.rules.convolution.shipped_files import LEAF, write_forest, write_table

from legroom.errors import LegroomError
from legroom.gpus.catalog import GPUS, find_gpu
from legroom.observe.cuda_rules.convolution import decision_forest, recorded_table, workspace_source
from legroom.observe.cuda_rules.convolution.cudnn_library import (
    Attribute,
    ConvOperation,
    DescriptorSet,
    DescriptorType,
    RejectedError,
    SkippedKernel,
    descriptor_set,
    find_library,
    int_values,
)
from legroom.observe.cuda_rules.convolution.cudnn_process import Answer
from legroom.observe.cuda_rules.convolution.cudnn_query import OPERATIONS, Cudnn, KernelChoice, describe_gpu
from legroom.observe.cuda_rules.convolution.decision_forest import Vote, features, vote
from legroom.observe.cuda_rules.convolution.layout_copies import copy_bytes
from legroom.observe.cuda_rules.convolution.recorded_table import ConvLayer, ConvQuery, convolution_of
from legroom.observe.cuda_rules.convolution.split_k import MatrixProduct, partial_sums, product_of
from legroom.observe.cuda_rules.convolution.workspace_formulas import formula_bytes
from legroom.observe.cuda_rules.convolution.workspace_rules import ConvWorkspaces
from legroom.observe.cuda_rules.convolution.workspace_source import WorkspaceGuess, guess_workspaces

H200 = find_gpu("h200")


def conv(inputs, outputs, side, kernel, *, batch, dtype="float32", last=False, groups=1, transposed=False):
    """Return the query and the sizes of a convolution that keeps the image size."""
    layer = ConvLayer(
        dtype, last, inputs, outputs, (side, side), (kernel,) * 2, (1, 1), (1, 1), groups, transposed, (kernel // 2,) * 2
    )  # fmt: skip
    return ConvQuery(layer, batch, (side, side)), convolution_of(layer, batch)


# Partial sums, compared with measurements on an H200


def test_a_result_that_fills_a_third_of_the_gpu_is_split_in_three():
    assert (
        partial_sums(MatrixProduct(16 * 300, 96, 500, depth_taps=17), 0, (8, 1), "float32")
        == 120 * (128 * 128 + 1) * 4
    )


def test_after_a_full_wave_only_the_remaining_tiles_are_split():
    """With 144 tiles on 132 blocks, twelve tiles remain, and eleven blocks compute each of them."""
    assert (
        partial_sums(MatrixProduct(256, 512, 294912, column_taps=18), 0, (1, 2), "float32")
        == 132 * (128 * 128 + 1) * 4
    )


def test_a_shallow_product_is_not_split():
    assert partial_sums(MatrixProduct(128, 64, 576, column_taps=9), 5, (1, 1), "float32") == 0


def test_bfloat16_is_split_later_than_float16():
    """The numbers are for 96 channels, images of 32 × 32 and batch size 256."""
    product = MatrixProduct(256 * 32 * 32, 96, 96, depth_taps=9)

    assert partial_sums(product, 0, (8, 1), "float16") > partial_sums(product, 0, (8, 1), "bfloat16") == 0


def test_a_deep_product_is_split_into_parts_that_are_still_deep():
    """An H200 uses eleven and twelve parts for 392 and 400 steps on 132 blocks."""
    answers = [
        partial_sums(MatrixProduct(128, 128, depth, column_taps=8), 0, (1, 1), "float32")
        for depth in (392 * 32, 400 * 32)
    ]

    assert answers == [parts * 8 * (128 * 128 + 1) * 4 for parts in (11, 12)]


def test_remaining_tiles_are_split_alike_after_one_wave_and_after_many():
    few, many = (
        partial_sums(MatrixProduct(128 * tiles, 128, 128, depth_taps=9), 0, (8, 1), "float32")
        for tiles in (120 + 8, 17 * 120 + 8)
    )

    assert few == many == 4 * 8 * (128 * 128 + 1) * 4


def test_tiles_that_fill_whole_waves_are_not_split():
    assert partial_sums(MatrixProduct(128 * 132, 128, 100_000), 0, (1, 1), "float32") == 0


def test_an_unknown_tile_has_no_partial_sums():
    assert partial_sums(MatrixProduct(1000, 1000, 100_000), 77, (1, 1), "float32") == 0


def test_a_transposed_convolution_computes_the_gradient_of_an_ordinary_one():
    _, plain = conv(64, 32, 16, 3, batch=8)
    _, actual_operation = conv(32, 64, 16, 3, batch=8, transposed=True)

    assert product_of(actual_operation, ConvOperation.FORWARD) == product_of(
        plain, ConvOperation.INPUT_GRADIENT
    )
    assert product_of(actual_operation, ConvOperation.WEIGHT_GRADIENT) == product_of(
        plain, ConvOperation.WEIGHT_GRADIENT
    )


# The forest


def forest_of_votes(tmp_path, monkeypatch, *trees, formulas=("0", "P")):
    """Use the same forest for all operations. Each tree has one node and votes for one formula."""
    use_forest(tmp_path, monkeypatch, formulas, [([LEAF], [formulas.index(vote)], [0]) for vote in trees])


def use_forest(tmp_path, monkeypatch, formulas, trees):
    """Write a file with the same forest for every operation, and use this file."""
    path = tmp_path / "forest.xz"
    write_forest(path, [list(formulas)] * len(OPERATIONS), [trees] * len(OPERATIONS))
    monkeypatch.setattr(decision_forest, "FOREST", path)
    decision_forest._forests.cache_clear()


@pytest.fixture(autouse=True)
def _clear_caches():
    """Clear the caches of forests and guesses after each test."""
    yield
    decision_forest._forests.cache_clear()
    guess_workspaces.cache_clear()


def test_the_formula_with_the_most_votes_comes_first(tmp_path, monkeypatch):
    forest_of_votes(tmp_path, monkeypatch, "0", "P", "P")
    query, c = conv(96, 64, 20, 3, batch=32)

    first, second = vote(query, c, ConvOperation.FORWARD)

    assert (first.size, first.formula) == (copy_bytes("P", c) + 16, "P")
    assert first.share == pytest.approx(2 / 3)
    assert second.size == 0


def test_formulas_with_equal_results_share_their_votes(tmp_path, monkeypatch):
    forest_of_votes(tmp_path, monkeypatch, "0", "0", "P", "U", "P", formulas=("0", "P", "U"))
    query, c = conv(96, 64, 20, 3, batch=32)

    first, *_ = vote(query, c, ConvOperation.FORWARD)

    assert (first.formula, first.share) == ("P", 0.6)


def test_if_all_trees_disagree_the_median_size_is_likeliest(tmp_path, monkeypatch):
    forest_of_votes(tmp_path, monkeypatch, "0", "R9", "P", formulas=("0", "P", "R9"))

    assert vote(*conv(96, 64, 20, 3, batch=32), ConvOperation.FORWARD)[0].formula == "P"


def test_a_transposed_convolution_has_the_features_of_the_operation_that_it_computes(tmp_path, monkeypatch):
    """A transposed convolution computes the input gradient of an ordinary convolution."""
    plain = features(*conv(64, 32, 16, 3, batch=8), ConvOperation.INPUT_GRADIENT)

    assert features(*conv(32, 64, 16, 3, batch=8, transposed=True), ConvOperation.FORWARD) == plain


def test_a_tree_branches_on_a_feature_of_the_convolution(tmp_path, monkeypatch):
    """The tree has one branch on the batch size: no workspace up to 10, copies above 10."""
    batch = features(*conv(96, 64, 20, 3, batch=4321), ConvOperation.FORWARD).index(4321)
    use_forest(tmp_path, monkeypatch, ("0", "P"), [([batch, LEAF, LEAF], [10.5, 0, 1], [2, 0, 0])])

    formulas = [
        vote(*conv(96, 64, 20, 3, batch=batch), ConvOperation.FORWARD)[0].formula for batch in (10, 11)
    ]

    assert formulas == ["0", "P"]


def test_trees_of_different_depths_branch_independently(tmp_path, monkeypatch):
    """The first tree splits at batch sizes 10 and 20, the second does not split, and the third splits at 5."""
    batch = features(*conv(96, 64, 20, 3, batch=4321), ConvOperation.FORWARD).index(4321)
    deep = ([batch, LEAF, batch, LEAF, LEAF], [10, 0, 20, 1, 2], [2, 0, 2, 0, 0])
    trees = [deep, ([LEAF], [3], [0]), ([batch, LEAF, LEAF], [5, 4, 5], [2, 0, 0])]
    use_forest(tmp_path, monkeypatch, "abcdef", trees)
    forest = decision_forest._forests()[ConvOperation.FORWARD]

    def predicted(size):
        return "".join(forest.predict(features(*conv(96, 64, 20, 3, batch=size), ConvOperation.FORWARD)))

    assert [predicted(size) for size in (5, 6, 10, 11, 20, 21)] == ["ade", "adf", "adf", "bdf", "bdf", "cdf"]


def test_thresholds_and_many_formulas_are_read_as_they_were_written(tmp_path, monkeypatch):
    """The forest has 398 trees and 400 formulas. The trees split on two features."""
    inputs, batch = 4, 3
    formulas = [f"formula {number}" for number in range(400)]
    trees = [
        (
            [inputs, LEAF, batch, LEAF, LEAF],
            [90 + tree % 10, tree, tree // 10, tree + 1, tree + 2],
            [2, 0, 2, 0, 0],
        )
        for tree in range(398)
    ]
    use_forest(tmp_path, monkeypatch, formulas, trees)
    forest = decision_forest._forests()[ConvOperation.FORWARD]
    predicted = forest.predict(features(*conv(96, 64, 20, 3, batch=20), ConvOperation.FORWARD))

    expected = [tree + (0 if tree % 10 >= 6 else 1 if tree // 10 >= 20 else 2) for tree in range(398)]
    assert list(predicted) == [formulas[number] for number in expected]


def test_only_ratios_are_not_integers():
    """The thresholds of integer features are rounded down."""
    for operation in OPERATIONS:
        found = features(*conv(96, 64, 20, 3, batch=32), operation)
        assert [index for index, one in enumerate(found) if isinstance(one, float)] == [
            *decision_forest.RATIOS
        ]


def read_back(tmp_path, monkeypatch, layers):
    """Write a table, and return its content as read from the file."""
    path = tmp_path / "table.xz"
    caches = (recorded_table._table, recorded_table.family_rows, recorded_table._block_remainders)
    write_table(path, layers)
    monkeypatch.setattr(recorded_table, "TABLE", path)
    for function in caches:
        function.cache_clear()
    try:
        return dict(recorded_table.table())
    finally:
        for function in caches:
            function.cache_clear()


def test_a_table_is_read_as_it_was_written(tmp_path, monkeypatch):
    wide = ConvLayer("float16", True, 8, 16, (100_000,), (3,), (1,), (2,), 1, False, (2,))
    deep = ConvLayer("bfloat16", False, 8, 16, (4, 5, 6), (1, 2, 3), (1, 1, 2), (1, 1, 1), 4, True, None)
    rows = [(2, 0, 7, 1, 140_000_000, 20, 0), (64, 1, 0, 0, 1, 2, 3)]
    layers = {deep: rows[:1], wide: rows, wide._replace(padding=(0,)): rows[1:]}

    assert read_back(tmp_path, monkeypatch, layers.items()) == layers


def test_a_family_of_a_table_can_be_in_several_blocks(tmp_path, monkeypatch):
    small = ConvLayer("float16", True, 8, 16, (20,), (3,), (1,), (1,), 1, False, (1,))
    layers = {
        small._replace(inputs=inputs, kernel=(kernel,)): [
            (32, inputs % 21, inputs, 3, 2 * inputs, inputs % 5, kernel)
        ]
        for kernel, count in ((1, 1000), (3, 2 * recorded_table.BLOCK), (5, 10))
        for inputs in range(1, count + 1)
    }

    assert read_back(tmp_path, monkeypatch, layers.items()) == layers


def test_a_python_without_lzma_is_reported_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(LegroomError, match="built without the `lzma` module.*liblzma"):
        recorded_table.decompress(tmp_path / "table.xz")


def test_the_shipped_forest_covers_every_operation():
    query, c = conv(96, 64, 20, 3, batch=32)

    for operation in OPERATIONS:
        votes = vote(query, c, operation)
        assert votes
        assert sum(one.share > 0.5 for one in votes) <= len(votes)


# cuDNN's library


class FakeCudnn:
    """A fake cuDNN that creates descriptors and rejects those of type `rejected`."""

    def __init__(self, rejected=None):
        self.rejected = rejected
        self.alive = {}

    def cudnnBackendCreateDescriptor(self, kind, out):
        out._obj.value = len(self.alive) + 1
        self.alive[out._obj.value] = kind
        return 0

    def cudnnBackendSetAttribute(self, descriptor, name, type, count, values):
        return 0

    def cudnnBackendFinalize(self, descriptor):
        return 3000 if self.alive[descriptor.value] == self.rejected else 0

    def cudnnBackendDestroyDescriptor(self, descriptor):
        self.alive.pop(descriptor.value)

    def cudnnGetLastErrorString(self, room, size):
        room.value = b"not for this GPU"


def test_a_rejection_has_the_message_of_cudnn_and_leaks_no_descriptor():
    library = FakeCudnn(rejected=DescriptorType.TENSOR)

    with (
        pytest.raises(RejectedError, match="status 3000, not for this GPU"),
        descriptor_set(library) as descriptors,
    ):
        descriptors.create(DescriptorType.TENSOR, {Attribute.TENSOR_SIZES: int_values(1, 2)})

    assert library.alive == {}


def test_a_query_that_cudnn_rejects_has_no_answer():
    query, _ = conv(96, 64, 20, 3, batch=32)

    assert Cudnn(FakeCudnn(rejected=DescriptorType.TENSOR), H200).select(query, ConvOperation.FORWARD) is None


def test_every_gpu_of_the_catalog_can_be_described():
    for gpu in GPUS:
        properties = json.loads(describe_gpu(gpu))
        assert properties["deviceVer"] == 100 * gpu.capability[0] + 10 * gpu.capability[1]
        assert properties["multiProcessorCount"] == gpu.sm_count


@pytest.mark.skipif(find_library() is None, reason="cuDNN's library is not installed (nvidia-cudnn-cu13)")
def test_the_library_selects_a_kernel_without_a_gpu():
    query, c = conv(64, 64, 56, 3, batch=64)
    cudnn = Cudnn(find_library(), H200)

    sizes = [cudnn.workspace(query, operation, c) for operation in OPERATIONS]

    assert all(size is not None and size >= copy_bytes("P", c) for size in sizes)


def selecting(monkeypatch, choice, *skipped):
    """Make cuDNN select the kernel `choice` and log the skipped kernels."""
    answer = choice, [SkippedKernel(number, "") for number in skipped]
    monkeypatch.setattr(Cudnn, "select_kernel", lambda *_: answer)


SPLIT = KernelChoice(99_999_999, 68, 0, {2: 1, 25: 0, 27: 1, 28: 2})


def test_the_workspace_of_a_kernel_without_clusters_is_that_of_cudnn(monkeypatch):
    query, c = conv(64, 64, 56, 3, batch=64)
    selecting(monkeypatch, KernelChoice(4711, 20, 0, {2: 1}))

    assert Cudnn(None, H200).workspace(query, ConvOperation.FORWARD, c) == 4711


def test_the_workspace_of_a_kernel_with_split_k_is_computed_from_its_tile(monkeypatch):
    query, c = conv(512, 256, 8, 3, batch=64)
    selecting(monkeypatch, SPLIT)

    size = Cudnn(None, H200).workspace(query, ConvOperation.WEIGHT_GRADIENT, c)

    assert size == formula_bytes("P/1,1,2", query, c, ConvOperation.WEIGHT_GRADIENT)


def test_a_workspace_without_split_k_is_an_alternative(monkeypatch):
    query, c = conv(512, 256, 8, 3, batch=64)
    selecting(monkeypatch, SPLIT)

    sizes = Cudnn(None, H200).workspaces(query, ConvOperation.WEIGHT_GRADIENT, c)

    assert sizes[1] == formula_bytes("P+", query, c, ConvOperation.WEIGHT_GRADIENT) < sizes[0] <= sizes[2]


def test_groups_are_adjacent_in_the_rows_of_weight_gradients(monkeypatch):
    """Measured on an H200 for a layer of RegNet: nine kernel positions, two tiles of 64 channels, four parts."""
    query, c = conv(128, 128, 24, 3, batch=72, groups=8, dtype="bfloat16")
    selecting(monkeypatch, KernelChoice(21_270_544, 65, 0, {2: 5, 25: 0, 27: 1, 28: 3}))

    size = Cudnn(None, H200).workspace(query, ConvOperation.WEIGHT_GRADIENT, c)

    assert -(-size // 512) == -(-22_450_567 // 512)


def test_groups_have_the_same_width_for_input_and_output(monkeypatch):
    """Measured on an H200: groups of 16 input and 32 output channels are both padded to 32."""
    query, c = conv(64, 128, 96, 3, batch=4, groups=4, dtype="bfloat16")
    selecting(monkeypatch, KernelChoice(18_948_243, 65, 0, {2: 5, 25: 0, 27: 1, 28: 5}))

    size = Cudnn(None, H200).workspace(query, ConvOperation.WEIGHT_GRADIENT, c)

    assert -(-size // 512) == -(-20_259_231 // 512)


def test_the_workspace_of_tensors_beyond_2_gib_is_that_of_cudnn(monkeypatch):
    query, c = conv(512, 256, 8, 3, batch=64)
    selecting(monkeypatch, SPLIT._replace(workspace=4711))

    assert Cudnn(None, H200).workspaces(query, ConvOperation.WEIGHT_GRADIENT, c) == (4711,)


def test_split_k_of_other_gpu_generations_is_left_to_cudnn(monkeypatch):
    query, c = conv(512, 256, 8, 3, batch=64)
    selecting(monkeypatch, SPLIT)

    assert Cudnn(None, find_gpu("b200")).workspace(query, ConvOperation.WEIGHT_GRADIENT, c) == SPLIT.workspace


def test_a_skipped_gpu_only_kernel_comes_before_the_selected_kernel(monkeypatch):
    query, c = conv(64, 64, 16, 3, batch=100)
    selecting(monkeypatch, SPLIT, 18)

    assert Cudnn(None, H200).workspaces(query, ConvOperation.WEIGHT_GRADIENT, c) == (117_964_800,)


def test_a_kernel_skipped_for_another_reason_is_ignored(monkeypatch):
    query, c = conv(64, 64, 16, 3, batch=100)
    selecting(monkeypatch, KernelChoice(4711, 20, 0, {2: 1}), 39, 62)

    assert Cudnn(None, H200).workspaces(query, ConvOperation.WEIGHT_GRADIENT, c) == (4711,)


def test_a_gpu_only_kernel_of_unknown_size_has_no_answer(monkeypatch):
    query, c = conv(64, 64, 16, 1, batch=100, last=True)
    selecting(monkeypatch, KernelChoice(4711, 20, 0, {2: 1}), 62)

    assert Cudnn(None, H200).workspaces(query, ConvOperation.WEIGHT_GRADIENT, c) == ()


# The choice between sources


def with_library(monkeypatch, answer, *, logs_skipped=False, recorded_version=True):
    """Simulate an installed cuDNN that returns `answer` for every operation, or crashes if `answer` is None."""
    reply = None if answer is None else Answer(91900, logs_skipped, ((answer,),) * 3)
    library = SimpleNamespace(
        version="9.19.0" if recorded_version else "9.21.0",
        is_recorded_version=recorded_version,
        crashes=int(answer is None),
        ask=lambda *_: reply,
    )
    monkeypatch.setattr(workspace_source, "cudnn_process", lambda: library)


def voting(monkeypatch, *votes):
    monkeypatch.setattr(workspace_source, "vote", lambda *_: [Vote(*one) for one in votes])
    monkeypatch.setattr(workspace_source, "cudnn_process", lambda: None)


RECORDED = ConvWorkspaces(1111, 2222, 3333)


def recorded(monkeypatch):
    """Add the layer to the recorded table."""
    monkeypatch.setattr(workspace_source, "look_up", lambda *_: RECORDED)


def test_the_installed_library_is_queried_before_the_recorded_table(monkeypatch):
    recorded(monkeypatch)
    with_library(monkeypatch, 4711, logs_skipped=True, recorded_version=False)

    found = guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == {4711}
    assert RECORDED in found.others


def test_the_recorded_table_is_used_for_its_own_version(monkeypatch):
    recorded(monkeypatch)
    with_library(monkeypatch, 4711, logs_skipped=True)

    assert guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200) == WorkspaceGuess(RECORDED)


def test_without_a_library_the_recorded_table_is_used(monkeypatch):
    recorded(monkeypatch)
    monkeypatch.setattr(workspace_source, "cudnn_process", lambda: None)

    assert guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200) == WorkspaceGuess(RECORDED)


def test_a_layer_that_crashes_cudnn_falls_back_to_the_recorded_table(monkeypatch):
    recorded(monkeypatch)
    with_library(monkeypatch, None, recorded_version=False)

    assert guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200) == WorkspaceGuess(RECORDED, crashed=True)


def test_a_layer_that_crashes_cudnn_and_was_never_measured_falls_back_to_the_forest(monkeypatch):
    voting(monkeypatch, (5, 1.0, "P"))
    with_library(monkeypatch, None)

    found = guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == {5}
    assert found.crashed


def test_the_recorded_table_is_used_for_operations_that_the_library_rejects(monkeypatch):
    recorded(monkeypatch)
    with_library(monkeypatch, 4711, recorded_version=False)
    monkeypatch.setattr(
        workspace_source.cudnn_process(), "ask", lambda *_: Answer(92100, True, ((4711,), (), (4711,)))
    )

    assert guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200).likely == ConvWorkspaces(4711, 2222, 4711)


def test_the_library_comes_before_the_forest(monkeypatch):
    voting(monkeypatch, (5, 1.0, "P"))
    with_library(monkeypatch, 4711)

    found = guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == set(found.others[0]) == {4711}


def test_a_larger_size_that_most_trees_vote_for_is_an_alternative_to_the_library(monkeypatch):
    voting(monkeypatch, (10_000_000, 0.6, "P"))
    with_library(monkeypatch, 4711)

    found = guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == {4711}
    assert set(found.others[0]) == {10_000_000}


def test_a_library_that_logs_no_skipped_kernels_is_ignored_for_pointwise_convolutions(monkeypatch):
    voting(monkeypatch, (5, 1.0, "U"))
    with_library(monkeypatch, 4711)

    assert set(guess_workspaces(*conv(97, 61, 21, 1, batch=33), H200).likely) == {5}


def test_a_library_that_logs_skipped_kernels_is_certain(monkeypatch):
    voting(monkeypatch, (5, 1.0, "U"))
    with_library(monkeypatch, 4711, logs_skipped=True)

    found = guess_workspaces(*conv(97, 61, 21, 1, batch=33), H200)

    assert set(found.likely) == {4711}
    assert found.others == ()


def test_a_winograd_vote_comes_before_a_library_that_logs_no_skipped_kernels(monkeypatch):
    voting(monkeypatch, (9999, 0.8, "=WINOGRAD"))
    with_library(monkeypatch, 4711)

    assert set(guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200).likely) == {9999}


def test_without_a_library_the_forest_decides_and_larger_votes_are_alternatives(monkeypatch):
    voting(monkeypatch, (5, 0.6, "P"), (9, 0.4, "U"), (90, 0.1, "V"))

    found = guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == {5}
    assert set(found.others[0]) == {9}
    assert max(max(sizes) for sizes in found.others) == 90


def test_a_huge_size_without_a_majority_affects_the_bound_only(monkeypatch):
    giant = 1 << 40
    voting(monkeypatch, (giant, 0.5, "R30"), (9, 0.4, "U"))

    found = guess_workspaces(*conv(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == set(found.others[0]) == {9}
    assert max(max(sizes) for sizes in found.others) == giant


def test_only_the_library_is_used_for_other_gpu_generations(monkeypatch):
    voting(monkeypatch, (5, 1.0, "P"))
    with_library(monkeypatch, 4711)

    assert set(guess_workspaces(*conv(97, 61, 21, 3, batch=33), find_gpu("a100")).likely) == {4711}


def test_gpus_older_than_turing_use_the_rules(monkeypatch):
    voting(monkeypatch, (5, 1.0, "P"))
    with_library(monkeypatch, 4711)

    assert 4711 not in guess_workspaces(*conv(97, 61, 21, 3, batch=33), find_gpu("v100")).likely


def test_no_more_descriptors_are_read_than_requested():
    class Many(FakeCudnn):
        def cudnnBackendGetAttribute(self, descriptor, name, type, room, count, values):
            count._obj.value = 50
            return 0

    assert (
        len(
            DescriptorSet(Many()).descriptors(1, Attribute.HEURISTIC_RESULTS, DescriptorType.CONFIGURATION, 4)
        )
        == 4
    )
