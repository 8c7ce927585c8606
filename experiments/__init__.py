"""What to run: one file per study, the planner, the launchers and the verbs. Torch-free.

The data flow, file by file: `studies/` says which runs a `study` has and which `corpora` they read;
`planned_run` gives each its identity and folder, `trunks` finds what several share, `planner` puts
both together; a `launcher` has them trained: `launcher_local` in child processes (`local_queue`,
`run_process`), `slurm/` in jobs; `status`, `progress` and `logs` show how far they are; `collect`
says what came of them.
"""
