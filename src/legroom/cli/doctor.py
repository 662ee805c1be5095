"""`legroom doctor`: is this driver, CUDA, cuDNN and torch set-up sound?"""

import json
import sys

from legroom.cli.options import Format, FormatOption


def doctor(format: FormatOption = Format.TEXT) -> int:
    """Check driver, CUDA, torch, memory limits and settings, and compute on every device. Exit code 0 sound, 1 findings."""
    from legroom.diagnose.doctor.doctor import diagnose
    from legroom.show.common.progress import progress_line
    from legroom.show.common.terminal import print_to
    from legroom.show.explain.doctor import render_diagnosis

    with progress_line(sys.stderr, quiet=format == Format.JSON) as say:
        say("computing on every device")
        told = diagnose()
    if format == Format.JSON:
        print(json.dumps(told.as_json(), indent=2))
    else:
        print_to(sys.stdout, render_diagnosis(told))
    return 0 if told.is_sound else 1
