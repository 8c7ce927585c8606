"""From a study to the runs that will be made: each `planned_run` has its config, identity and
folder; `trunks` finds what several share; `planner` puts both together. `layouts` says what each
gets, what that costs and whether it can be trained there; `detectable`, which effect its seeds
would find."""
