"""From a study to the runs that will be made: each `planned_run` has its config, identity and
folder; `trunks` finds what several share; `planner` puts both together; `allocation` is what each
gets and `layouts` checks that it can be trained there; `cluster_sheet` prints it for a cluster,
`timing` trains a few steps for its hours, `detectable` says which effect its seeds would find."""
