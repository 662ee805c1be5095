"""Finds the search space of a function that suggests its parameters itself, as in Optuna.

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        ...
        return loss

The function is traced once, and again with each option of each choice, because a branch in the function may suggest
further parameters. In a trace, integer parameters have their largest value, so that a loop over `range(layers)`
suggests the parameters of every layer.
"""

from collections.abc import Sequence

from legroom.errors import UsageError
from legroom.tuning.memory.admission import TrialGpu, virtual_gpus
from legroom.tuning.memory.tracer import CannotEstimate, Tracer
from legroom.tuning.space.domains import AnyDomain, Categorical
from legroom.tuning.space.space import Config, Space, read_space
from legroom.tuning.trial.function import TrainFunction

MAX_TRACES = 32


def suggested_space(function: TrainFunction, gpus: Sequence[TrialGpu]) -> Space:
    alike = list(gpus[:1]) or virtual_gpus("80GiB")
    tracer = Tracer(function, alike, 1)
    found: dict[str, AnyDomain] = {}
    configs: list[Config] = [{}]
    try:
        for config in configs:  # grows in the loop
            new = {name: domain for name, domain in tracer.suggestions(config).items() if name not in found}
            found |= new
            for name, domain in new.items():
                if isinstance(domain, Categorical) and len(configs) < MAX_TRACES:
                    configs += [{**config, name: option} for option in domain.options[1:]]
    except CannotEstimate as trouble:
        raise UsageError(
            f"The function's parameters could not be determined: {trouble}. Pass a space."
        ) from None
    finally:
        tracer.close()
    if not found:
        raise UsageError(
            "No space was given, and the function suggests no parameters. Pass a space, or call `trial.suggest_float(...)`."
        )
    return read_space(found)
