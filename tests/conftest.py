"""What all tests share."""

import os
import signal

os.environ.setdefault("LEGROOM_CACHE", "off")  # tests neither read nor write what runs remember

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every process they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
