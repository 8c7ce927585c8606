"""The launcher of one machine: a `queue` of runs, each in a process forked from a `warm_server`,
with its `progress` on the screen."""
