"""Imported once by the server that runs are forked from, so that each starts within milliseconds.

The launcher itself stays without torch; `multiprocessing` starts this server as a fresh process.
"""

import signal
from contextlib import suppress

# Whoever stops the launcher's whole process group must not stop the server under the runs' feet;
# it ends by itself with the launcher.
signal.signal(signal.SIGTERM, signal.SIG_IGN)

# What fails here fails again, with its traceback in a log, in the run that needs it.
with suppress(Exception):
    import tst_study.train  # noqa: F401
