"""Losses and task results of a trained model: `evaluate` measures a model that is in memory; `run`
loads a run's checkpoint first; `domains` and `tasks` ask for more than one loss."""
