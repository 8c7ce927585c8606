"""A run's folder: the `reader` with its schema, the `lock` on it, the `launch_facts` of each
launch, the `log` of its steps, the `trackers` that copy them, the `writer` of its files. Torch-
free."""
