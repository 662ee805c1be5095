"""Describes the state of the program at an out-of-memory error: whether it trains or evaluates, which models it called,
the errors that it handles, its optimizers, and its batch size settings.
"""

import inspect
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from legroom.memory.annotations import FoundSetting, HandledError, LiveOptimizer, ModelCall, ProgramState
from legroom.memory.event_base import Annotation, Frame
from legroom.observe.broadcasts import broadcast_tensors
from legroom.observe.creation_lines import optimizer_lines
from legroom.observe.dispatch.attribution import user_lines
from legroom.observe.forward_passes import RecordedCall
from legroom.observe.instances import find_instances
from legroom.observe.source.batch_setting import BatchSetting
from legroom.observe.source.script_settings import ScriptSettings
from legroom.observe.source.user_files import is_user_file
from legroom.observe.training import TrainingClock, live_optimizers

MAX_OPTIMIZERS = MAX_SETTINGS = 16
MAX_UNTRAINED = 100
_FUSED = ("Adam", "AdamW", "SGD")
"""The torch optimizers with a fused CUDA implementation. Adagrad's fused implementation is for the CPU only."""
_STATE_COPIES = {
    "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "Rprop": 2, "SparseAdam": 2,
    "RMSprop": 1, "Adagrad": 1, "ASGD": 1, "SGD": 0, "Muon": 1, "Adafactor": 0,
}  # fmt: skip
"""The number of parameter-sized tensors in the state of each optimizer."""
UNKNOWN_COPIES = 2
"""The assumed number of parameter-sized state tensors for optimizers from other libraries. Most of these optimizers are
variants of Adam.
"""
_TEMPORARY_COPIES = {"Adam": 1, "AdamW": 1, "SGD": 0, "RMSprop": 1, "Adadelta": 2}
"""The number of parameter-sized temporary tensors that each optimizer needs to update all parameters at once. Other
optimizers need 2.
"""
_OPTIONAL_COPIES = ("momentum", "amsgrad", "centered")
_settings: ScriptSettings | None = None
_candidates: dict[tuple[int | None, Frame | None], list[BatchSetting]] = {}
"""Maps each batch size, and the line that created the loader or called the model, to the candidates for the batch size setting. The candidates
are cached, because a script that searches for a batch size runs out of memory often.
"""


def follow_settings(settings: ScriptSettings | None) -> None:
    global _settings
    _settings = settings
    _candidates.clear()


def program_state(seconds: float, clock: TrainingClock) -> Iterator[Annotation]:
    """Yield what is known about the program. Call this function from the allocation that failed."""
    started = time.perf_counter() - seconds
    first, last = (tuple(map(int, shape)) for shape in clock.input_shapes or ((), ()))
    evidence = clock.passes.evidence(sys._getframe(1))
    file, line, function = evidence.frame or ("", 0, "")
    yield ProgramState(
        seconds, torch.is_grad_enabled(), clock.is_training, clock.batch_size, clock.samples,
        first, last, evidence.is_evaluation, evidence.calls, file, line, function,
    )  # fmt: skip
    optimizers = live_optimizers()
    for describe in (
        lambda: _model_calls(seconds, started, clock.passes.recent, optimizers),
        lambda: _handled_errors(seconds),
        lambda: broadcast_tensors(seconds, sys._getframe(1)),
    ):
        try:
            yield from list(describe())
        except Exception:  # objects of the program may raise anything
            continue
    stepped = [reference() for reference in clock.optimizers]
    for optimizer in optimizers[:MAX_OPTIMIZERS]:
        try:
            found = _describe(optimizer, seconds, _is_replaced(optimizer, optimizers, stepped), clock.step)
        except Exception:  # an optimizer of another library may lack any attribute
            continue
        if found is not None:
            yield found
    for each in _settings_for(clock, evidence.frame)[:MAX_SETTINGS]:
        yield FoundSetting(
            seconds, each.name, each.value, each.rank, each.text, each.arguments, each.is_given, each.variable,
            each.file, each.line,
        )  # fmt: skip


def _model_calls(
    seconds: float,
    started: float,
    calls: Sequence[RecordedCall],
    optimizers: Sequence[torch.optim.Optimizer],
) -> Iterator[ModelCall]:
    trained = {
        id(parameter)
        for optimizer in optimizers
        for group in getattr(optimizer, "param_groups", [])
        for parameter in group["params"]
    }
    owned = _owned_by_modules(trained) if calls else set()
    for call in calls:
        model = call.model()
        if model is None:
            continue
        trainable = [each for each in model.parameters() if each.requires_grad]
        others = owned - {id(each) for each in trainable}
        file, line, function = call.frame or ("", 0, "")
        yield ModelCall(
            seconds, call.started - started, type(model).__name__,
            sum(each.numel() * each.element_size() for each in trainable),
            sum(each.numel() * each.element_size() for each in trainable if id(each) in trained),
            tuple(_untrained_modules(model, trained))[:MAX_UNTRAINED], bool(others), call.input_requires_grad,
            _dtype_of(model),
            file, line, function,
            *_largest_parameter(model),
        )  # fmt: skip


def _owned_by_modules(parameters: set[int]) -> set[int]:
    found = (vars(each).get("_parameters") for each in find_instances((nn.Module,)))
    return {id(parameter) for each in found if each for parameter in list(each.values())} & parameters


def _dtype_of(model: nn.Module) -> str:
    sizes: Counter[torch.dtype] = Counter()
    for each in model.parameters():
        sizes[each.dtype] += each.numel()
    return str(sizes.most_common(1)[0][0]).removeprefix("torch.") if sizes else ""


