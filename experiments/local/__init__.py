"""The launcher that trains runs on this machine (`local_launcher`).

Its `queue` gives each run a process per rank. Processes on CPUs are forked from a `warm_server`.
`progress` shows the runs on the screen.
"""
