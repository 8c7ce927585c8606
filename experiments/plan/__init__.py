"""From a study to the runs that will be made: each `planned_run` has its config, identity and
folder; `trunks` finds what several share; `planner` puts both together. `layouts` says what each
gets and whether it can be trained there, `prices` what that costs, `detectable` which effect its
seeds would find."""
