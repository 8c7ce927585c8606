"""From a study to the runs that will be made: each `planned_run` has its config, identity and
folder; `trunks` finds what several share; `planner` puts both together; `layouts` checks that they
can be trained; `table` and `cluster_sheet` print it, `detectable` says which effect its seeds
would find."""
