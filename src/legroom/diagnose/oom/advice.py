"""Suggests changes after an out-of-memory error, most useful first, each with its estimated saving.

Every rule reads the same evidence: the memory in use at the failure, the failed request and the earlier allocations.
Rules in `retention_advice` find memory that the program retains by mistake. Rules in `saving_advice` suggest how to
reduce the memory of a correct program. Corrections of mistakes come first if they free enough memory, because other
changes only postpone the failure.

The field `saves` is the estimated number of bytes that the change frees at the failure. The message lists the
assumptions of the estimate. The evidence `may_not_suffice` marks a change that may not free enough memory.
"""

from dataclasses import replace

from legroom.diagnose.oom import retention_advice, saving_advice
from legroom.diagnose.oom.evidence import Evidence, Rule
from legroom.findings import Finding

RULES: tuple[Rule, ...] = (
    saving_advice.operation_larger_than_device,
    saving_advice.weights_do_not_fit,
    retention_advice.broadcast_by_mistake,
    retention_advice.retry_while_handling,
    retention_advice.grows_each_step,
    retention_advice.earlier_steps_graph,
    retention_advice.results_of_earlier_steps,
    retention_advice.evaluates_with_gradients,
    retention_advice.replaced_optimizers,
    retention_advice.untrained_model,
    retention_advice.untrained_parameters,
    retention_advice.frozen_by_mistake,
    retention_advice.large_tensors_in_source,
    retention_advice.checkpoint_on_device,
    retention_advice.retained_by_container,
    retention_advice.unused_graph,
    retention_advice.retained_by_variable,
    retention_advice.gradients_during_forward,
    saving_advice.dataset_on_device,
    saving_advice.fragmentation,
    saving_advice.process_fraction,
    saving_advice.others_on_device,
    saving_advice.optimizer_temporaries,
    saving_advice.optimizer_state_does_not_fit,
    saving_advice.double_precision,
    saving_advice.attention_weights,
    saving_advice.one_hot_vectors,
    saving_advice.longer_sample,
    saving_advice.smaller_batch,
    saving_advice.autocast,
    saving_advice.large_sample,
    saving_advice.checkpoint_activations,
    saving_advice.spill_activations,
)
"""The advice rules. Changes that need the least effort come first."""

NEGLIGIBLE = 0.1
"""A change that saves less than this fraction of the missing memory is listed last."""
_BLOCKING_CODES = ("LG601", "LG602")
_MISTAKE_CODES = ("LG106", "LG309", "LG422", "LG615")
"""Changes that come first even if they do not free enough memory, because other changes would hide the mistake."""
_RETAINED_GRAPH_CODES = ("LG101", "LG104", "LG201")
_SMALLER_GRAPH_CODES = ("LG603", "LG616", "LG401", "LG604", "LG613")


def advise(evidence: Evidence) -> tuple[Finding, ...]:
    """Return suggested changes, most useful first."""
    ranked = [
        (_rank(finding, evidence, effort), finding)
        for effort, rule in enumerate(RULES)
        for finding in rule(evidence)
        if finding.saves > 0 or finding.code in _BLOCKING_CODES or finding.evidence.get("no_batch_fits")
    ]
    findings = [
        replace(finding, evidence={**finding.evidence, "may_not_suffice": True})
        if _may_not_suffice(rank, finding, evidence)
        else finding
        for rank, finding in sorted(ranked, key=lambda pair: pair[0])
    ]
    if not findings:
        findings = list(saving_advice.largest_line(evidence))
    half = evidence.oom.allocated / 2
    if any(finding.code in _RETAINED_GRAPH_CODES and finding.saves >= half for finding in findings):
        # Smaller graphs do not help while the graph of every step is retained.
        findings = [finding for finding in findings if finding.code not in _SMALLER_GRAPH_CODES]
    return tuple(findings)


def _may_not_suffice(rank: tuple[int, int, int], finding: Finding, evidence: Evidence) -> bool:
    if finding.code in _MISTAKE_CODES:
        return finding.saves < evidence.missing
    return rank[0] in (4, 5, 7) and finding.code not in _BLOCKING_CODES


def _rank(finding: Finding, evidence: Evidence, effort: int) -> tuple[int, int, int]:
    # The output of a layer grows with the batch size. Other operations may broadcast by mistake.
    if finding.code == "LG601" and evidence.setting is not None and evidence.oom.module:
        return (0 if evidence.is_single_sample else 4), 0, effort
    if finding.code in _MISTAKE_CODES:
        return 1, -finding.saves, effort
    if finding.code in _BLOCKING_CODES or finding.evidence.get("no_batch_fits"):
        return 0, 0, effort
    if finding.code == "LG603" and evidence.has_whole_input:
        return 6, 0, effort  # a different program; the other changes keep its results
    grows = finding.code in _RETAINED_GRAPH_CODES or "bytes_per_step" in finding.evidence
    if finding.code == "LG103" and finding.evidence.get("argument"):
        return 2, -finding.saves, effort  # includes a batch size that fits
    # If memory grows, earlier steps had enough memory. Other changes must free enough memory for the whole step.
    needed = evidence.shortfall if grows or finding.code == "LG603" else evidence.missing
    if finding.evidence.get("from_earlier_step") and evidence.fitted_before:
        needed = evidence.shortfall
    # In a later iteration, fragmentation may be the only problem. In the first one, and with a larger input than before,
    # the rest of the step needs memory too.
    is_like_earlier = not evidence.in_first_iteration and not evidence.has_varying_input
    is_only_fragmented = evidence.missing <= evidence.shortfall and is_like_earlier
    if finding.code == "LG607" and not is_only_fragmented:
        return 5, 0, effort
    # The next optimizer in the iteration may need more memory than this one.
    has_more = len(evidence.optimizers) > 1 and evidence.in_first_iteration
    is_uncertain = finding.code in ("LG102", "LG605", "LG606") and has_more
    if finding.saves < evidence.shortfall * NEGLIGIBLE and finding.code not in ("LG601", "LG605"):
        return 7, -finding.saves, effort
    if not finding.evidence.get("fits", True):
        is_uncertain = True
    saves = finding.evidence.get("saves_in_pass", finding.saves)
    if is_uncertain or saves < max(needed, evidence.oom.allocated // 20):
        return 4, -finding.saves, effort
    if not finding.code.startswith(("LG1", "LG2", "LG3")):
        return 3, 0, effort
    return 1 if grows else 2, -finding.saves, effort
