"""Losses and task results of a trained model: `evaluate` measures a model that is in memory; `run`
loads a run's checkpoint first; `domains`, `tasks` and `context_checks` ask for more than one
loss."""
