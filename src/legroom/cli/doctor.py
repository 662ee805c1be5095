"""`legroom doctor`: checks the driver and the installation of CUDA, cuDNN and PyTorch."""

import json
import sys

from legroom.cli.options import Format, FormatOption


def doctor(format: FormatOption = Format.TEXT) -> int:
    """Check the driver, CUDA, PyTorch, memory limits and settings, and run a test computation on every device.

    Exit code: 0 if no problems are found, 1 otherwise.
    """
    from legroom.diagnose.doctor.doctor import diagnose
    from legroom.show.common.progress import progress_line
    from legroom.show.common.terminal import print_to
    from legroom.show.explain.doctor import render_diagnosis

    with progress_line(sys.stderr, quiet=format == Format.JSON) as progress:
        progress("Checking every device")
        diagnosis = diagnose()
    if format == Format.JSON:
        print(json.dumps(diagnosis.as_json(), indent=2))
    else:
        print_to(sys.stdout, render_diagnosis(diagnosis))
    return 0 if diagnosis.is_ok else 1
