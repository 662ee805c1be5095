"""`legroom.tune` as people call it: the search (see `legroom.tuning.api`) with its live table on stderr and its page at the end."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from legroom.log import say
from legroom.show.tune import html_report
from legroom.show.tune.live_table import LiveTable
from legroom.tuning import api
from legroom.tuning.study import Study

P = ParamSpec("P")


def write_files(study: Study) -> list[Path]:
    """The table as CSV, everything as JSON, and the page with the plots, in the study's folder."""
    table, everything = study.folder / "study.csv", study.folder / "study.json"
    study.to_csv(table)
    study.to_json(everything)
    html_report.write(study, study.page)
    return [table, everything, study.page]


def _shown(search: Callable[P, Study]) -> Callable[P, Study]:
    """The same function, watched by a live table unless the caller names watchers: `watchers=[]` is silent."""

    @functools.wraps(search)
    def shown(*arguments: P.args, **options: P.kwargs) -> Study:
        is_silent = options.get("watchers") is not None
        if not is_silent:
            options["watchers"] = [LiveTable()]
        study = search(*arguments, **options)
        write_files(study)
        if study.interrupted and not is_silent:
            say(f"interrupted; what there is, is kept in {study.folder}: the same with resume=True goes on")
        return study

    return shown


tune = _shown(api.tune)
