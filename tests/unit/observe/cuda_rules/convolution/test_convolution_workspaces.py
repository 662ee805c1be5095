"""Convolutions that nobody measured: what cuDNN's library is asked, what trees vote for, and what is made of both."""

import gzip
import json
from types import SimpleNamespace

import numpy
import pytest

from legroom.gpus.catalog import GPUS, find_gpu
from legroom.observe.cuda_rules.convolution import decide, decision_forest
from legroom.observe.cuda_rules.convolution.cudnn_library import (
    Attribute,
    Desk,
    Kind,
    Refusal,
    RefusedError,
    desk_of,
    find_library,
    numbers,
)
from legroom.observe.cuda_rules.convolution.cudnn_process import Answer
from legroom.observe.cuda_rules.convolution.cudnn_query import OPERATIONS, Choice, Cudnn, described
from legroom.observe.cuda_rules.convolution.decide import Guess, guess
from legroom.observe.cuda_rules.convolution.decision_forest import LEAF, Head, Voted, features, vote
from legroom.observe.cuda_rules.convolution.layout_copies import converted
from legroom.observe.cuda_rules.convolution.recorded_table import Layer, Question
from legroom.observe.cuda_rules.convolution.recorded_table import described as described_layer
from legroom.observe.cuda_rules.convolution.split_k import Product, partial_sums, product_of
from legroom.observe.cuda_rules.convolution.workspace import Workspaces
from legroom.observe.cuda_rules.convolution.workspace_formulas import cooked

H200 = find_gpu("h200")


