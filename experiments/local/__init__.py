"""The launcher of one machine: a `queue` of runs, each with a process per rank. Processes on CPUs
are forked from a `warm_server`. `progress` shows the runs on the screen."""
