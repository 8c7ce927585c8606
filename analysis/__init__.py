"""Run folders → tables → comparisons. pandas and scipy; never torch, megatron or submitit.

`run_table` reads; `comparison`, `equal_loss` and `learning_rate` answer; `summary` says it.
"""
