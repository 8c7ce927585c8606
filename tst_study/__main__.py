"""Runs the program `tst-study` when it is called as `python -m tst_study`."""

import sys
from pathlib import Path

# As under `python -P`: a file of the working directory, such as `datasets.py`, must not be imported
# in place of a library.
if not sys.flags.safe_path and sys.path[0] != str(Path(__file__).parents[1]):
    del sys.path[0]

from tst_study.command_line import main

if __name__ == "__main__":
    main()
