"""A run's folder. `reader` holds its schema and reads it, `writer` writes it, and `launch_facts`
collects what it records of each launch. `log` is what the training loop calls; `trackers` copy the
log to TensorBoard and W&B. Imports without torch."""
