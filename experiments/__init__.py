"""Studies, and the code that plans, trains and watches their runs.

In the order of the data's flow: `studies/` says which runs each `study` has and which `corpora` the
runs read. `plan/` gives each run its identity and folder, and finds steps that several runs share.
A `launcher` starts the runs, on this machine (`local/`) or as Slurm's jobs (`slurm/`); what the
process of a run does in either case is in `run_process`. `state/` shows how far the runs are, and
collects their results. `cli` has the commands for all this.

Importing these modules does not import torch, except for `local/warm_server`. Processes that train
import torch when they begin, unless they are forked from that server, which has imported it.
"""
