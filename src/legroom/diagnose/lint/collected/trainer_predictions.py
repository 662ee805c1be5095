"""Finds a Transformers `Trainer` that collects the logits of the whole evaluation set on the GPU (LG101)."""

import re
from collections.abc import Iterator

from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, is_true, keyword, last_name
from legroom.diagnose.lint.rule import Problem

_LARGE_LOGITS = re.compile(
    r"For(?:\w*CausalLM|\w*MaskedLM|Seq2SeqLM|CTC|SpeechSeq2Seq|SemanticSegmentation|ConditionalGeneration|PreTraining)$"
    r"|LMHeadModel$"
)
"""Models whose logits have one value per token and vocabulary entry, or per pixel and class."""


def collected_by_trainer(program: Program) -> Iterator[Problem]:
    """Find `Trainer(model, args, compute_metrics=...)` without `eval_accumulation_steps`.

    Without this option, the trainer copies the predictions to host memory only after the last batch.
    """
    if not program.mentions("compute_metrics") or not program.mentions("Trainer", "Seq2SeqTrainer"):
        return
    models = {name for name in program.imports.full_names if _LARGE_LOGITS.search(name)}
    if not models or not program.mentions(*models):
        return
    settings = [call for call in program.calls if _makes(call, "TrainingArguments")]
    if not settings or any(_limits_predictions(call) for call in settings):
        return
    for call in program.calls:
        if not _makes(call, "Trainer") or _has_unknown_arguments(call):
            continue
        metrics = keyword(call.node, "compute_metrics")
        if metrics is None or dotted(metrics.value) == "None":
            continue
        if keyword(call.node, "preprocess_logits_for_metrics") is None:
            yield Problem(
                node=metrics,
                message="The trainer collects the logits of the whole evaluation set on the GPU",
                help="Set `eval_accumulation_steps` in the training arguments, or reduce the logits with "
                "`preprocess_logits_for_metrics`",
            )


def _makes(call: CallFact, name: str) -> bool:
    made = last_name(call.name or "")
    return made in {name, f"Seq2Seq{name}"} and (call.name or "").startswith("transformers.")


def _limits_predictions(call: CallFact) -> bool:
    limits = ("eval_accumulation_steps", "batch_eval_metrics", "use_cpu", "no_cuda")
    return (
        _has_unknown_arguments(call)
        or any(keyword(call.node, name) is not None for name in limits)
        or any(
            is_true(keyword(call.node, name)) for name in ("prediction_loss_only", "predict_with_generate")
        )
    )


def _has_unknown_arguments(call: CallFact) -> bool:
    return any(each.star for each in call.node.args)
