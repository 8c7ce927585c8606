"""A run's folder. `reader` holds its schema and reads it, `writer` writes it, and `launch_facts`
collects the facts that are recorded about each launch. `log` is what the training loop calls;
`trackers` copy the log to TensorBoard and W&B. Imports without torch."""
