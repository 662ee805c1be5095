"""Where the process that traces a script begins: with torch, which is imported while the cycle collector rests."""

import json
import sys

from legroom.predict.tracing.pause_gc import resting_during_imports

if __name__ == "__main__":
    with resting_during_imports(lambda: True):
        from legroom.observe.exit_with_parent import exit_with_parent
        from legroom.predict.tracing.process import TracingProcess
    exit_with_parent()
    TracingProcess(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).run()
