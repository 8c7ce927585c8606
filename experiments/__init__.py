"""Studies, the planner, the launchers and their verbs. Importing them does not import torch; only
`local/warm_server` does, and the processes that train.

In data-flow order: `studies/` says which runs a `study` has and which `corpora` they read;
`plan/` gives each its identity and folder and finds what several share; a
`launcher` has them trained, each in a `run_process`, on this machine (`local/`) or in Slurm's jobs
(`slurm/`); `state/` shows how far they are and says what came of them.
"""
