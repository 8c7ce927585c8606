import sys
from pathlib import Path

# As `python -P` has it: a folder of the user's called `analysis` must not stand in for ours.
if not sys.flags.safe_path and sys.path[0] != str(Path(__file__).parents[1]):
    del sys.path[0]

from tst_study.command_line import main

if __name__ == "__main__":
    main()
