"""The launcher of one machine: a `queue` of runs, each in a process that is forked from a
`warm_server`; `progress` shows them on the screen."""
