"""A training process and its surroundings. `rank_environment`: its rank among others, from the
environment. `local_ranks`: starts several ranks on this machine. `host`: cores, memory and requests
to stop. `step_clock`: times its steps."""
