"""A training process and its surroundings. `rank_environment`: the environment variables for its
rank and for GPUs. `local_ranks`: the start of several ranks on this machine. `host`: cores, memory
and requests to stop. `step_clock`: the time that training steps take."""
