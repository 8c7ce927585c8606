"""Measurements of a trained model. `run` loads a checkpoint and records the results, `domains`
measures held-out losses, `tasks` runs downstream tasks."""
