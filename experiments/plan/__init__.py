"""From a study to the runs that will be made: each `planned_run` has its config, identity and
folder; the `planner` finds what several share. `layouts` says which ranks and GPUs each gets, what
memory its layout needs and whether it can be trained there; `plan_table` prints runs, costs and
states."""
