"""`legroom.tune` as people call it: the search (see `legroom.tuning.api`) with its live table on stderr."""

import functools
from collections.abc import Callable
from typing import ParamSpec

from legroom.show.tune_table import LiveTable
from legroom.tuning import api
from legroom.tuning.study import Study

P = ParamSpec("P")


def _shown(search: Callable[P, Study]) -> Callable[P, Study]:
    """The same function, watched by a live table unless the caller names watchers: `watchers=[]` is silent."""

    @functools.wraps(search)
    def shown(*arguments: P.args, **options: P.kwargs) -> Study:
        if options.get("watchers") is None:
            table = LiveTable(
                str(options.get("metric", "loss")), "max" if options.get("mode") == "max" else "min"
            )
            options["watchers"] = [table]
        return search(*arguments, **options)

    return shown


tune = _shown(api.tune)
