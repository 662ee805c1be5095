"""The public `legroom.tune`: the search (see `legroom.tuning.api`) with a live table on stderr and a report at the
end.
"""

import functools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import ParamSpec

from legroom.log import say
from legroom.show.tune import html_report
from legroom.show.tune.live_table import LiveTable
from legroom.show.tune.study_summary import ShownStudy
from legroom.tuning import api
from legroom.tuning.study import Study

P = ParamSpec("P")


def write_files(study: Study) -> list[Path]:
    table, everything = study.folder / "study.csv", study.folder / "study.json"
    study.to_csv(table)
    study.to_json(everything)
    html_report.write(study, study.report_path)
    return [table, everything, study.report_path]


def _shown(search: Callable[P, Study]) -> Callable[P, Study]:
    """Add a live table to the search, unless the caller passes callbacks. With `callbacks=[]`, nothing is printed.
    After Ctrl-C, the results are written before `KeyboardInterrupt` is raised.
    """

    @functools.wraps(search)
    def shown(*arguments: P.args, **options: P.kwargs) -> Study:
        is_silent = options.get("callbacks") is not None
        if not is_silent:
            options["callbacks"] = [LiveTable()]
        study = search(*arguments, **options)
        write_files(study)
        if study.interrupted:
            if not is_silent:
                say(f"Interrupted. Results are in {study.folder}; continue with `resume=True`.")
            raise KeyboardInterrupt
        return ShownStudy(**{each.name: getattr(study, each.name) for each in fields(study)})

    return shown


tune = _shown(api.tune)
