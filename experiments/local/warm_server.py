"""Imports torch and the trainer into the fork server, from which the processes of runs on CPUs are
forked, so that each of them starts within milliseconds.

`multiprocessing` starts the server as a new process and imports this module there; the launcher
itself does not import torch (`queue._context`).
"""

import signal
from contextlib import suppress

# A signal to the launcher's whole process group must not end the server while runs need it. The
# server ends by itself when the launcher does.
signal.signal(signal.SIGTERM, signal.SIG_IGN)

# An import that fails here fails again in every run, and then its traceback is in the run's log.
with suppress(Exception):
    import tst_study.train  # noqa: F401