def asked(inputs, outputs, side, kernel, *, batch, dtype="float32", last=False, groups=1, transposed=False):
    """A convolution that keeps the size of its pictures, as torch puts it and as rules see it."""
    layer = Layer(
        dtype, last, inputs, outputs, (side, side), (kernel,) * 2, (1, 1), (1, 1), groups, transposed, (kernel // 2,) * 2
    )  # fmt: skip
    return Question(layer, batch, (side, side)), described_layer(layer, batch)


# Partial sums, against what an H200 answered


def test_a_result_that_fills_a_third_of_the_gpu_is_split_in_three():
    assert (
        partial_sums(Product(16 * 300, 96, 500, depth_taps=17), 0, (8, 1), "float32")
        == 120 * (128 * 128 + 1) * 4
    )


def test_after_a_full_wave_only_the_remaining_tiles_are_split():
    """144 tiles on 132 blocks: twelve are left, and eleven blocks work on each of them."""
    assert (
        partial_sums(Product(256, 512, 294912, column_taps=18), 0, (1, 2), "float32")
        == 132 * (128 * 128 + 1) * 4
    )


def test_a_shallow_product_is_not_split():
    assert partial_sums(Product(128, 64, 576, column_taps=9), 5, (1, 1), "float32") == 0


def test_bfloat16_is_split_later_than_float16():
    """Answers for 96 channels on pictures of 32 × 32 at a batch of 256."""
    product = Product(256 * 32 * 32, 96, 96, depth_taps=9)

    assert partial_sums(product, 0, (8, 1), "float16") > partial_sums(product, 0, (8, 1), "bfloat16") == 0


def test_a_deep_product_is_split_into_parts_that_are_still_deep():
    """392 and 400 steps, on 132 blocks: an H200's eleven and twelve parts."""
    answers = [
        partial_sums(Product(128, 128, depth, column_taps=8), 0, (1, 1), "float32")
        for depth in (392 * 32, 400 * 32)
    ]

    assert answers == [parts * 8 * (128 * 128 + 1) * 4 for parts in (11, 12)]


def test_remaining_tiles_are_split_alike_after_one_wave_and_after_many():
    few, many = (
        partial_sums(Product(128 * tiles, 128, 128, depth_taps=9), 0, (8, 1), "float32")
        for tiles in (120 + 8, 17 * 120 + 8)
    )

    assert few == many == 4 * 8 * (128 * 128 + 1) * 4


def test_tiles_that_fill_whole_waves_are_not_split():
    assert partial_sums(Product(128 * 132, 128, 100_000), 0, (1, 1), "float32") == 0


def test_an_unknown_tile_has_no_partial_sums():
    assert partial_sums(Product(1000, 1000, 100_000), 77, (1, 1), "float32") == 0


def test_a_transposed_convolution_computes_the_gradient_of_an_ordinary_one():
    _, plain = asked(64, 32, 16, 3, batch=8)
    _, turned = asked(32, 64, 16, 3, batch=8, transposed=True)

    assert product_of(turned, Kind.FORWARD) == product_of(plain, Kind.INPUT_GRADIENT)
    assert product_of(turned, Kind.WEIGHT_GRADIENT) == product_of(plain, Kind.WEIGHT_GRADIENT)


# The forest


def planted(tmp_path, monkeypatch, *trees, recipes=("0", "P")):
    """Forests of one node a tree, each voting for one recipe, the same for all operations."""
    votes = [recipes.index(recipe) for recipe in trees]
    sown(tmp_path, monkeypatch, recipes, [], range(len(trees)), [LEAF] * len(trees), votes, [0] * len(trees))


def sown(tmp_path, monkeypatch, recipes, limits, starts, asked, values, right):
    """The same forest for every operation, as its file has it."""
    head = json.dumps(Head(list(recipes), len(limits), list(starts), len(asked))) + "\n"
    parts = ((limits, "<f4"), (asked, "u1"), (values, "<u2"), (right, "<u4"))
    body = b"".join(numpy.array(numbers, kind).tobytes() for numbers, kind in parts)
    path = tmp_path / "forest.gz"
    path.write_bytes(gzip.compress(head.encode() * 3 + body * 3))
    monkeypatch.setattr(decision_forest, "FOREST", path)
    decision_forest._forests.cache_clear()


@pytest.fixture(autouse=True)
def _forget():
    """Neither a forest nor an answer outlives its test."""
    yield
    decision_forest._forests.cache_clear()
    guess.cache_clear()


def test_the_formula_with_the_most_votes_comes_first(tmp_path, monkeypatch):
    planted(tmp_path, monkeypatch, "0", "P", "P")
    question, c = asked(96, 64, 20, 3, batch=32)

    first, second = vote(question, c, Kind.FORWARD)

    assert (first.size, first.recipe) == (converted("P", c) + 16, "P")
    assert first.share == pytest.approx(2 / 3)
    assert second.size == 0


def test_formulas_with_equal_results_share_their_votes(tmp_path, monkeypatch):
    planted(tmp_path, monkeypatch, "0", "0", "P", "U", "P", recipes=("0", "P", "U"))
    question, c = asked(96, 64, 20, 3, batch=32)

    first, *_ = vote(question, c, Kind.FORWARD)

    assert (first.recipe, first.share) == ("P", 0.6)


def test_if_all_trees_disagree_the_median_size_is_likeliest(tmp_path, monkeypatch):
    planted(tmp_path, monkeypatch, "0", "R9", "P", recipes=("0", "P", "R9"))

    assert vote(*asked(96, 64, 20, 3, batch=32), Kind.FORWARD)[0].recipe == "P"


def test_a_transposed_convolution_has_the_features_of_the_operation_that_it_computes(tmp_path, monkeypatch):
    """The gradient of an ordinary one: all that trees may ask for is the same."""
    plain = features(*asked(64, 32, 16, 3, batch=8), Kind.INPUT_GRADIENT)

    assert features(*asked(32, 64, 16, 3, batch=8, transposed=True), Kind.FORWARD) == plain


def test_a_tree_branches_on_a_feature_of_the_convolution(tmp_path, monkeypatch):
    """One question, for the batch: up to 10 nothing, above it everything is converted."""
    batch = features(*asked(96, 64, 20, 3, batch=4321), Kind.FORWARD).index(4321)
    sown(tmp_path, monkeypatch, ("0", "P"), [10], [0], [batch, LEAF, LEAF], [0, 0, 1], [2, 0, 0])

    recipes = [vote(*asked(96, 64, 20, 3, batch=batch), Kind.FORWARD)[0].recipe for batch in (10, 11)]

    assert recipes == ["0", "P"]


def test_the_shipped_forest_covers_every_operation():
    question, c = asked(96, 64, 20, 3, batch=32)

    for operation in OPERATIONS:
        votes = vote(question, c, operation)
        assert votes
        assert sum(one.share > 0.5 for one in votes) <= len(votes)


# cuDNN's library


class FakeCudnn:
    """Makes descriptors, and refuses to finish those of one kind."""

    def __init__(self, refused=None):
        self.refused = refused
        self.alive = {}

    def cudnnBackendCreateDescriptor(self, kind, out):
        out._obj.value = len(self.alive) + 1
        self.alive[out._obj.value] = kind
        return 0

    def cudnnBackendSetAttribute(self, descriptor, name, type, count, values):
        return 0

    def cudnnBackendFinalize(self, descriptor):
        return 3000 if self.alive[descriptor.value] == self.refused else 0

    def cudnnBackendDestroyDescriptor(self, descriptor):
        self.alive.pop(descriptor.value)

    def cudnnGetLastErrorString(self, room, size):
        room.value = b"not for this GPU"


def test_a_rejection_has_the_message_of_cudnn_and_leaks_no_descriptor():
    library = FakeCudnn(refused=Kind.TENSOR)

    with pytest.raises(RefusedError, match="status 3000, not for this GPU"), desk_of(library) as desk:
        desk.make(Kind.TENSOR, {Attribute.TENSOR_SIZES: numbers(1, 2)})

    assert library.alive == {}


def test_a_query_that_cudnn_rejects_has_no_answer():
    question, _ = asked(96, 64, 20, 3, batch=32)

    assert Cudnn(FakeCudnn(refused=Kind.TENSOR), H200).choose(question, Kind.FORWARD) is None


def test_every_gpu_of_the_catalog_can_be_described():
    for gpu in GPUS:
        told = json.loads(described(gpu))
        assert told["deviceVer"] == 100 * gpu.capability[0] + 10 * gpu.capability[1]
        assert told["multiProcessorCount"] == gpu.sm_count


@pytest.mark.skipif(find_library() is None, reason="cuDNN's library is not installed (nvidia-cudnn-cu13)")
def test_the_library_selects_a_kernel_without_a_gpu():
    question, c = asked(64, 64, 56, 3, batch=64)
    cudnn = Cudnn(find_library(), H200)

    sizes = [cudnn.workspace(question, operation, c) for operation in OPERATIONS]

    assert all(size is not None and size >= converted("P", c) for size in sizes)


def choosing(monkeypatch, choice, *passed_over):
    """cuDNN names this kernel, and its log says that it passed over these."""
    answer = choice, [Refusal(number, "") for number in passed_over]
    monkeypatch.setattr(Cudnn, "choose_or_miss", lambda *_: answer)


SPLIT = Choice(99_999_999, 68, 0, {2: 1, 25: 0, 27: 1, 28: 2})


def test_the_workspace_of_a_kernel_without_clusters_is_that_of_cudnn(monkeypatch):
    question, c = asked(64, 64, 56, 3, batch=64)
    choosing(monkeypatch, Choice(4711, 20, 0, {2: 1}))

    assert Cudnn(None, H200).workspace(question, Kind.FORWARD, c) == 4711


def test_the_workspace_of_a_kernel_with_split_k_is_computed_from_its_tile(monkeypatch):
    question, c = asked(512, 256, 8, 3, batch=64)
    choosing(monkeypatch, SPLIT)

    size = Cudnn(None, H200).workspace(question, Kind.WEIGHT_GRADIENT, c)

    assert size == cooked("P/1,1,2", question, c, Kind.WEIGHT_GRADIENT)


def test_a_workspace_without_split_k_is_an_alternative(monkeypatch):
    question, c = asked(512, 256, 8, 3, batch=64)
    choosing(monkeypatch, SPLIT)

    sizes = Cudnn(None, H200).workspaces(question, Kind.WEIGHT_GRADIENT, c)

    assert sizes[1] == cooked("P+", question, c, Kind.WEIGHT_GRADIENT) < sizes[0] <= sizes[2]


def test_groups_are_adjacent_in_the_rows_of_weight_gradients(monkeypatch):
    """An answer of an H200 for a layer of RegNet: nine places of the kernel, two tiles of 64 channels, four parts."""
    question, c = asked(128, 128, 24, 3, batch=72, groups=8, dtype="bfloat16")
    choosing(monkeypatch, Choice(21_270_544, 65, 0, {2: 5, 25: 0, 27: 1, 28: 3}))

    size = Cudnn(None, H200).workspace(question, Kind.WEIGHT_GRADIENT, c)

    assert -(-size // 512) == -(-22_450_567 // 512)


def test_groups_have_the_same_width_for_input_and_output(monkeypatch):
    """An answer of an H200: 16 channels become 32 in each group, and both are read as 32."""
    question, c = asked(64, 128, 96, 3, batch=4, groups=4, dtype="bfloat16")
    choosing(monkeypatch, Choice(18_948_243, 65, 0, {2: 5, 25: 0, 27: 1, 28: 5}))

    size = Cudnn(None, H200).workspace(question, Kind.WEIGHT_GRADIENT, c)

    assert -(-size // 512) == -(-20_259_231 // 512)


def test_the_workspace_of_tensors_beyond_2_gib_is_that_of_cudnn(monkeypatch):
    question, c = asked(512, 256, 8, 3, batch=64)
    choosing(monkeypatch, SPLIT._replace(workspace=4711))

    assert Cudnn(None, H200).workspaces(question, Kind.WEIGHT_GRADIENT, c) == (4711,)


def test_split_k_of_other_gpu_generations_is_left_to_cudnn(monkeypatch):
    question, c = asked(512, 256, 8, 3, batch=64)
    choosing(monkeypatch, SPLIT)

    assert Cudnn(None, find_gpu("b200")).workspace(question, Kind.WEIGHT_GRADIENT, c) == SPLIT.workspace


def test_a_skipped_gpu_only_kernel_comes_before_the_selected_kernel(monkeypatch):
    question, c = asked(64, 64, 16, 3, batch=100)
    choosing(monkeypatch, SPLIT, 18)

    assert Cudnn(None, H200).workspaces(question, Kind.WEIGHT_GRADIENT, c) == (117_964_800,)


def test_a_kernel_skipped_for_another_reason_does_not(monkeypatch):
    question, c = asked(64, 64, 16, 3, batch=100)
    choosing(monkeypatch, Choice(4711, 20, 0, {2: 1}), 39, 62)

    assert Cudnn(None, H200).workspaces(question, Kind.WEIGHT_GRADIENT, c) == (4711,)


def test_a_gpu_only_kernel_of_unknown_size_has_no_answer(monkeypatch):
    question, c = asked(64, 64, 16, 1, batch=100, last=True)
    choosing(monkeypatch, Choice(4711, 20, 0, {2: 1}), 62)

    assert Cudnn(None, H200).workspaces(question, Kind.WEIGHT_GRADIENT, c) == ()


# What is made of it


def with_library(monkeypatch, answer, *, tells_all=False, recorded_version=True):
    """cuDNN's library is installed and gives this answer for every operation; None: it crashes."""
    reply = None if answer is None else Answer(91900, tells_all, ((answer,),) * 3)
    library = SimpleNamespace(
        version="9.19.0" if recorded_version else "9.21.0",
        is_recorded_version=recorded_version,
        crashes=int(answer is None),
        ask=lambda *_: reply,
    )
    monkeypatch.setattr(decide, "cudnn_process", lambda: library)


def voting(monkeypatch, *votes):
    monkeypatch.setattr(decide, "vote", lambda *_: [Voted(*one) for one in votes])
    monkeypatch.setattr(decide, "cudnn_process", lambda: None)


RECORDED = Workspaces(1111, 2222, 3333)


def recorded(monkeypatch):
    """The recorded table has this layer."""
    monkeypatch.setattr(decide, "look_up", lambda *_: RECORDED)


def test_the_library_that_is_installed_is_asked_before_the_recorded_table(monkeypatch):
    recorded(monkeypatch)
    with_library(monkeypatch, 4711, tells_all=True, recorded_version=False)

    found = guess(*asked(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == {4711}
    assert RECORDED in found.others


def test_the_recorded_table_holds_the_answers_of_its_own_version(monkeypatch):
    recorded(monkeypatch)
    with_library(monkeypatch, 4711, tells_all=True)

    assert guess(*asked(97, 61, 21, 3, batch=33), H200) == Guess(RECORDED)


def test_without_a_library_the_recorded_table_decides(monkeypatch):
    recorded(monkeypatch)
    monkeypatch.setattr(decide, "cudnn_process", lambda: None)

    assert guess(*asked(97, 61, 21, 3, batch=33), H200) == Guess(RECORDED)


def test_a_layer_that_crashes_cudnn_falls_back_to_the_recorded_table(monkeypatch):
    recorded(monkeypatch)
    with_library(monkeypatch, None, recorded_version=False)

    assert guess(*asked(97, 61, 21, 3, batch=33), H200) == Guess(RECORDED, crashed=True)


def test_a_layer_that_crashes_cudnn_and_was_never_measured_falls_back_to_the_forest(monkeypatch):
    voting(monkeypatch, (5, 1.0, "P"))
    with_library(monkeypatch, None)

    found = guess(*asked(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == {5}
    assert found.crashed


def test_the_recorded_table_answers_for_operations_that_the_library_cannot(monkeypatch):
    recorded(monkeypatch)
    with_library(monkeypatch, 4711, recorded_version=False)
    monkeypatch.setattr(decide.cudnn_process(), "ask", lambda *_: Answer(92100, True, ((4711,), (), (4711,))))

    assert guess(*asked(97, 61, 21, 3, batch=33), H200).likely == Workspaces(4711, 2222, 4711)


def test_the_library_comes_before_the_forest(monkeypatch):
    voting(monkeypatch, (5, 1.0, "P"))
    with_library(monkeypatch, 4711)

    found = guess(*asked(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == set(found.others[0]) == {4711}


def test_a_larger_size_that_most_trees_vote_for_is_an_alternative_to_the_library(monkeypatch):
    voting(monkeypatch, (10_000_000, 0.6, "P"))
    with_library(monkeypatch, 4711)

    found = guess(*asked(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == {4711}
    assert set(found.others[0]) == {10_000_000}


def test_a_library_that_logs_no_skipped_kernels_is_ignored_for_pointwise_convolutions(monkeypatch):
    voting(monkeypatch, (5, 1.0, "U"))
    with_library(monkeypatch, 4711)

    assert set(guess(*asked(97, 61, 21, 1, batch=33), H200).likely) == {5}


def test_a_library_that_logs_skipped_kernels_is_certain(monkeypatch):
    voting(monkeypatch, (5, 1.0, "U"))
    with_library(monkeypatch, 4711, tells_all=True)

    found = guess(*asked(97, 61, 21, 1, batch=33), H200)

    assert set(found.likely) == {4711}
    assert found.others == ()


def test_a_winograd_vote_comes_before_a_library_that_logs_no_skipped_kernels(monkeypatch):
    voting(monkeypatch, (9999, 0.8, "=WINOGRAD"))
    with_library(monkeypatch, 4711)

    assert set(guess(*asked(97, 61, 21, 3, batch=33), H200).likely) == {9999}


def test_without_a_library_the_forest_decides_and_larger_votes_are_alternatives(monkeypatch):
    voting(monkeypatch, (5, 0.6, "P"), (9, 0.4, "U"), (90, 0.1, "V"))

    found = guess(*asked(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == {5}
    assert set(found.others[0]) == {9}
    assert max(max(sizes) for sizes in found.others) == 90


def test_a_huge_size_without_a_majority_affects_the_bound_only(monkeypatch):
    giant = 1 << 40
    voting(monkeypatch, (giant, 0.5, "R30"), (9, 0.4, "U"))

    found = guess(*asked(97, 61, 21, 3, batch=33), H200)

    assert set(found.likely) == set(found.others[0]) == {9}
    assert max(max(sizes) for sizes in found.others) == giant


def test_only_the_library_answers_for_other_gpu_generations(monkeypatch):
    voting(monkeypatch, (5, 1.0, "P"))
    with_library(monkeypatch, 4711)

    assert set(guess(*asked(97, 61, 21, 3, batch=33), find_gpu("a100")).likely) == {4711}


def test_gpus_older_than_turing_use_the_rules(monkeypatch):
    voting(monkeypatch, (5, 1.0, "P"))
    with_library(monkeypatch, 4711)

    assert 4711 not in guess(*asked(97, 61, 21, 3, batch=33), find_gpu("v100")).likely


def test_no_more_descriptors_are_read_than_requested():
    class Many(FakeCudnn):
        def cudnnBackendGetAttribute(self, descriptor, name, type, room, count, values):
            count._obj.value = 50
            return 0

    assert len(Desk(Many()).descriptors(1, Attribute.HEURISTIC_RESULTS, Kind.CONFIGURATION, 4)) == 4
