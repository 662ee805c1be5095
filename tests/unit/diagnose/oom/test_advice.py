"""Each advice rule detects its cause, estimates the saving, and reports nothing without evidence."""

from dataclasses import replace

import pytest

from legroom.diagnose.oom import evidence
from legroom.memory.annotations import (
    BroadcastTensors,
    ForwardProgress,
    FoundSetting,
    HandledError,
    LiveOptimizer,
    ModelCall,
    ProgramState,
)
from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Holder
from legroom.observe.source.batch_argument import TASK_RANK
from legroom.observe.source.batch_setting import SIZE
from legroom.units import MiB

ACTIVATION, GRADIENT, INPUT = Category.ACTIVATION, Category.GRADIENT, Category.INPUT
PARAMETER, STATE = Category.PARAMETER, Category.OPTIMIZER_STATE
RESULT, TEMPORARY = Category.RESULT, Category.TEMPORARY


@pytest.fixture
def training(make_run):
    """A model of 50 MiB in the forward pass of its second step, with 800 MiB of activations."""
    run = make_run(arguments=["--batch-size", "256"])
    run.alloc(50, PARAMETER)
    run.alloc(100, STATE)
    run.end_step()
    run.alloc(10, INPUT)
    run.alloc(500, ACTIVATION, module="encoder.layers.0")
    run.alloc(300, ACTIVATION, module="encoder.layers.1")
    return run


def test_activations_suggest_a_smaller_batch(training):
    training.oom(100)
    finding = training.advice()["LG603"]
    assert "`--batch-size 128` instead of `--batch-size 256`" in finding.fix
    assert finding.saves >= 60 * MiB


def test_batch_size_in_the_backward_pass_follows_from_scaling_bytes(training):
    training.phase = Phase.BACKWARD
    training.alloc(50, GRADIENT)
    training.oom(100)
    # 800 + 10 + 2 × 100 MiB scale with the batch; 1000 − 200 − 20 MiB are available for them, with a margin of 10%
    assert training.advice()["LG603"].evidence["fraction"] == pytest.approx(780 / 1010 * 0.9, abs=0.001)


def test_first_step_reserves_gradients_and_optimizer_state(make_run):
    run = make_run()
    run.alloc(100, PARAMETER)
    run.phase = Phase.BACKWARD
    run.alloc(850, ACTIVATION)
    run.oom(100)
    assert run.advice()["LG603"].evidence["fixed_bytes"] == 400 * MiB


def test_unknown_batch_argument_suggests_a_fraction(make_run):
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    assert "at most half the current batch size" in run.advice()["LG603"].fix


def test_no_batch_advice_if_fixed_memory_fills_the_device(make_run):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.alloc(300, STATE)
    run.alloc(390, ACTIVATION)
    run.oom(100)
    assert "LG603" not in run.advice()


def test_activations_suggest_autocast_and_checkpointing(training):
    training.oom(100)
    advice = training.advice()
    assert advice["LG401"].saves == pytest.approx(800 * MiB * 0.4, rel=0.01)
    assert advice["LG604"].saves == pytest.approx(800 * MiB * 0.6, rel=0.01)
    assert "wrap the parts of `encoder.layers`" in advice["LG604"].fix


def test_many_activations_suggest_spilling(make_run):
    run = make_run()
    for _ in range(16):
        run.alloc(50, ACTIVATION)
    run.oom(300)
    advice = run.advice()
    assert list(advice)[-1] == "LG613"  # the slowest option comes last
    assert advice["LG613"].saves == 650 * MiB
    assert "legroom run --spill" in advice["LG613"].fix


def test_single_large_activation_does_not_suggest_spilling(make_run):
    run = make_run()
    run.alloc(800, ACTIVATION)
    run.oom(300)
    assert "LG613" not in run.advice()


@pytest.mark.parametrize(("request_size", "may_not_suffice"), [(100, False), (700, True)])
def test_a_change_that_may_free_too_little_is_marked(training, request_size, may_not_suffice):
    training.oom(request_size)
    advice = training.advice()
    assert ("may_not_suffice" in advice["LG401"].evidence) is may_not_suffice
    assert "may_not_suffice" not in advice["LG603"].evidence


def test_options_are_ordered_by_effort(training):
    training.oom(100)
    assert list(training.advice()) == ["LG603", "LG401", "LG604"]


def test_operation_larger_than_the_device_comes_first(training):
    training.oom(2000, module="")
    codes = list(training.advice())
    assert codes[0] == "LG601"


def test_a_layer_larger_than_the_device_needs_a_smaller_batch(training):
    training.oom(2000)
    codes = list(training.advice())
    assert codes[0] == "LG603"
    assert "LG601" in codes


def test_weights_that_do_not_fit_are_reported(make_run):
    run = make_run()
    run.phase = Phase.OTHER
    for _ in range(9):
        run.alloc(100, PARAMETER)
    run.oom(200)
    assert list(run.advice()) == ["LG602"]


def test_first_weights_that_do_not_fit_are_the_only_finding(make_run):
    run = make_run()
    run.phase = Phase.OTHER
    run.oom(900)
    advice = run.advice()
    assert list(advice) == ["LG602"]
    assert "With 0 B of weights on the device, an allocation of 900.0 MiB failed" in advice["LG602"].message


def test_weights_are_not_blamed_for_a_batch_that_does_not_fit(make_run):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.phase = Phase.OTHER
    run.alloc(200, INPUT)
    run.oom(600, op="aten._to_copy")
    add_state(run, batch_size=64)
    add_optimizer(run)
    add_setting(run, "--batch-size", 64)
    assert next(iter(run.advice())) == "LG603"
    run = make_run()
    run.alloc(900, PARAMETER)
    run.end_step()
    run.phase = Phase.OTHER
    run.oom(200)
    assert "LG602" not in run.advice()


def test_growing_memory_is_the_first_finding(make_run):
    run = make_run()
    run.alloc(50, PARAMETER)
    for _ in range(8):
        run.alloc(100, ACTIVATION, line=12)
        run.end_step()
    run.oom(200)
    finding = next(iter(run.advice().values()))
    assert (finding.code, finding.line, finding.saves) == ("LG101", 12, 700 * MiB)


def test_container_that_retains_a_growing_graph_is_named(make_run):
    run = make_run()
    for _ in range(8):
        run.alloc(100, ACTIVATION, line=12)
        run.end_step()
    run.oom(300)
    run.holder("losses (list, 8 items)", 800)
    run.holder("everything (dict, 3 items)", 900)
    assert run.advice()["LG101"].fix.startswith(
        "`losses` (list, 8 items) retains the autograd graph of every step"
    )


def test_activations_of_an_earlier_step_are_reported(training):
    training.end_step()
    training.oom(100)
    assert training.advice()["LG104"].saves == 800 * MiB


def test_activations_of_this_step_are_not_reported(training):
    training.oom(100)
    assert "LG104" not in training.advice()


def test_evaluation_without_no_grad_is_reported(training):
    for _ in range(3):
        training.alloc(5, INPUT, line=40)
        training.alloc(5, INPUT, line=40)  # the labels
        training.alloc(20, ACTIVATION)
    training.oom(200)
    finding = training.advice()["LG201"]
    assert "torch.no_grad()" in finding.fix
    assert finding.evidence == {"batches_without_backward": 3}
    assert finding.line == 40  # the line of the loop, not of the model


def test_batches_with_backward_passes_are_training(training):
    for _ in range(3):
        training.alloc(5, INPUT, line=40)
        training.phase = Phase.BACKWARD
        training.alloc(1, GRADIENT)
        training.phase = Phase.FORWARD
    training.oom(200)
    assert "LG201" not in training.advice()


