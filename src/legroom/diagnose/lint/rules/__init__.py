"""The rules, one module each: its docstring is the page of its code, its `check` finds the problems."""

from legroom.diagnose.lint.rule import Check
from legroom.diagnose.lint.rules import (
    accumulated_graph,
    added_parameter_group,
    backward_in_autocast,
    blocking_copy,
    cached_tensor,
    carried_state,
    clipped_scaled_gradients,
    created_graph,
    data_attribute,
    data_parallel,
    deprecated_amp,
    emptied_cache,
    evaluation_with_gradients,
    forward_hook,
    frozen_parameters,
    growing_tensor,
    load_without_map_location,
    missing_set_epoch,
    missing_zero_grad,
    old_reduction,
    pickled_model,
    retained_graph,
    retry_in_except,
    sampler_with_shuffle,
    saved_on_context,
    stored_exception,
)

_MODULES = (
    accumulated_graph,
    added_parameter_group,
    backward_in_autocast,
    blocking_copy,
    cached_tensor,
    carried_state,
    clipped_scaled_gradients,
    created_graph,
    data_attribute,
    data_parallel,
    deprecated_amp,
    emptied_cache,
    evaluation_with_gradients,
    forward_hook,
    frozen_parameters,
    growing_tensor,
    load_without_map_location,
    missing_set_epoch,
    missing_zero_grad,
    old_reduction,
    pickled_model,
    retained_graph,
    retry_in_except,
    sampler_with_shuffle,
    saved_on_context,
    stored_exception,
)

RULES: dict[str, Check] = {
    module.CODE: module.check for module in sorted(_MODULES, key=lambda module: module.CODE)
}
"""Code → check, in the order of the codes."""
