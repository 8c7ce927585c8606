"""Imports for the server from which runs are forked, so that each run starts within milliseconds.

`multiprocessing` starts the server as a new process; the launcher itself does not import torch.
"""

import signal
from contextlib import suppress

# A signal to the launcher's whole process group must not end the server while runs need it. It ends
# by itself with the launcher.
signal.signal(signal.SIGTERM, signal.SIG_IGN)

# An import that fails here fails again in the run that needs it, with its traceback in a log.
with suppress(Exception):
    import tst_study.train  # noqa: F401
