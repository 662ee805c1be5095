"""After an out-of-memory error: what to change, most useful first, each with its estimated effect.

Every rule looks at the same evidence (who held the memory at the failure, what was asked for, the history before). Rules of
`mistakes` name what a program keeps without need; rules of `means` name ways to make a sound run smaller. A mistake that
frees enough comes before any means, since the means would only postpone it.

`saves` is an estimate of the bytes that the change frees at that moment; what it stands on is said in the sentence.
"""

from legroom.diagnose.oom import memory_options, retained_memory
from legroom.diagnose.oom.evidence import Evidence, Rule
from legroom.findings import Finding

RULES: tuple[Rule, ...] = (
    memory_options.operation_larger_than_device,
    memory_options.weights_do_not_fit,
    retained_memory.grows_each_step,
    retained_memory.earlier_steps_graph,
    retained_memory.evaluates_with_gradients,
    retained_memory.held_by_container,
    retained_memory.held_by_variable,
    retained_memory.gradients_during_forward,
    memory_options.data_set_on_device,
    memory_options.fragmentation,
    memory_options.process_fraction,
    memory_options.others_on_device,
    memory_options.optimizer_state_does_not_fit,
    memory_options.optimizer_temporaries,
    memory_options.smaller_batch,
    memory_options.autocast,
    memory_options.checkpoint_activations,
    memory_options.spill_activations,
)
"""The cheapest to follow first."""

_NOTHING_ELSE_HELPS = ("LG601", "LG602")
_KEEPS_GRAPHS = ("LG101", "LG104", "LG201")
_SMALLER_GRAPHS = ("LG603", "LG401", "LG604", "LG613")


def advise(evidence: Evidence) -> tuple[Finding, ...]:
    """What to change: mistakes that free enough, then means that do, then what helps a little."""
    ranked = [
        (_usefulness(finding, evidence, price), finding)
        for price, rule in enumerate(RULES)
        for finding in rule(evidence)
        if finding.saves > 0 or finding.code in _NOTHING_ELSE_HELPS
    ]
    findings = [finding for _, finding in sorted(ranked, key=lambda pair: pair[0])]
    half = evidence.oom.allocated / 2
    if any(finding.code in _KEEPS_GRAPHS and finding.saves >= half for finding in findings):
        # To make each of the kept graphs smaller is then beside the point.
        findings = [finding for finding in findings if finding.code not in _SMALLER_GRAPHS]
    return tuple(findings)


def _usefulness(finding: Finding, evidence: Evidence, price: int) -> tuple[int, int, int]:
    """The smaller, the earlier it is told."""
    if finding.code in _NOTHING_ELSE_HELPS:
        return 0, 0, price
    helps_a_little = finding.saves < max(evidence.shortfall, evidence.oom.allocated // 20)
    # What lies in pieces may be all that is missing in a later step, but not half-way through the first.
    if helps_a_little or (finding.code == "LG607" and evidence.in_first_forward):
        return 4, -finding.saves, price
    if not finding.code.startswith(("LG1", "LG2")):
        return 3, 0, price
    grows = finding.code in _KEEPS_GRAPHS or "bytes_per_step" in finding.evidence  # and would grow further
    return 1 if grows else 2, -finding.saves, price