def _largest_parameter(model: nn.Module) -> tuple[str, str, tuple[int, ...], int]:
    """Return the path and the class of the module with the largest trainable parameter, and its shape and bytes."""
    trainable = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if not trainable:
        return "", "", (), 0
    name, largest = max(trainable, key=lambda named: named[1].numel() * named[1].element_size())
    path = name.rpartition(".")[0]
    kind = type(model.get_submodule(path)).__name__
    return path, kind, tuple(largest.shape), largest.numel() * largest.element_size()


def _untrained_modules(module: nn.Module, trained: set[int], path: str = "") -> Iterator[str]:
    """Yield the outermost modules with parameters that require gradients, but belong to no optimizer."""
    trainable = [each for each in module.parameters() if each.requires_grad]
    if not trainable:
        return
    if not any(id(each) in trained for each in trainable):
        yield path
        return
    for name, child in module.named_children():
        yield from _untrained_modules(child, trained, f"{path}.{name}" if path else name)


def _handled_errors(seconds: float) -> Iterator[HandledError]:
    """Yield the `except` blocks, of any thread, that are handling an earlier out-of-memory error."""
    for handled in sys._current_exceptions().values():
        error: BaseException | None = handled[1] if isinstance(handled, tuple) else handled
        while error is not None:
            frame = error.__traceback__.tb_frame if error.__traceback__ is not None else None
            if _is_out_of_memory(error) and frame is not None and is_user_file(frame.f_code.co_filename):
                code = frame.f_code
                yield HandledError(seconds, code.co_filename, frame.f_lineno, code.co_name)
                return
            error = error.__context__


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return True
    message = error.args[0] if isinstance(error, RuntimeError) and error.args else None
    return isinstance(message, str) and "out of memory" in message


def _settings_for(clock: TrainingClock, call: Frame | None) -> list[BatchSetting]:
    if _settings is None:
        return []
    loader = clock.loader_lines
    key = clock.batch_size, loader[0] if loader else call
    if key not in _candidates:
        try:
            running = user_lines(sys._getframe(1))[0]
            _candidates[key] = _settings.candidates(
                clock.batch_size, only_declared=True, loader=loader, running=running, call=call
            )
        except Exception:  # objects of the script may raise anything; its batch size then has no name
            _candidates[key] = []
    return _candidates[key]


def _is_replaced(optimizer: Any, optimizers: Sequence[Any], stepped: Sequence[Any]) -> bool:
    """Return whether a newer optimizer updates all parameters of an optimizer. `stepped` lists the optimizers in the order
    of their first steps. Optimizers that have not stepped yet are newer.
    """
    position = next((i for i, each in enumerate(stepped) if each is optimizer), None)
    if position is None:
        return False
    earlier = {id(each) for each in stepped[: position + 1]}
    parameters = {id(each) for group in optimizer.param_groups for each in group["params"]}
    return any(
        parameters <= {id(each) for group in other.param_groups for each in group["params"]}
        for other in optimizers
        if id(other) not in earlier
    )


def _describe(
    optimizer: torch.optim.Optimizer, seconds: float, is_replaced: bool, step: int
) -> LiveOptimizer | None:
    groups: list[dict[str, Any]] = getattr(optimizer, "param_groups", [])
    name = _torch_class(type(optimizer))
    update = _update(optimizer)
    trainable = state = temporary = 0
    for group in groups:
        size = sum(
            each.numel() * each.element_size()
            for each in group["params"]
            if isinstance(each, torch.Tensor) and each.requires_grad
        )
        trainable += size
        state += size * _state_copies(name, group)
        if update == "foreach":
            # Weight decay is added to copies of the gradients, except by AdamW.
            decays = bool(group.get("weight_decay")) and name != "AdamW"
            temporary += size * (_TEMPORARY_COPIES.get(name, 2) + decays)
    if not trainable:
        return None
    line = next(iter(optimizer_lines.of(optimizer)), None)
    return LiveOptimizer(
        seconds, type(optimizer).__name__, update, name in _FUSED and _accepts(optimizer, "fused"), trainable, state,
        temporary, line.file if line else "", line.line if line else 0, state if is_replaced else 0,
        not _accepts(optimizer, "foreach") or _is_loaded(optimizer, step),
    )  # fmt: skip


def _torch_class(kind: type) -> str:
    """Return the name of the torch optimizer that a class is or inherits from, or "" for other classes."""
    return next((each.__name__ for each in kind.__mro__ if each.__module__.startswith("torch.optim.")), "")


def _state_copies(name: str, group: dict[str, Any]) -> int:
    copies = _STATE_COPIES.get(name, UNKNOWN_COPIES)
    if name != "Muon":
        copies += sum(bool(group.get(option)) for option in _OPTIONAL_COPIES)
    return copies


def _accepts(optimizer: torch.optim.Optimizer, option: str) -> bool:
    parameters = inspect.signature(type(optimizer)).parameters
    return option in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _is_loaded(optimizer: torch.optim.Optimizer, step: int) -> bool:
    """Return whether `load_state_dict` replaced the options, after `step` steps of this run."""
    for state in list(optimizer.state.values())[:1]:
        counted = state.get("step", 0)
        if (counted if isinstance(counted, int | float) else float(counted.tolist())) > step + 1:
            return True
    given, used = optimizer.defaults, optimizer.param_groups[0]
    return any(
        given.get(option) is not None and given[option] != used.get(option) for option in ("foreach", "fused")
    )


def _update(optimizer: torch.optim.Optimizer) -> str:
    # On a GPU, torch updates all parameters at once by default.
    group = optimizer.param_groups[0]
    if "foreach" not in group:
        return "custom"
    if group.get("fused"):
        return "fused"
    return "single" if group["foreach"] is False or group.get("differentiable") else "foreach"
