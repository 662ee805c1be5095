"""The entry point of the process that traces a script. It imports torch with the garbage collector paused."""

import sys
from multiprocessing.connection import Connection

from legroom.predict.tracing.pause_gc import gc_paused_during_imports

if __name__ == "__main__":
    with gc_paused_during_imports(lambda: True):
        from legroom.observe.exit_with_parent import exit_with_parent
        from legroom.predict.tracing.process import TracingProcess
    exit_with_parent()
    pipe = Connection(int(sys.argv[1]))
    TracingProcess(pipe.recv(), pipe).run()
