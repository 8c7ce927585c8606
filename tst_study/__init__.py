"""Token Superposition Training: single runs, studies of many runs, and the analysis of both.

One run, in the order of the data flow: `config/` says what a run is, and `cost/` estimates its
FLOPs and memory. `data/` prepares and reads its text, `superposition/` is the method, and `model/`
the decoder, built on Megatron-Core. `parallel/` computes a step over ranks, `train` is the loop,
and `process/` looks after the process that it runs in. `checkpoints/` and `record/` write the run
folder. `evaluation/` measures trained runs; `huggingface/` exports them, and starts runs from
Hugging Face models. `conformance/` checks other implementations of the method.

Many runs: `experiments/` trains the runs of a study, `analysis/` compares them, and
`paper_figures/` draws them. `command_line` is the program `tst-study`. Its verbs are in the module
`cli` of each of these three packages, and those for one run in `tst_study.cli`.
"""

__version__ = "0.1.0"
