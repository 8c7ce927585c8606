"""From a study to the runs that will be trained.

The `planner` lists the runs, and finds steps that several of them share. A `planned_run` is one
run, with its config, identity and folder. `layouts` says which ranks and GPUs each run gets, how
much memory its layout needs, and whether the run can be trained there.
"""
