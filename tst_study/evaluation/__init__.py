"""Measurements of a trained model, for `tst-study evaluate`: `run` loads a checkpoint and records
the results, `domains` measures held-out losses, and `tasks` runs downstream tasks."""
