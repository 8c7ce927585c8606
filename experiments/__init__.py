"""What to run: one file per study, the planner, the launcher and the status table. Torch-free.

The data flow, file by file: `laptop` says which runs a `study` has and which `corpora` they read;
`planner` gives each run its identity and folder; `launcher_local` trains them in child processes
(`run_process`); `status` and `progress` show how far they are.
"""
