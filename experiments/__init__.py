"""Studies, and the code that plans, trains and watches their runs.

In the order of the data's flow: `studies/` says which runs each `study` has and which `corpora` the
runs read. `plan/` gives each run its identity and folder, and finds steps that several runs share.
A `launcher` starts the runs, on this machine (`local/`) or as Slurm's jobs (`slurm/`); what the
process of a run does in either case is in `run_process`; in jobs, `rank` is such a process,
`code_copy` keeps the code that it runs, and `launches` counts how often it began. `state/` shows
how far the runs are, and collects their results. `cli` has the commands for all this.

Importing these modules does not import torch, except for `local/warm_server`. Processes that train
import torch when they begin, unless they are forked from that server, which has imported it.
"""

from typing import TYPE_CHECKING

from tst_study import loaded_on_first_use

if TYPE_CHECKING:
    from tst_study.analysis.verdict.question import Arm, Question
    from tst_study.experiments.corpora import Text
    from tst_study.experiments.studies.grid import Declared, Part, Tuning
    from tst_study.experiments.studies.setting import BASELINE, Setting

_HOME = {
    "BASELINE": "experiments.studies.setting",
    "Arm": "analysis.verdict.question",
    "Declared": "experiments.studies.grid",
    "Part": "experiments.studies.grid",
    "Question": "analysis.verdict.question",
    "Setting": "experiments.studies.setting",
    "Text": "experiments.corpora",
    "Tuning": "experiments.studies.grid",
}
__all__ = ["BASELINE", "Arm", "Declared", "Part", "Question", "Setting", "Text", "Tuning"]
"""What a study in Python is made of (docs/your_own_study.md)."""
# `tst-study --help` imports this package and must answer at once.
__getattr__, __dir__ = loaded_on_first_use(__name__, _HOME)
