"""From a study to the runs that will be made: each `planned_run` has its config, identity and
folder; the `planner` finds what several share. `layouts` says what each gets, what that costs and
whether it can be trained there; `plan_table` prints all of it."""
