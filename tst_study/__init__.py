"""Token Superposition Training: one training job, from configuration to run record.

In the order of the data flow: a `config` (`configuration/` has what follows from it) becomes a
`run/` on disk; `cost/` says beforehand what it takes; `data/` holds its text, `superposition/` the
method, `megatron/` model, optimizer and checkpoints; `train` is the loop, in a `process/`, with
`timed_events` for what the clock decides; `checkpoints/`, `evaluation/` and `huggingface/` serve
what it leaves; `run_record` reads it back; `cli` has the
verbs that a person types, which the `command_line` finds, those of the other packages too.
"""

__version__ = "0.1.0"
