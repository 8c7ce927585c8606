"""A run's folder: its schema and `reader`, its `writer`, the `launch_facts` of each launch, the
`log` that a launch keeps, and the `trackers` that copy the log. Torch-free."""
