"""What to run: one file per study, the planner, the launchers and the verbs. Torch-free.

The data flow, file by file: `studies/` says which runs a `study` has and which `corpora` they read;
`planner` gives each run its identity and folder, `trunks` finds what several runs share;
`launcher_local` trains them in child processes (`run_process`), `slurm/` in jobs; `status`,
`progress` and `logs` show how far they are; `collect` says what came of them.
"""