def test_batch_of_a_loader_is_not_a_dataset(make_run):
    run = make_run(capacity=1000)
    run.alloc(600, INPUT, line=3)
    run.alloc(300, TEMPORARY)
    run.oom(200)
    elements = 600 * MiB // 4
    add_state(run, gradients=False, training=False, batch_size=64, inputs=((64, elements // 64),) * 2)
    add_setting(run, "--test-batch-size", 64, rank=6)
    advice = run.advice()
    assert "LG609" not in advice
    assert next(iter(advice)) == "LG603"


def test_samples_of_different_lengths_are_named(make_run):
    run = make_run(arguments=["--batch-size", "64"])
    run.end_step()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    add_state(run, batch_size=12, inputs=((12, 40), (12, 200)))
    add_optimizer(run)
    fix = run.advice()["LG603"].fix
    assert "the input has the shape (12, 200), and the first input had the shape (12, 40)" in fix


def test_dataset_on_the_device_is_reported(make_run):
    run = make_run()
    run.alloc(600, INPUT, line=3)
    run.alloc(300, ACTIVATION)
    run.oom(200)
    advice = run.advice()
    assert advice["LG609"].line == 3
    assert (
        advice["LG603"].evidence["scaling_bytes"] == 500 * MiB
    )  # the dataset does not scale with the batch size


def test_result_retained_through_the_backward_pass_is_reported(training):
    training.alloc(100, TEMPORARY, line=33)
    training.phase = Phase.BACKWARD
    training.oom(100)
    training.holder("logits (Tensor)", 105)
    finding = training.advice()["LG102"]
    assert (finding.line, finding.saves) == (33, 100 * MiB)
    assert "`del logits`" in finding.fix


def test_output_of_an_earlier_step_is_named_even_if_small(training):
    training.step -= 1
    training.alloc(20, RESULT, line=33)
    training.step += 1
    training.oom(100)
    training.holder("out (tuple, 2 items)", 21)
    advice = training.advice()
    assert (
        advice["LG102"].message
        == "A result created in an earlier step on this line is still referenced by `out`: 20.0 MiB."
    )
    assert "`del out`" in advice["LG102"].fix
    assert "LG105" not in advice  # a tuple does not accumulate results


def test_result_that_stays_in_a_variable_after_a_loop_without_a_model_is_named(make_run):
    run = make_run()
    run.phase = Phase.OTHER
    run.alloc(400, TEMPORARY, line=14)
    run.oom(700)
    run.holder("intermediate (Tensor)", 400)
    finding = run.advice()["LG102"]
    assert (finding.line, finding.saves) == (14, 400 * MiB)
    assert "`del intermediate`" in finding.fix


def test_result_of_the_current_pass_is_not_reported(training):
    training.alloc(100, TEMPORARY, line=33)
    training.oom(100)
    assert "LG102" not in training.advice()


def test_gradients_during_the_forward_pass_are_reported(training):
    training.alloc(60, GRADIENT)
    training.oom(100)
    assert training.advice()["LG103"].saves == 60 * MiB


def test_gradients_during_the_backward_pass_are_not_reported(training):
    training.alloc(50, GRADIENT)
    training.phase = Phase.BACKWARD
    training.oom(100)
    assert "LG103" not in training.advice()


def test_optimizer_state_of_the_first_step_is_reported(make_run):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.alloc(300, GRADIENT)
    run.phase = Phase.OPTIMIZER
    run.alloc(300, STATE)
    run.oom(200)
    assert run.advice()["LG605"].saves == 300 * MiB


def test_optimizer_temporaries_are_reported(make_run):
    run = make_run()
    run.alloc(200, PARAMETER)
    run.alloc(200, GRADIENT)
    run.alloc(400, STATE)
    run.end_step()
    run.phase = Phase.OPTIMIZER
    run.alloc(150, TEMPORARY)
    run.oom(100)
    advice = run.advice()
    assert advice["LG606"].saves == 250 * MiB
    assert "LG605" not in advice


def test_fragmentation_is_reported(make_run):
    run = make_run()
    run.alloc(500, ACTIVATION)
    run.oom(300, fragmented=450)
    assert run.advice()["LG607"].saves == 450 * MiB


def test_fragmentation_is_not_reported_with_expandable_segments(make_run):
    run = make_run()
    run.allocator = "expandable_segments:True"
    run.alloc(500, ACTIVATION)
    run.oom(300, fragmented=450)
    assert "LG607" not in run.advice()


@pytest.mark.parametrize(("kept", "reported"), [(3, True), (1, False)])
def test_copies_of_the_weights_in_a_list_are_reported(make_run, kept, reported):
    """One list may contain the models that the program trains."""
    run = make_run(capacity=1000)
    run.alloc(150, PARAMETER)
    for _ in range(3):
        run.end_step()
        if kept == 3:
            run.alloc(150, PARAMETER)
    if kept == 1:
        run.alloc(150, PARAMETER)
        run.end_step()
    run.end_step()
    run.oom(400, fragmented=200)
    add_optimizer(run, "SGD", trainable=150, state=0)
    run.holder(f"snapshots (list, {kept} items)", 150 * kept)
    assert ("LG105" in run.advice()) == reported


@pytest.mark.parametrize(("fragmented", "is_reported"), [(50, False), (210, False), (230, True)])
def test_fragments_are_reported_if_expandable_segments_make_the_request_fit(
    make_run, fragmented, is_reported
):
    """Expandable segments grow by 20 MiB."""
    run = make_run()
    run.alloc(1000 - fragmented - 100, ACTIVATION)
    run.oom(300, fragmented=fragmented)
    assert ("LG607" in run.advice()) == is_reported


def test_other_processes_are_reported(make_run):
    run = make_run(capacity=8000, other=3000)
    run.alloc(4900, ACTIVATION)
    run.oom(300)
    assert "LG608" in run.advice()


def test_cuda_context_is_not_another_process(make_run):
    run = make_run(capacity=8000, other=500)
    run.alloc(7400, ACTIVATION)
    run.oom(300)
    assert "LG608" not in run.advice()


def test_memory_fraction_is_reported(make_run):
    run = make_run()
    run.alloc(450, ACTIVATION)
    run.oom(100, limit=500)
    assert run.advice()["LG610"].saves == 500 * MiB


def test_every_finding_has_a_message_and_a_fix(training):
    training.alloc(50, GRADIENT)
    training.oom(100)
    for finding in training.advice().values():
        assert finding.message.endswith(".")
        assert finding.fix.endswith((".", "`."))
        assert finding.saves > 0


def test_container_of_results_is_reported(make_run):
    run = make_run()
    run.phase = Phase.OTHER
    run.alloc(100, PARAMETER)
    for _ in range(8):
        run.alloc(100, TEMPORARY, line=50)
    run.oom(200)
    run.holder("predictions (list, 8 items)", 800)
    finding = run.advice()["LG105"]
    assert finding.message == "`predictions` (list, 8 items) retains 800.0 MiB on the device."
    assert "in `predictions`, or clear the variable after use." in finding.fix


def test_container_of_views_is_reported_with_a_copy_as_the_fix(make_run):
    run = make_run()
    run.phase = Phase.OTHER
    run.alloc(100, PARAMETER)
    for _ in range(8):
        run.alloc(100, TEMPORARY, line=50)
    run.oom(200)
    run.holder("pool (list, 8 items)", 800)
    run.events[-1] = run.events[-1]._replace(unused_bytes=700 * MiB)
    finding = run.advice()["LG105"]
    assert (finding.saves, ".clone()" in finding.fix) == (700 * MiB, True)


def test_container_is_not_reported_for_the_memory_that_the_loss_retains_as_well(training):
    training.phase = Phase.BACKWARD
    training.oom(100)
    training.holder("hidden_states (list, 3 items)", 400, shared=390)
    assert "LG105" not in training.advice()


def test_saving_of_a_container_excludes_the_memory_that_other_variables_retain(training):
    training.end_step()
    training.oom(100)
    training.holder("history (list, 8 items)", 400, shared=50)
    assert training.advice()["LG105"].saves == 350 * MiB


def test_container_of_models_is_not_reported(make_run):
    run = make_run()
    run.phase = Phase.OTHER
    run.alloc(800, PARAMETER)
    run.alloc(100, TEMPORARY)
    run.oom(200)
    run.holder("models (list, 2 items)", 800)
    assert "LG105" not in run.advice()


def test_autocast_is_not_suggested_if_already_used(make_run):
    run = make_run()
    for layer in range(3):
        run.alloc(50, ACTIVATION, module=f"layer{layer}", op="aten._to_copy")
        run.alloc(250, ACTIVATION, module=f"layer{layer}")
    run.oom(200)
    assert "LG401" not in run.advice()


def test_inference_suggests_a_smaller_batch(make_run):
    run = make_run(arguments=["--batch-size", "64"])
    run.alloc(100, PARAMETER)
    run.alloc(20, INPUT)
    run.alloc(800, TEMPORARY)
    run.oom(200)
    assert "`--batch-size 32`" in run.advice()["LG603"].fix


def test_container_with_old_activations_is_reported_once_by_name(training):
    training.end_step()
    training.oom(100)
    training.holder("self.history (dict, 2 items)", 800)
    advice = training.advice()
    assert "`self.history` (dict, 2 items)" in advice["LG105"].message
    assert "LG104" not in advice


def add_leak(run, **figures):
    """Add a leak of `self.history` as the detector reports it."""
    kept = {
        "kind": "tensor",
        "how": "container",
        "name": 'self.history["loss"]',
        "described": "list, 5 items",
    }
    place = {
        "file": "/project/train.py",
        "line": 12,
        "function": "fit",
        "nodes_per_step": 0,
        "storages_per_step": 1,
    }
    sizes = {"bytes_per_step": MiB, "step": 1, "steps": 4}
    run.events.append(DetectedLeak(**{**kept, **place, **sizes, **figures}))


def test_size_of_a_leak_is_what_its_holder_retains(training):
    training.end_step()
    add_leak(training)
    training.oom(100)
    training.holder("trainer.history (dict, 2 items)", 700)
    training.holder("everything (tuple, 2 items)", 750)
    report = training.report()
    assert report.oom is not None
    assert [finding.code for finding in report.oom.advice][:1] == ["LG105"]
    assert sum(finding.code == "LG105" for finding in report.oom.advice) == 1
    assert report.oom.advice[0].saves == 699 * MiB


def test_a_leak_does_not_save_more_than_is_allocated(training):
    training.end_step()
    add_leak(training, bytes_per_step=500 * MiB)
    training.oom(100)
    finding = training.advice()["LG105"]
    assert finding.bytes == training.allocated < 4 * 500 * MiB


def test_leak_in_host_memory_is_not_a_cause(training):
    add_leak(training, on_host=True)
    training.oom(100)
    assert "LG105" not in training.advice()


def test_growing_memory_comes_before_a_slightly_larger_saving(make_run):
    run = make_run()
    run.alloc(50, PARAMETER)
    run.alloc(300, GRADIENT)
    run.end_step()
    for _ in range(4):
        run.alloc(5, INPUT)
        run.alloc(60, ACTIVATION)
    run.oom(400)
    advice = run.advice()
    assert advice["LG201"].saves < advice["LG103"].saves
    assert list(advice)[:2] == ["LG201", "LG103"]
    assert "during evaluation" in advice["LG103"].message


def test_optimizer_state_is_not_a_temporary(make_run):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.alloc(300, GRADIENT)
    run.phase = Phase.OPTIMIZER
    run.oom(300, op="aten.zeros_like")
    assert "LG605" in run.advice()
    assert "LG606" not in run.advice()


@pytest.mark.parametrize(("step", "first"), [(0, "LG603"), (1, "LG607")])
def test_fragmentation_is_not_first_in_the_first_forward_pass(make_run, step, first):
    run = make_run()
    if step:
        run.end_step()
    run.alloc(500, ACTIVATION)
    run.oom(300, fragmented=450)
    assert next(iter(run.advice())) == first


def test_heaviest_block_is_the_module_list(make_run):
    run = make_run()
    run.alloc(450, ACTIVATION, module="blocks.0.norm")
    run.alloc(450, ACTIVATION, module="blocks.0.act")
    run.oom(200)
    assert run.advice()["LG604"].evidence["module"] == "blocks"


def test_unfinished_first_forward_pass_suggests_estimate(make_run):
    run = make_run(capacity=4000, arguments=["--batch-size", "64"])
    run.alloc(3900, ACTIVATION)
    run.oom(200)
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory.")
    commands = [command for command, _ in run.report().next_commands]
    assert commands[0].endswith("train.py --batch-size 32")
    assert commands[1] == "legroom estimate --gpu 1000MiB train.py --batch-size 64"


def test_progress_of_the_forward_pass_scales_the_batch_size(make_run):
    run = make_run(arguments=["--batch-size", "256"])
    run.alloc(900, ACTIVATION)
    run.oom(100)
    run.events.append(ForwardProgress(0.5, 0.25))
    finding = run.advice()["LG603"]
    assert finding.evidence["fraction"] == pytest.approx(0.98 * 0.85 * 0.25, abs=0.001)
    assert "`--batch-size 48`" in finding.fix
    assert "about 25% of the forward pass" in finding.fix


@pytest.mark.parametrize("fraction", [-0.5, 1.0, 2.0])
def test_invalid_progress_is_ignored(make_run, fraction):
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(100)
    run.events.append(ForwardProgress(0.5, fraction))
    assert run.advice()["LG603"].evidence["fraction"] == 0.5


# --- what the program was doing


def add_state(run, *, gradients=True, training=True, batch_size=None, samples=None, inputs=((), ())):
    run.events.append(ProgramState(0.5, gradients, training, batch_size, samples, *inputs))


def add_optimizer(run, name="Adam", update="foreach", *, fused=True, trainable=50, state=100, temporary=0):
    sizes = trainable * MiB, state * MiB, temporary * MiB
    run.events.append(LiveOptimizer(0.5, name, update, fused, *sizes))


def add_setting(run, name, value, *, rank=0, given=False, variable="", file="", line=0):
    """Add a setting of the script. `name` is an option, an environment variable, or a name in a file."""
    separator = " = " if file else "=" if variable else " "
    arguments = None if file or variable else (name, SIZE)
    text = f"{name}{separator}{SIZE}"
    run.events.append(FoundSetting(0.5, name, value, rank, text, arguments, given, variable, file, line))


def next_command(run):
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory.")
    return run.report().next_commands[0]


@pytest.fixture
def large_batch(make_run):
    """A failure in the first forward pass of a script without a batch size argument."""
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    add_state(run, batch_size=64)
    return run


def test_option_that_has_its_default_is_added(large_batch):
    add_setting(large_batch, "--batch-size", 64)
    assert large_batch.advice()["LG603"].fix.startswith("Add `--batch-size 32` (the default is 64).")
    assert next_command(large_batch) == (
        "legroom run --gpu 1000MiB train.py --batch-size 32",
        "with a smaller batch size",
    )


def test_environment_variable_of_the_batch_size_is_set(large_batch):
    add_setting(large_batch, "BATCH", 64, variable="BATCH")
    assert "Set the environment variable `BATCH=32` (currently 64)." in large_batch.advice()["LG603"].fix
    assert next_command(large_batch)[0] == "BATCH=32 legroom run --gpu 1000MiB train.py"


def test_batch_size_in_a_file_is_edited(large_batch):
    add_setting(large_batch, "BATCH_SIZE", 64, rank=1, file="/project/train.py", line=3)
    finding = large_batch.advice()["LG603"]
    assert "Set `BATCH_SIZE = 32` in train.py, line 3 (currently 64)." in finding.fix
    assert finding.evidence["edits"] == [
        {"file": "/project/train.py", "line": 3, "old": "BATCH_SIZE = 64", "new": "BATCH_SIZE = 32"}
    ]
    assert next_command(large_batch)[1] == "after the change in train.py:3"


def test_two_equally_likely_numbers_in_files_are_not_edited(large_batch):
    for line in (3, 9):
        add_setting(large_batch, "batch_size", 64, rank=1, file="/project/train.py", line=line)
    finding = large_batch.advice()["LG603"]
    assert finding.fix.startswith("Use at most half the current batch size.")
    assert finding.evidence["argument"] is None


def test_setting_with_another_value_than_the_loader_is_not_used(large_batch):
    add_setting(large_batch, "--bs", 48)
    assert "--bs" not in large_batch.advice()["LG603"].fix


@pytest.mark.parametrize(
    ("first", "last", "is_named"),
    [
        ((64, 100), (100, 100), False),
        ((64, 100), (128, 100), True),
        ((64, 100), (16, 100), True),
        ((35, 64), (35, 64), True),
        ((1203, 16), (1187, 16), True),  # batches of graphs differ in the number of nodes
        ((64, 100), (1, 1), True),
    ],
)
def test_setting_is_not_named_if_the_model_generates_another_number_of_samples(
    make_run, first, last, is_named
):
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    add_state(run, batch_size=64, inputs=(first, last))
    add_setting(run, "--batch-size", 64)
    fix = run.advice()["LG603"].fix
    assert ("--batch-size" in fix) == is_named
    assert (f"shape {last}" in fix) != is_named


def test_setting_for_all_gpus_is_a_multiple_of_the_loaders_size(large_batch):
    add_setting(large_batch, "--batch-size", 256)
    assert "`--batch-size 128`" in large_batch.advice()["LG603"].fix


@pytest.fixture
def validation(make_run):
    """A validation without gradients, after two training steps."""
    run = make_run()
    run.alloc(50, PARAMETER)
    for _ in range(2):
        run.phase = Phase.BACKWARD
        gradient = run.alloc(50, GRADIENT)
        run.end_step()
        run.free(gradient)
        run.phase = Phase.FORWARD
    for _ in range(4):
        run.alloc(10, INPUT, line=40)
        run.alloc(200, TEMPORARY)
    run.oom(200)
    add_state(run, gradients=False, training=False, batch_size=512)
    add_optimizer(run)
    return run


def test_out_of_memory_in_validation_suggests_the_batch_size_of_the_validation(validation):
    add_setting(validation, "--batch-size", 32)
    add_setting(validation, "--test-batch-size", 512, rank=6)
    finding = next(iter(validation.advice().values()))
    assert finding.fix.startswith("Add `--test-batch-size 256` (the default is 512).")
    assert "Accumulate gradients" not in finding.fix
    assert "activations" not in finding.message


def test_evaluation_under_no_grad_is_not_wrapped_again(validation):
    assert "LG201" not in validation.advice()


def test_evaluation_that_is_over_is_not_wrapped_in_no_grad(validation):
    """The failure is in the first forward pass of the training. The batches before it saved no tensors."""
    validation.events = [each for each in validation.events if not isinstance(each, ProgramState)]
    add_state(validation)
    assert "LG201" not in validation.advice()


@pytest.mark.parametrize(("evaluated", "size"), [(False, 64), (True, 40)])
def test_evaluation_before_the_training_shows_the_rest_of_the_forward_pass(make_run, evaluated, size):
    run = make_run(arguments=["--batch-size", "128"])
    if evaluated:
        run.free(run.alloc(100, TEMPORARY, module="encoder"))
        run.free(run.alloc(300, RESULT, module="head"))
    run.alloc(900, ACTIVATION, module="encoder")
    run.oom(200)
    add_state(run)
    assert f"--batch-size {size}`" in run.advice()["LG603"].fix


def test_two_inputs_of_the_same_size_are_one_batch(training):
    for _ in range(2):
        training.alloc(5, INPUT, line=40)
        training.alloc(5, INPUT, line=40)
        training.alloc(20, ACTIVATION)
    training.oom(200)
    assert "LG201" not in training.advice()


def test_graph_of_the_other_model_of_a_gan_is_needed(training):
    training.end_step()
    training.alloc(50, RESULT, line=33)
    training.oom(100)
    add_optimizer(training)
    add_optimizer(training)
    training.holder("fake (Tensor)", 50)
    assert not {"LG102", "LG104"} & set(training.advice())


def test_graph_of_the_last_but_one_step_of_a_gan_is_retained(training):
    training.end_step()
    training.end_step()
    training.oom(100)
    add_optimizer(training)
    add_optimizer(training)
    assert "LG104" in training.advice()


def test_accumulated_gradients_are_not_set_to_zero(training):
    training.phase = Phase.BACKWARD
    training.alloc(60, GRADIENT)
    training.phase = Phase.FORWARD
    training.alloc(5, INPUT)
    training.oom(100)
    assert "LG103" not in training.advice()


@pytest.fixture
def optimizer_step(make_run):
    """An optimizer step after the first, whose temporary tensors do not fit."""
    run = make_run()
    run.alloc(200, PARAMETER)
    run.alloc(200, GRADIENT)
    run.alloc(400, STATE)
    run.end_step()
    run.phase = Phase.OPTIMIZER
    run.alloc(150, TEMPORARY)
    run.oom(100)
    return run


@pytest.mark.parametrize("name", ["RMSprop", "Adadelta", "Adamax"])
def test_fused_is_not_suggested_to_an_optimizer_without_it(optimizer_step, name):
    add_optimizer(optimizer_step, name, fused=False)
    finding = optimizer_step.advice()["LG606"]
    assert finding.fix == f"Pass `foreach=False` to `{name}` (updates one parameter at a time, slower)."


def test_fused_is_suggested_to_adam(optimizer_step):
    add_optimizer(optimizer_step, "Adam")
    assert optimizer_step.advice()["LG606"].fix.startswith("Pass `fused=True` to `Adam`")


@pytest.mark.parametrize(("optimizers", "first"), [(1, "LG606"), (2, "LG603")])
def test_temporaries_do_not_come_first_if_another_optimizer_follows(make_run, optimizers, first):
    run = make_run()
    run.alloc(50, PARAMETER)
    run.alloc(50, GRADIENT)
    run.alloc(100, STATE)
    freed = run.alloc(300, ACTIVATION)
    run.alloc(450, ACTIVATION)
    run.free(freed)
    run.phase = Phase.OPTIMIZER
    run.alloc(350, TEMPORARY)
    run.oom(100)
    for _ in range(optimizers):
        add_optimizer(run, trainable=50, state=100)
    assert next(iter(run.advice())) == first


@pytest.mark.parametrize("update", ["fused", "single"])
def test_optimizer_that_does_not_update_at_once_keeps_its_options(optimizer_step, update):
    add_optimizer(optimizer_step, "Adam", update)
    assert "LG606" not in optimizer_step.advice()


def test_state_that_no_batch_size_leaves_room_for_comes_first(make_run):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.alloc(600, ACTIVATION)
    run.oom(200)
    add_optimizer(run, "AdamW", trainable=300, state=600)
    finding = next(iter(run.advice().values()))
    assert finding.code == "LG605"
    assert "the optimizer state of `AdamW` need 1.17 GiB" in finding.message


def test_sgd_leaves_room_for_a_smaller_batch(make_run):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.alloc(600, ACTIVATION)
    run.oom(200)
    add_optimizer(run, "SGD", trainable=300, state=0)
    assert next(iter(run.advice())) == "LG603"
    assert run.advice()["LG603"].evidence["fixed_bytes"] == 600 * MiB


def test_smaller_batch_mentions_the_temporaries_of_the_optimizer(make_run):
    run = make_run()
    run.alloc(200, PARAMETER)
    run.alloc(700, ACTIVATION)
    run.oom(200)
    add_optimizer(run, "RMSprop", fused=False, trainable=200, state=400, temporary=250)
    assert "Also pass `foreach=False` to `RMSprop`" in run.advice()["LG603"].fix


def test_bucket_that_no_variable_refers_to_is_not_deleted(training):
    training.step -= 1
    training.alloc(50, TEMPORARY, line=5)
    training.step += 1
    training.oom(100)
    training.holder("model (DistributedDataParallel)", 200)
    assert "LG102" not in training.advice()


def test_fragments_do_not_come_first_if_the_step_needs_more_than_the_device(make_run):
    run = make_run(arguments=["--batch-size", "64"])
    run.alloc(100, PARAMETER)
    run.alloc(700, ACTIVATION)
    run.phase = Phase.BACKWARD
    run.oom(250, fragmented=150)
    add_optimizer(run, trainable=100, state=200)
    assert next(iter(run.advice())) == "LG603"


def test_variable_that_frees_too_little_does_not_come_first(training):
    """The forward pass is half complete, so the whole step needs much more than the failed request."""
    training.step -= 1
    training.alloc(60, RESULT, line=33)
    training.step += 1
    training.oom(90)
    training.holder("out (Tensor)", 60)
    training.events.append(ForwardProgress(0.5, 0.5))
    advice = list(training.advice())
    assert advice[0] == "LG603"
    assert "LG102" in advice


def test_spilling_is_the_next_command_if_the_batch_size_has_no_setting(make_run):
    run = make_run()
    for _ in range(18):
        run.alloc(50, ACTIVATION)
    run.oom(150)
    assert next_command(run) == (
        "legroom run --gpu 1000MiB --spill train.py",
        "with saved activations in host memory",
    )


def test_batch_that_is_larger_than_the_dataset_is_reduced_below_the_dataset(make_run):
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    add_state(run, batch_size=1000, samples=200)
    add_setting(run, "--batch-size", 1000)
    assert "`--batch-size 96`" in run.advice()["LG603"].fix


def test_larger_batch_size_of_the_evaluation_is_reduced_as_well(large_batch):
    add_setting(large_batch, "--batch-size", 64)
    add_setting(large_batch, "--test-batch-size", 1000, rank=6)
    finding = large_batch.advice()["LG603"]
    assert finding.fix.startswith("Add `--batch-size 32` (the default is 64) and `--test-batch-size 32`.")
    assert finding.evidence["arguments"] == ["--test-batch-size", "32", "--batch-size", "32"]


@pytest.mark.parametrize("size", [32, 64])
def test_batch_size_of_the_evaluation_stays_if_it_may_fit(large_batch, size):
    add_setting(large_batch, "--test-batch-size", size, rank=6)
    add_setting(large_batch, "--batch-size", 64)
    fix = large_batch.advice()["LG603"].fix
    assert fix.startswith("Add `--batch-size 32` (the default is 64). ")


def test_both_batch_sizes_in_files_are_edited(large_batch):
    add_setting(large_batch, "batch_size", 64, rank=1, file="/project/train.py", line=3)
    add_setting(large_batch, "test_batch", 96, rank=7, file="/project/data.py", line=9)
    finding = large_batch.advice()["LG603"]
    assert finding.fix.startswith(
        "Set `batch_size = 32` in train.py, line 3 (currently 64) and `test_batch = 32` in data.py, line 9."
    )
    assert [each["line"] for each in finding.evidence["edits"]] == [3, 9]
    assert next_command(large_batch)[1] == "after the changes in train.py:3 and data.py:9"


@pytest.mark.parametrize("batch_size", [False, True])
def test_number_of_tasks_is_reduced_if_there_is_no_batch_size(make_run, batch_size):
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    add_call(run, False, shape=(5, 3))
    add_setting(run, "--task_num", 32, rank=TASK_RANK)
    if batch_size:
        add_setting(run, "--batch-size", 64)
    assert ("--task_num" in run.advice()["LG603"].fix) != batch_size


def test_batch_size_of_a_dataset_that_returns_batches(make_run):
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    add_call(run, False, shape=(64, 3), batch_size=1, samples=1)
    add_setting(run, "--batch-size", 64)
    assert "(the default is 64)" in run.advice()["LG603"].fix


@pytest.mark.parametrize(("shape", "is_named"), [((64, 3), True), ((3, 64), False)])
def test_loop_size_must_be_the_first_dimension_of_the_input(make_run, shape, is_named):
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    add_call(run, False, shape=shape)
    add_setting(run, "CHUNK", 64, rank=4, file="/project/train.py", line=3)
    assert ("train.py, line 3" in run.advice()["LG603"].fix) == is_named


def test_proven_setting_comes_before_the_others(large_batch):
    add_setting(large_batch, "batch_size", 64, rank=1, file="/project/model.py", line=3)
    add_setting(large_batch, "n", 64, rank=-1, file="/project/train.py", line=9)
    assert large_batch.advice()["LG603"].fix.startswith("Set `n = 32` in train.py, line 9")


GAN = """
g = optim.Adam(G.parameters()); d = optim.Adam(D.parameters())
for x in loader:
    real = D(x)
    fake = D(G(noise))
    (real - fake).mean().backward()
    d.step()
    D(G(noise)).mean().backward()
    g.step()
"""


@pytest.mark.parametrize(("line", "done"), [(4, 0.5 / 3), (5, 1.5 / 3), (8, 0.5 / 2)])
def test_progress_is_that_of_all_forward_passes_before_the_backward_pass(make_run, tmp_path, line, done):
    file = tmp_path / "gan.py"
    file.write_text(GAN)
    run = make_run(arguments=["--batch-size", "256"])
    run.alloc(900, ACTIVATION)
    run.oom(100)
    run.events.append(ForwardProgress(0.5, 0.5))
    add_optimizer(run)
    add_optimizer(run)
    run.events.append(ProgramState(0.5, True, True, 256, 256, (), (), False, 1, str(file), line, "<module>"))
    fix = run.advice()["LG603"].fix
    assert f"about {done:.0%} of the forward pass" in fix


def test_fragments_do_not_come_first_in_an_evaluation(make_run):
    run = make_run()
    run.alloc(50, PARAMETER)
    run.end_step()
    run.alloc(10, INPUT)
    run.alloc(500, TEMPORARY)
    run.oom(300, fragmented=400)
    add_state(run, gradients=False, training=False)
    assert list(run.advice()) == ["LG603", "LG607"]


def test_container_that_the_iteration_still_reads_is_not_a_mistake(make_run, tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("".join(f"# {number}\n" for number in range(29)) + "f(states)\nprint(states)\n")
    monkeypatch.setattr("example_runs.TRAIN", str(script))
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    run.holder("states (list, 8 items)", 800)
    assert "LG105" not in run.advice()


@pytest.mark.parametrize(("op", "suggested"), [("aten.native_batch_norm", False), ("aten.layer_norm", True)])
def test_batch_of_one_sample_is_not_suggested_with_batch_normalization(make_run, op, suggested):
    run = make_run(arguments=["--batch-size", "3"])
    run.alloc(900, ACTIVATION, op=op)
    run.oom(200)
    assert ("LG603" in run.advice()) == suggested


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script that wraps its model in line 5 and assigns its output in line 10. The holders are in line 30."""
    lines = [f"# {number}" for number in range(1, 41)]
    lines[4], lines[9] = "model = DistributedDataParallel(model)", "output = model(x)"
    path = tmp_path / "train.py"
    path.write_text("\n".join(lines))
    monkeypatch.setattr("example_runs.TRAIN", str(path))


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(("line", "named"), [(5, False), (10, True)])
def test_only_a_variable_that_the_line_assigns_is_deleted(make_run, line, named):
    """A bucket of DDP may have the size of an unrelated tensor."""
    run = make_run()
    run.alloc(50, RESULT, line=line)
    run.end_step()
    run.alloc(800, ACTIVATION)
    run.oom(200)
    run.holder("output (Tensor)", 50)
    assert ("LG102" in run.advice()) == named


@pytest.mark.parametrize(
    ("parameters", "fix"), [(300, "Use an optimizer with less state"), (600, "Freeze parameters")]
)
def test_optimizer_without_state_is_suggested_only_if_it_fits(make_run, parameters, fix):
    run = make_run()
    run.alloc(parameters, PARAMETER)
    run.alloc(300, ACTIVATION)
    run.oom(200)
    add_optimizer(run, "AdamW", trainable=parameters, state=2 * parameters)
    assert run.advice()["LG605"].fix.startswith(fix)


@pytest.mark.parametrize(("holder", "size"), [("model (Net)", 32), ("model (DataParallel)", 16)])
def test_gathered_outputs_of_replicas_leave_room_for_half_the_batch(make_run, holder, size):
    run = make_run(arguments=["--batch-size", "64"])
    run.alloc(900, ACTIVATION)
    run.oom(200)
    run.holder(holder, 10)
    assert f"`--batch-size {size}`" in run.advice()["LG603"].fix


@pytest.mark.parametrize(("has_gradient", "first"), [(True, "LG102"), (False, "LG603")])
def test_variable_is_enough_only_if_the_next_backward_operation_fits_too(make_run, has_gradient, first):
    run = make_run()
    run.alloc(300, RESULT, line=33)
    run.alloc(300, ACTIVATION)
    run.phase = Phase.BACKWARD
    if has_gradient:
        run.alloc(300, TEMPORARY)
    run.oom(300 if has_gradient else 450)
    run.holder("logits (Tensor)", 300)
    assert next(iter(run.advice())) == first


def test_evaluation_before_the_training_leaves_room_for_the_training(make_run):
    run = make_run()
    run.alloc(50, PARAMETER)
    run.alloc(900, TEMPORARY)
    run.oom(200)
    add_state(run, gradients=False, training=False)
    add_optimizer(run)
    add_setting(run, "--batch-size", 64)
    fix = run.advice()["LG603"].fix
    # 1000 − 100 − 200 MiB are available for the training; its forward pass needs at least 1100 MiB / 0.75
    assert "`--batch-size 24`" in fix
    assert "The training after this evaluation needs more memory" in fix


def test_smaller_batch_and_less_state_are_suggested_together(make_run):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.alloc(600, ACTIVATION)
    run.oom(200)
    add_optimizer(run, "AdamW", trainable=300, state=600)
    add_setting(run, "--batch-size", 64)
    finding = run.advice()["LG605"]
    assert finding.fix.endswith("Add `--batch-size 16` (the default is 64) as well.")
    command, comment = next_command(run)
    assert command.endswith("train.py --batch-size 16")
    assert "after changing the code" in comment


def test_temporaries_of_the_first_step_are_not_called_state(make_run):
    run = make_run(capacity=900)
    run.alloc(200, PARAMETER)
    run.alloc(200, GRADIENT)
    run.phase = Phase.OPTIMIZER
    run.alloc(400, STATE)
    run.oom(200, op="aten._foreach_sqrt")
    add_optimizer(run, "Adam", trainable=200, state=400, temporary=200)
    assert list(run.advice()) == ["LG606"]


@pytest.fixture
def one_graph(make_run, monkeypatch):
    """A failure of a model whose input was loaded once, without a loader or a batch size."""
    monkeypatch.setattr(evidence, "is_loaded_once", lambda frame: frame.line == 5)
    run = make_run()
    run.alloc(8, INPUT, line=5)
    for _ in range(18):
        run.alloc(50, ACTIVATION)
    run.oom(100)
    return run


def test_program_without_batches_is_advised_to_save_activations(one_graph):
    add_state(one_graph, inputs=((1024, 2048), (1024, 2048)))
    advice = one_graph.advice()
    assert list(advice) == ["LG401", "LG604", "LG613", "LG603"]
    assert advice["LG603"].message.startswith("The model processes the whole input at once")
    assert "batch size" not in advice["LG603"].fix
    assert next_command(one_graph)[0] == "legroom run --gpu 1000MiB --spill train.py"


@pytest.mark.parametrize(
    ("batch_size", "inputs"),
    [
        (64, ((1024, 2048), (1024, 2048))),  # a loader returns batches
        (None, ((128, 2048), (128, 2048))),  # the model processes a part of the input
        (None, ((1024, 2048), (512, 2048))),
    ],
)
def test_program_with_batches_is_advised_to_reduce_their_size(one_graph, batch_size, inputs):
    add_state(one_graph, batch_size=batch_size, inputs=inputs)
    advice = one_graph.advice()
    assert next(iter(advice)) == "LG603"
    assert "the current batch size" in advice["LG603"].fix


@pytest.mark.parametrize("gradients", [True, False])
def test_no_grad_is_suggested_only_if_gradients_are_enabled(make_run, gradients):
    run = make_run()
    run.alloc(900, ACTIVATION if gradients else TEMPORARY)
    run.oom(200)
    add_setting(run, "--batch-size", 64)
    add_state(run, gradients=gradients, training=False, inputs=((64, 7), (1000, 7)))
    finding = run.advice()["LG603"]
    assert "The input has the shape (1000, 7), which does not depend on the batch size." in finding.fix
    assert ("torch.no_grad()" in finding.fix) is gradients
    assert "scale with the batch size" not in finding.message
    assert next_command(run)[1] == "after changing the code"


def test_memory_that_scales_with_the_batch_size_does_not_include_the_failed_request(large_batch):
    finding = large_batch.advice()["LG603"]
    assert finding.message == "Activations, inputs and results (900.0 MiB) scale with the batch size."


# --- advice about optimizers


def add_optimizer_at(run, name, *, state, trainable, temporary=0, line=75):
    sizes = trainable * MiB, state * MiB, temporary * MiB
    run.events.append(LiveOptimizer(0.5, name, "foreach", True, *sizes, "/project/run.py", line))


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_no_saving_is_claimed_if_weights_and_gradients_fill_the_device(make_run, name):
    run = make_run()
    run.alloc(490, PARAMETER)
    run.alloc(400, ACTIVATION)
    run.oom(200)
    add_optimizer_at(run, name, trainable=490, state=0 if name == "SGD" else 980)
    finding = next(iter(run.advice().values()))
    assert (finding.code, finding.saves) == ("LG605", 0)
    assert finding.fix.startswith("Freeze parameters")
    assert "eights and gradients need 980.0 MiB of 1000.0 MiB" in finding.fix
    assert "optimizer with less state" not in finding.fix
    assert ("optimizer state" in finding.message) is (name == "Adam")


def test_optimizer_advice_points_at_the_constructor(make_run):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.alloc(100, ACTIVATION)
    run.oom(1000)
    add_optimizer_at(run, "AdamW", trainable=300, state=600)
    finding = run.advice()["LG605"]
    assert (finding.file, finding.line) == ("/project/run.py", 75)


@pytest.mark.parametrize(
    ("parameters", "activations", "option", "saves"),
    [
        (240, 100, "SGD with momentum stores one tensor per parameter", 240),
        (275, 200, "8-bit Adam stores a quarter", 412.5),
        (300, 250, "SGD without momentum stores none", 600),
    ],
)
def test_the_first_optimizer_with_less_state_fits(make_run, parameters, activations, option, saves):
    run = make_run(capacity=1000)
    run.alloc(parameters, PARAMETER)
    run.alloc(activations - 50, ACTIVATION)
    run.oom(50)
    add_optimizer_at(run, "AdamW", trainable=parameters, state=2 * parameters)
    finding = run.advice()["LG605"]
    assert finding.fix.startswith(f"Use an optimizer with less state: {option}")
    assert finding.saves == saves * MiB


@pytest.mark.parametrize(("parameters", "one_by_one"), [(240, False), (330, True)])
def test_a_smaller_optimizer_updates_one_by_one_if_copies_do_not_fit(make_run, parameters, one_by_one):
    run = make_run(capacity=1000)
    run.alloc(parameters, PARAMETER)
    run.alloc(20, ACTIVATION)
    run.oom(250)
    add_optimizer_at(run, "AdamW", trainable=parameters, state=2 * parameters)
    finding = run.advice()["LG605"]
    assert finding.fix.endswith(" Pass `foreach=False` to SGD.") == one_by_one


def optimizer_step_in(make_run, activations, **options):
    """The first step of Adam, after a forward pass with activations."""
    run = make_run(**options)
    run.alloc(200, PARAMETER)
    freed = run.alloc(activations, ACTIVATION)
    run.free(freed)
    run.phase = Phase.BACKWARD
    run.alloc(200, GRADIENT)
    run.phase = Phase.OPTIMIZER
    run.alloc(400, STATE)
    run.alloc(100, TEMPORARY, op="aten._foreach_sqrt")
    run.oom(200, op="aten._foreach_sqrt")
    add_optimizer_at(run, "Adam", trainable=200, state=400, temporary=200)
    return run


def test_fused_is_enough_if_the_next_forward_pass_fits(make_run):
    finding = next(iter(optimizer_step_in(make_run, 250).advice().values()))
    assert (finding.code, finding.line) == ("LG606", 75)
    assert "as well" not in finding.fix


def test_fused_is_combined_with_a_smaller_batch_if_the_next_forward_pass_does_not_fit(make_run):
    run = optimizer_step_in(make_run, 700, arguments=["--batch-size", "64"])
    finding = next(iter(run.advice().values()))
    assert finding.code == "LG606"
    # 1000 − 20 − 600 − 200 MiB are available for 700 MiB of activations, with a margin of 10%
    assert "Use `--batch-size 8` instead of `--batch-size 64` as well" in finding.fix
    command, comment = next_command(run)
    assert command.endswith("--batch-size 8")
    assert comment == "with a smaller batch size, after the change in run.py:75"


@pytest.mark.parametrize("late", [True, False])
def test_zero_grad_comes_before_a_smaller_batch(make_run, monkeypatch, late):
    monkeypatch.setattr(evidence, "keeps_gradients_until_backward", lambda frame: late)
    run = optimizer_step_in(make_run, 250, arguments=["--batch-size", "64"])
    finding = run.advice()["LG606"]
    assert ("Also call `optimizer.zero_grad()` before the forward pass" in finding.fix) is late
    assert "--batch-size" not in finding.fix


def test_gradients_and_a_smaller_batch_are_suggested_together(make_run):
    run = make_run(arguments=["--batch-size", "64"])
    run.alloc(200, PARAMETER)
    run.alloc(200, STATE)
    run.alloc(300, GRADIENT)
    run.end_step()
    run.alloc(290, ACTIVATION)
    run.oom(300)
    add_optimizer(run, trainable=200, state=200)
    finding = next(iter(run.advice().values()))
    assert finding.code == "LG103"
    # 1000 − 40 − 400 − 3/4 × 300 MiB are available for 590 MiB of activations, with a margin of 10%
    assert finding.fix.endswith("`--batch-size 32` instead of `--batch-size 64` as well.")


def test_a_checkpoint_in_the_first_layer_is_training(make_run):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.alloc(600, TEMPORARY)
    run.oom(200)
    add_state(run, gradients=False, training=True)
    add_optimizer(run, "AdamW", trainable=300, state=600)
    assert "LG605" in run.advice()


# --- evaluation or training


def add_call(run, is_evaluation, *, gradients=True, calls=1, batch_size=None, samples=None, shape=()):
    state = ProgramState(
        0.5,
        gradients,
        True,
        batch_size,
        samples,
        (),
        shape,
        is_evaluation,
        calls,
        "/project/eval.py",
        9,
        "evaluate",
    )
    run.events.append(state)


def test_evaluation_with_gradients_suggests_no_grad_first_and_is_named(training):
    training.oom(100)
    add_call(training, True)
    finding = next(iter(training.advice().values()))
    assert (finding.code, finding.file, finding.line) == ("LG201", "/project/eval.py", 9)
    report = training.report()
    assert report.oom is not None
    assert report.oom.in_evaluation
    assert report.as_json()["oom"]["in_evaluation"] is True


def test_training_step_never_suggests_no_grad(training):
    for _ in range(4):
        training.alloc(5, INPUT, line=40)
        training.alloc(20, ACTIVATION)
    training.oom(200)
    add_call(training, False, calls=4)
    assert "LG201" not in training.advice()


def test_constants_that_the_model_copies_to_the_device_are_not_batches(training):
    for _ in range(4):
        training.alloc(5, INPUT, line=40, module="encoder.layers.0")
        training.alloc(20, ACTIVATION)
    training.oom(200)
    assert "LG201" not in training.advice()


def test_views_of_the_first_step_are_not_an_evaluation(training):
    for _ in range(4):
        training.alloc(5, INPUT, line=40)
        training.alloc(20, ACTIVATION)
    training.oom(200)
    add_state(training)
    add_optimizer(training)
    assert "LG201" not in training.advice()


def test_batch_size_of_the_training_is_not_suggested_for_an_evaluation_that_does_not_use_it(make_run):
    run = make_run()
    run.alloc(700, TEMPORARY)
    run.oom(400)
    add_call(run, True, gradients=False, shape=(35, 10))
    add_setting(run, "--batch-size", 4)
    assert "Use at most half the current batch size for the evaluation" in run.advice()["LG603"].fix


def test_constant_that_sets_the_batch_size_of_the_evaluation_is_named(make_run):
    run = make_run()
    run.alloc(700, TEMPORARY)
    run.oom(400)
    add_call(run, True, gradients=False, shape=(35, 10))
    add_setting(run, "--batch-size", 4)
    add_setting(run, "eval_batch_size", 10, rank=6, file="/project/train.py", line=30)
    assert "in train.py, line 30 (currently 10)" in run.advice()["LG603"].fix


def test_evaluation_of_one_sample_suggests_smaller_inputs_and_no_smaller_batch(make_run):
    run = make_run()
    run.alloc(1, GRADIENT)
    run.alloc(700, RESULT)
    run.oom(400)
    add_call(run, True, gradients=False, batch_size=1, samples=1)
    advice = run.advice()
    assert list(advice)[:2] == ["LG401", "LG614"]
    assert not {"LG603", "LG103"}.intersection(advice)


def test_operation_larger_than_the_device_does_not_suggest_a_smaller_batch_of_one(make_run):
    run = make_run()
    run.alloc(1, RESULT)
    run.oom(2000, op="aten.convolution")
    add_call(run, True, gradients=False, batch_size=1, samples=1)
    finding = next(iter(run.advice().values()))
    assert finding.code == "LG601"
    assert "reduce the batch size" not in finding.fix


def test_no_smaller_batch_is_combined_with_fused_if_nothing_scales_with_the_batch(make_run):
    run = make_run(arguments=["--batch-size", "64"])
    run.alloc(600, PARAMETER)
    run.phase = Phase.OPTIMIZER
    run.oom(500, op="aten._foreach_sqrt")
    add_optimizer_at(run, "Adam", trainable=600, state=1200, temporary=500)
    assert all("as well" not in finding.fix for finding in run.advice().values())


def test_a_damaged_capture_with_almost_no_progress_still_has_advice(make_run):
    run = make_run()
    run.alloc(600, ACTIVATION)
    run.oom(500)
    run.events.append(ForwardProgress(0.5, 2e-313))
    assert run.advice()


EVALUATION = """
import torch


def accuracy(model, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        output = model(x.cuda())
        correct += (output.argmax(1) == y.cuda()).sum().item()
    return correct
"""


@pytest.mark.parametrize(
    ("line", "training", "found"), [(9, False, True), (9, True, False), (8, False, False)]
)
def test_linter_decides_whether_a_line_evaluates(make_run, tmp_path, line, training, found):
    file = tmp_path / "train.py"
    file.write_text(EVALUATION)
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    run.events.append(ProgramState(0.5, True, training, 64, 64, (), (), None, 1, str(file), line, "accuracy"))
    advice = run.advice()
    assert (next(iter(advice)) == "LG201") is found
    if found:
        assert advice["LG201"].line == 9


def add_model_call(
    run,
    *,
    started,
    trained=0,
    trainable=40,
    untrained=("",),
    others_are_trained=True,
    input_requires_grad=False,
    dtype="float32",
):
    sizes = trainable * MiB, trained * MiB
    run.events.append(
        ModelCall(0.5, started, "Net", *sizes, untrained, others_are_trained, input_requires_grad, dtype)
    )


def out_of_memory_twice(make_run):
    run = make_run()
    run.alloc(100, PARAMETER)
    run.alloc(400, ACTIVATION)
    run.oom(600)
    run.alloc(450, ACTIVATION)
    run.oom(100)
    return run


@pytest.mark.parametrize("handles", [True, False])
def test_retry_inside_an_except_block_comes_first(make_run, handles):
    run = out_of_memory_twice(make_run)
    if handles:
        run.events.append(HandledError(0.5, "/project/run.py", 30, "train"))
    advice = run.advice()
    assert (next(iter(advice)) == "LG106") is handles
    if handles:
        assert (advice["LG106"].line, advice["LG106"].saves) == (30, 400 * MiB)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"trained": 40}, False),
        ({"input_requires_grad": True}, False),  # the graph leads to the model that the optimizer updates
        ({"input_requires_grad": None}, False),
        ({"others_are_trained": False}, False),  # the optimizer may update a copy of these parameters
        ({"trainable": 0}, False),
        ({"created_in": Phase.FORWARD}, False),  # an optimizer may be created after the first forward pass
    ],
)
def test_model_that_no_optimizer_updates_needs_no_gradients(make_run, changes, found):
    run = make_run()
    run.phase = changes.pop("created_in", Phase.OTHER)
    run.alloc(150, PARAMETER)
    run.phase = Phase.FORWARD
    run.alloc(600, ACTIVATION)
    started = run.events[-1].time + 0.0005
    run.alloc(200, ACTIVATION)
    run.oom(100)
    add_optimizer(run)
    add_model_call(run, started=0.0, **changes)
    add_model_call(run, started=started, trained=50, trainable=50, untrained=())
    advice = run.advice()
    assert (next(iter(advice)) == "LG201") is found
    if found:
        assert advice["LG201"].saves == 600 * MiB
        assert "Call this `Net` in `with torch.no_grad():`" in advice["LG201"].fix


@pytest.mark.parametrize(("created_in", "found"), [(Phase.OTHER, True), (Phase.FORWARD, False)])
def test_backbone_that_no_optimizer_updates_is_frozen(make_run, created_in, found):
    run = make_run()
    run.phase = created_in
    run.alloc(90, PARAMETER)
    run.phase = Phase.FORWARD
    run.alloc(600, ACTIVATION, module="backbone.layers.0")
    run.alloc(100, ACTIVATION, module="head")
    run.alloc(
        100, ACTIVATION, module="backbone.layers.0"
    )  # needs the graph, because it uses the head's result
    run.oom(200)
    add_optimizer(run)
    add_model_call(run, started=0.0, trained=50, trainable=90, untrained=("backbone",))
    finding = run.advice().get("LG123")
    assert (finding is not None) is found
    if finding:
        assert finding.saves == 600 * MiB
        assert finding.fix.startswith("Freeze `backbone` of `Net` before the training")


@pytest.mark.parametrize(("op", "found"), [("aten.sub", True), ("aten.mm", False), ("aten.cat", False)])
def test_broadcast_comes_before_a_smaller_batch(make_run, op, found):
    run = make_run()
    run.alloc(100, PARAMETER)
    run.alloc(400, ACTIVATION, op=op, line=12)
    run.alloc(400, ACTIVATION, op="aten.abs", line=13)
    run.oom(400, op="aten.mul", line=14)
    run.events.append(
        BroadcastTensors(0.5, "pred", "target", 10_000, 400 * MiB, "/project/run.py", 30, "loss")
    )
    advice = run.advice()
    assert (next(iter(advice)) == "LG615") is found
    if found:
        # The function that has both variables passes them to another function.
        assert (advice["LG615"].line, advice["LG615"].saves) == (30, 1200 * MiB)
        assert "`pred = pred.squeeze(1)`" in advice["LG615"].fix


CARRIED_STATE = """
import torch

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = torch.zeros(8, 16, device="cuda")
for x, y in loader:
    output, state = model(x.cuda(), state)
    loss = criterion(output, y.cuda())
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
"""
SUMMED_LOSS = """
import torch

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0
for i, (x, y) in enumerate(loader):
    total = total + criterion(model(x.cuda()), y.cuda()) / 8
    if (i + 1) % 8 == 0:
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        total = 0
"""


@pytest.mark.parametrize(
    ("source", "code", "line", "fix"),
    [
        (CARRIED_STATE, "LG104", 8, "Detach the state first"),
        (SUMMED_LOSS, "LG119", 8, "Call `backward()` on the loss of each micro-batch"),
        ("", "LG104", 10, "Release the old graph"),
    ],
)
def test_linter_names_the_cause_of_an_old_graph(make_run, tmp_path, source, code, line, fix):
    file = tmp_path / "train.py"
    file.write_text(source)
    run = make_run()
    run.alloc(100, PARAMETER)
    run.alloc(600, ACTIVATION)
    run.end_step()
    run.alloc(200, ACTIVATION)
    run.oom(200)
    run.events.append(ProgramState(0.5, True, True, 64, 64, (), (), False, 1, str(file), 8, "<module>"))
    finding = next(iter(run.advice().values()))
    assert (finding.code, finding.line, finding.saves) == (code, line, 600 * MiB)
    assert fix in finding.fix


ATTENTION = """
def forward(self, x):
    q, k, v = self.qkv(x).chunk(3, -1)
    scores = q @ k.transpose(-2, -1)
    weights = scores.softmax(-1)
    return self.proj(weights @ v)
"""


@pytest.mark.parametrize(
    ("statement", "compares"),
    [
        ("sim = z @ z.t() / tau", True),
        ("sim = z @ z.T", True),
        ("sim = torch.matmul(z, z.t())", True),
        ("labels = torch.arange(len(z), device=z.device); logits = a @ b.T", True),
        ("labels = torch.arange(len(z), device=z.device)", False),
        ("scores = q @ k.T", False),
        ("scores = x @ x.transpose(-2, -1)", False),
        ("positions = torch.arange(n)", False),
    ],
)
def test_gradients_are_not_accumulated_for_a_loss_that_compares_the_samples(
    make_run, tmp_path, monkeypatch, statement, compares
):
    file = tmp_path / "model.py"
    file.write_text(f"def loss(z):\n    {statement}\n")
    monkeypatch.setattr("example_runs.TRAIN", str(file))
    run = make_run()
    run.alloc(50, PARAMETER)
    run.alloc(800, ACTIVATION)
    run.phase = Phase.BACKWARD
    run.oom(200)
    run.source({1: "def loss(z):"})
    fix = run.advice()["LG603"].fix
    assert ("Accumulated gradients do not replace" in fix, "Accumulate gradients" in fix) == (
        compares,
        not compares,
    )


@pytest.mark.parametrize(
    ("vectors", "found"),
    [("F.one_hot(x, 9).float()", True), ("torch.eye(9)[x]", True), ("self.embedding(x)", False)],
)
@pytest.mark.parametrize("failed_line", [3, 4])
def test_one_hot_vectors_are_replaced_by_an_embedding(
    make_run, tmp_path, monkeypatch, vectors, found, failed_line
):
    file = tmp_path / "model.py"
    file.write_text(f"\ndef forward(self, x):\n    x = {vectors}\n    return self.linear(x)\n")
    monkeypatch.setattr("example_runs.TRAIN", str(file))
    run = make_run()
    run.alloc(50, PARAMETER, line=1)
    run.alloc(600, TEMPORARY, line=3)
    run.oom(1200 if failed_line == 3 else 350, line=failed_line)
    finding = next(iter(run.advice().values()))
    assert ("torch.nn.Embedding" in finding.fix) is found
    assert not found or finding.line == 3


@pytest.mark.parametrize(("softmax", "found"), [("softmax", True), ("sigmoid", False)])
@pytest.mark.parametrize("ops", [("aten.bmm", "aten._softmax"), ("", "")])  # a CUDA history has no operations
def test_attention_that_stores_its_scores(make_run, tmp_path, monkeypatch, softmax, found, ops):
    file = tmp_path / "model.py"
    file.write_text(ATTENTION.replace("softmax", softmax))
    monkeypatch.setattr("example_runs.TRAIN", str(file))
    run = make_run()
    run.alloc(50, PARAMETER, line=1)
    run.alloc(20, ACTIVATION, line=3, op="aten.addmm")
    run.alloc(400, ACTIVATION, line=4, op=ops[0])
    run.alloc(400, ACTIVATION, line=5, op=ops[1])
    run.oom(200, line=6)
    advice = run.advice()
    assert (next(iter(advice)) == "LG616") is found
    if found:
        assert (advice["LG616"].line, advice["LG616"].saves) == (5, 1000 * MiB)


@pytest.mark.parametrize("option", ["self.dropout(weights)", "weights.masked_fill(pad_mask, 0)", "weights"])
def test_options_of_an_attention_that_stores_its_scores(make_run, tmp_path, monkeypatch, option):
    file = tmp_path / "model.py"
    file.write_text(ATTENTION.replace("weights @ v", f"{option} @ v"))
    monkeypatch.setattr("example_runs.TRAIN", str(file))
    run = make_run()
    run.alloc(400, ACTIVATION, line=4)
    run.alloc(400, ACTIVATION, line=5)
    run.oom(200, line=6)
    fix = run.advice()["LG616"].fix
    assert ("`attn_mask`, in which True keeps a position" in fix) == (option != "weights")


def test_a_longer_sample_than_before_is_limited_if_the_batch_has_one_sample(make_run):
    run = make_run()
    run.alloc(50, PARAMETER)
    run.alloc(100, ACTIVATION)
    run.end_step()
    run.alloc(700, ACTIVATION)
    run.oom(200)
    run.events.append(ProgramState(0.5, True, True, None, None, (1, 300), (1, 2400), False))
    add_optimizer(run, trainable=50, state=0)
    advice = run.advice()
    assert "LG603" not in advice
    assert "This input has the shape (1, 2400)" in advice["LG614"].fix


@pytest.mark.parametrize(
    ("dtype", "found"), [("float64", False), ("bfloat16", False), ("float16", False), ("float32", True)]
)
def test_autocast_is_suggested_only_for_float32(make_run, dtype, found):
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    add_model_call(run, started=0.1, dtype=dtype)
    assert ("LG401" in run.advice()) == found


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        ("nn.BCELoss()", True),
        ("F.binary_cross_entropy(p, y)", True),
        ("nn.BCEWithLogitsLoss()", False),
        ("F.binary_cross_entropy_with_logits(p, y)", False),
    ],
)
def test_loss_that_autocast_does_not_support(make_run, tmp_path, loss, found):
    file = tmp_path / "train.py"
    file.write_text(f"loss = {loss}\n")
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    add_model_call(run, started=0.1)
    run.events[-1] = replace(run.events[-1], file=str(file), line=1)
    assert ("`nn.BCEWithLogitsLoss`" in run.advice()["LG401"].fix) == found


def test_option_is_set_in_the_groups_after_a_checkpoint_is_loaded(optimizer_step):
    sizes = 50 * MiB, 100 * MiB, 0
    optimizer_step.events.append(LiveOptimizer(0.5, "Adam", "foreach", True, *sizes, options_in_groups=True))
    assert optimizer_step.advice()["LG606"].fix.startswith("After any call of `load_state_dict`, set `group[")


@pytest.mark.parametrize(("dtype", "found"), [("float64", True), ("float32", False)])
def test_model_in_float64_is_converted_first(make_run, dtype, found):
    run = make_run(arguments=["--batch-size", "64"])
    run.alloc(100, PARAMETER)
    run.alloc(800, ACTIVATION)
    run.oom(400)
    add_optimizer(run, trainable=100, state=0)
    add_model_call(run, started=0.0, trained=100, trainable=100, untrained=(), dtype=dtype)
    assert (next(iter(run.advice())) == "LG422") is found


@pytest.mark.parametrize(("op", "fraction"), [("aten.relu", 0.43), ("aten.convolution", 0.32)])
def test_evaluation_needs_another_result_after_a_convolution(make_run, op, fraction):
    run = make_run(arguments=["--test-batch-size", "100"])
    run.alloc(600, RESULT)
    run.oom(600, op=op)
    add_call(run, True, gradients=False, batch_size=100, samples=100)
    assert run.advice()["LG603"].evidence["fraction"] == pytest.approx(fraction, abs=0.12)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("error = pred - target", True),
        ("loss = F.mse_loss(pred, target)", True),
        ("scores = (pred @ target.T) * 2", False),
        ("kernel = torch.empty(n, n)", False),
    ],
)
def test_line_decides_whether_an_unknown_operation_broadcasts(make_run, tmp_path, monkeypatch, line, found):
    file = tmp_path / "train.py"
    file.write_text(f"def loss(pred, target):\n    {line}\n")
    monkeypatch.setattr("example_runs.TRAIN", str(file))
    run = make_run()
    run.alloc(100, PARAMETER)
    run.alloc(400, ACTIVATION, op="", line=2)
    run.oom(600, op="", line=2)
    run.events.append(BroadcastTensors(0.5, "pred", "target", 10_000, 400 * MiB, str(file), 2, "train"))
    assert ("LG615" in run.advice()) is found


def test_summed_micro_batches_of_the_first_step_are_recognized(make_run, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SUMMED_LOSS)
    run = make_run()
    run.alloc(50, PARAMETER)
    run.alloc(800, ACTIVATION)
    started = run.events[-1].time + 0.0005
    run.alloc(100, ACTIVATION)
    run.oom(100)
    run.events.append(ProgramState(0.5, True, True, 64, 64, (), (), False, 1, str(file), 8, "<module>"))
    for each in (0.0, started):
        add_model_call(run, started=each, trained=40, untrained=())
    run.events.append(ForwardProgress(0.5, 0.5))
    finding = next(iter(run.advice().values()))
    assert (finding.code, finding.line, finding.saves) == ("LG119", 8, 800 * MiB)


def folds(make_run, *, retained):
    """A run that creates a second model after the first one was trained."""
    run = make_run()
    for size, category in ((100, PARAMETER), (200, STATE), (100, GRADIENT)):
        run.alloc(size, category)
    run.end_step()
    run.end_step()
    run.alloc(100, PARAMETER)
    run.alloc(200, ACTIVATION)
    run.oom(400)
    run.events.append(Holder("folds (list, 1 item)", retained * MiB, 3, Frame("/project/run.py", 9, "main")))
    add_optimizer(run, trainable=100, state=0)
    return run


@pytest.mark.parametrize(("retained", "found"), [(400, True), (500, False)])  # 500 includes the new model
def test_models_of_earlier_folds_are_moved_to_the_host(make_run, retained, found):
    advice = folds(make_run, retained=retained).advice()
    assert ("LG105" in advice) is found
    if found:
        assert advice["LG105"].saves == 400 * MiB
        assert "move a model or its state to the host" in advice["LG105"].fix


LOSS = """
def update(old):
    value = model(x)
    loss = (value - old).square().mean()
    loss.backward()
"""


@pytest.mark.parametrize(("more", "found"), [("", True), ("    old.sum().backward()\n", False)])
def test_graph_that_the_only_backward_pass_does_not_use(make_run, tmp_path, more, found):
    file = tmp_path / "train.py"
    file.write_text(LOSS + more)
    frame = Frame(str(file), 5, "update")
    run = make_run()
    run.alloc(50, PARAMETER)
    run.alloc(600, ACTIVATION)
    run.alloc(100, ACTIVATION)
    run.phase = Phase.BACKWARD
    run.oom(300)
    for path, size in (("old (Tensor)", 600), ("loss (Tensor)", 100), ("value (Tensor)", 90)):
        run.events.append(Holder(path, size * MiB, 1, frame))
    advice = run.advice()
    assert ("LG102" in advice) is found
    if found:
        assert advice["LG102"].evidence["variables"] == ["old"]
        assert advice["LG102"].saves == 600 * MiB


def test_a_much_longer_sample_comes_before_a_smaller_batch(make_run):
    run = make_run(arguments=["--batch-size", "16"])
    run.alloc(50, PARAMETER)
    run.end_step()
    run.alloc(700, ACTIVATION)
    run.oom(200)
    run.events.append(ProgramState(0.5, True, True, 16, 16, (16, 60), (16, 900), False))
    add_optimizer(run, trainable=50, state=0)
    assert list(run.advice())[:2] == ["LG614", "LG603"]


def test_optimizers_that_a_newer_one_replaced_are_deleted(make_run):
    run = make_run()
    run.alloc(100, PARAMETER)
    run.alloc(400, STATE)
    run.alloc(300, ACTIVATION)
    run.oom(300)
    sizes = 100 * MiB, 200 * MiB, 0
    run.events.append(LiveOptimizer(0.5, "Adam", "fused", True, *sizes, "/project/run.py", 17, 200 * MiB))
    run.events.append(LiveOptimizer(0.5, "Adam", "fused", True, *sizes, "/project/run.py", 17))
    run.events.append(
        Holder("self.optimizers (list, 2 items)", 500 * MiB, 9, Frame("/project/run.py", 30, "fit"))
    )
    finding = run.advice()["LG118"]
    assert (finding.line, finding.saves) == (17, 200 * MiB)
    assert finding.fix.startswith("Keep only the newest optimizer in `self.optimizers`")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("dist = (x[:, None, :] - codes.weight[None]).pow(2).sum(-1)", True),
        ("dist = (x.unsqueeze(1) - codes.unsqueeze(0)).norm(dim=2)", True),
        ("y = (x[:, None] - x.mean(0)[:, None]).sum(-1)", False),
        ("mask = x[:, None] - y[None]", False),
    ],
)
def test_differences_of_all_pairs(make_run, tmp_path, monkeypatch, line, found):
    file = tmp_path / "train.py"
    file.write_text(f"{line}\n")
    monkeypatch.setattr("example_runs.TRAIN", str(file))
    run = make_run()
    run.alloc(100, PARAMETER, line=2)
    run.alloc(400, ACTIVATION, line=1)
    run.oom(600, line=1)
    advice = run.advice()
    assert ("LG311" in advice) is found
    if found:
        assert (advice["LG311"].line, advice["LG311"].saves) == (1, 1000 * MiB)


def test_assignment_that_does_not_freeze_is_corrected_first(make_run, tmp_path):
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n\ndef freeze(model: nn.Module):\n"
        "    for p in model.parameters():\n        p.require_grad = False\n"
    )
    run = make_run(arguments=["--batch-size", "16"])
    run.alloc(100, PARAMETER)
    run.alloc(700, ACTIVATION)
    run.oom(300)
    run.events.append(ProgramState(0.5, True, True, 16, 16, (), (), False, 1, str(file), 6, "freeze"))
    finding = next(iter(run.advice().values()))
    assert (finding.code, finding.line) == ("LG309", 7)


def test_the_largest_line_is_named_if_there_is_no_other_advice(make_run):
    run = make_run()
    run.phase = Phase.OTHER
    run.alloc(600, TEMPORARY, line=29)
    run.oom(500)
    advice = run.advice()
    assert list(advice) == ["LG617"]
    assert advice["LG617"].line == 29


def test_another_evaluation_with_gradients_is_named(make_run, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(
        EVALUATION + EVALUATION.replace("import torch\n", "").replace("accuracy", "test_accuracy")
    )
    run = make_run()
    run.alloc(900, ACTIVATION)
    run.oom(200)
    run.events.append(ProgramState(0.5, True, False, 64, 64, (), (), None, 1, str(file), 9, "accuracy"))
    finding = run.advice()["LG201"]
    assert finding.line == 9
    assert finding.fix.endswith("The evaluation in train.py:19 needs this too.")


@pytest.mark.parametrize("first", [1, 2])
def test_whole_input_with_a_leading_dimension_of_one_is_not_a_single_sample(make_run, monkeypatch, first):
    monkeypatch.setattr(evidence, "is_loaded_once", lambda frame: True)
    run = make_run()
    run.alloc(50, PARAMETER)
    run.alloc(100, INPUT)
    run.alloc(600, ACTIVATION)
    run.oom(300)
    shape = (first, 25 * 1024 * 1024 // first)
    run.events.append(ProgramState(0.5, True, True, None, None, shape, shape, False))
    add_optimizer(run, trainable=50, state=0)
    assert "LG603" in run.advice()


def test_a_state_is_detached_even_if_no_step_was_counted(make_run, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(CARRIED_STATE.replace("    optimizer.step()\n", ""))
    run = make_run()
    run.alloc(100, PARAMETER)
    run.alloc(600, ACTIVATION)
    run.phase = Phase.BACKWARD
    run.alloc(10, GRADIENT)
    run.phase = Phase.FORWARD
    run.alloc(100, ACTIVATION)
    run.oom(250)
    run.events.append(ProgramState(0.5, True, True, 64, 64, (), (), False, 1, str(file), 8, "<module>"))
    finding = next(iter(run.advice().values()))
    assert (finding.code, finding.line, finding.saves) == ("LG104", 8, 600 * MiB)


COPIES = """
def train(model, loader):
    history = []
    for epoch in range(9):
        for x in loader:
            step(x)
        history.append(copy.deepcopy(model.state_dict()))
"""


def test_copies_of_the_weights_are_reported_at_the_line_that_stores_them(make_run, tmp_path, monkeypatch):
    file = tmp_path / "train.py"
    file.write_text(COPIES)
    monkeypatch.setattr("example_runs.TRAIN", str(file))
    run = make_run()
    run.alloc(200, PARAMETER, line=2)
    for _ in range(3):
        run.end_step()
        run.alloc(200, PARAMETER, line=7)  # the last copy belongs to the step of the failure
    run.alloc(100, ACTIVATION)
    run.oom(400)
    run.events.append(Holder("history (list, 3 items)", 600 * MiB, 9, Frame(str(file), 6, "train")))
    add_optimizer(run, trainable=200, state=0)
    finding = next(iter(run.advice().values()))
    assert (finding.code, finding.line, finding.saves) == ("LG105", 7, 600 * MiB)


def test_a_container_may_have_an_item_of_the_current_step(make_run):
    run = make_run()
    for _ in range(4):
        run.alloc(150, RESULT)
        run.end_step()
    run.alloc(150, RESULT)
    run.oom(400)
    run.holder("model.queue (deque, 5 items)", 750)
    assert run.advice()["LG105"].saves == 750 * MiB


HOOKS = """import torch
from torch import nn


class Extractor:
    def __init__(self, model):
        self.outputs = []
        model.layer.register_forward_hook(self.save)

    def save(self, module, inputs, output):
        self.outputs.append(output)


extractor = Extractor(model)
for x in loader:
    model(x).sum().backward()
"""


@pytest.mark.parametrize(("steps", "found"), [(4, True), (2, False)])
@pytest.mark.parametrize("hooks", [True, False])
def test_results_of_several_earlier_steps(make_run, tmp_path, monkeypatch, steps, found, hooks):
    file = tmp_path / "train.py"
    file.write_text(HOOKS if hooks else "\n".join(["pass"] * 30))
    monkeypatch.setattr("example_runs.TRAIN", str(file))
    run = make_run()
    for _ in range(steps):
        run.alloc(100, RESULT, line=16)
        run.end_step()
    run.oom(700)
    run.events.append(Holder("extractor (Extractor)", steps * 100 * MiB, 9, Frame(str(file), 16, "<module>")))
    advice = run.advice()
    code = "LG110" if hooks else "LG105"
    assert (code in advice) is found
    if found:
        assert (advice[code].line, advice[code].saves) == (11 if hooks else 16, 400 * MiB)


LOAD = """import torch
model = Net().cuda()
saved = torch.load(path, map_location=device)
"""


@pytest.mark.parametrize(("more", "found"), [("model.load_state_dict(saved['model'])\n", True), ("", False)])
def test_a_checkpoint_that_stays_on_the_device(make_run, tmp_path, monkeypatch, more, found):
    file = tmp_path / "train.py"
    file.write_text(LOAD + more)
    monkeypatch.setattr("example_runs.TRAIN", str(file))
    run = make_run()
    run.phase = Phase.OTHER
    run.alloc(300, PARAMETER, line=2)
    run.alloc(300, TEMPORARY, line=3)
    run.alloc(100, STATE, line=3)  # in use by the optimizer
    run.phase = Phase.FORWARD
    run.alloc(200, ACTIVATION)
    run.oom(300)
    advice = run.advice()
    assert ("LG301" in advice) is found
    if found:
        assert (advice["LG301"].line, advice["LG301"].saves) == (3, 300 * MiB)
        assert 'map_location="cpu"' in advice["LG301"].fix


@pytest.mark.parametrize(
    ("kind", "shape", "size", "advised"),
    [
        ("Linear", (32, 65536), 250, "`fc` (Linear(65536, 32)) has 83% of the weights. If its input is a flattened"),
        ("Linear", (4096, 4096), 250, ""),
        ("Embedding", (65536, 32), 250, "`fc` (Embedding(65536, 32)) has 83% of the weights. With `sparse=True`"),
        ("Embedding", (65536, 32), 100, ""),
        ("Linear", (65536,), 250, ""),
    ],
)  # fmt: skip
def test_the_layer_with_most_of_the_weights_is_named(make_run, kind, shape, size, advised):
    run = make_run()
    run.alloc(300, PARAMETER)
    run.alloc(300, ACTIVATION)
    run.oom(500)
    add_optimizer(run, trainable=300, state=600)
    call = ModelCall(0.5, 0.0, "Net", 300 * MiB, 300 * MiB, (), False, False, "float32")
    run.events.append(
        replace(call, largest="fc", largest_kind=kind, largest_shape=shape, largest_bytes=size * MiB)
    )
    fix = run.advice()["LG605"].fix
    assert (advised in fix) if advised else ("of the weights. " not in fix)
