"""Token Superposition Training: one training job, from configuration to run record.

In the order of the data flow: `config/` says what a run is; `cost/` says beforehand what it takes;
`data/` holds its text, `superposition/` the method, `model/` Megatron's layers, `parallel/` a step
over ranks, `checkpoints/` its weights on disk, `record/` its folder; `train` is the loop, in a
`process/`; `evaluation/` and `huggingface/` serve what it leaves. `cli` has the verbs that a person
types, which the `command_line` finds, those of the other packages too.
"""

__version__ = "0.1.0"
