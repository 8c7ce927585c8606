"""Token Superposition Training: single runs, studies of many runs, and the analysis of both.

One run, in the order of the data flow: `config/` says what a run is, and `cost/` estimates its
FLOPs and memory; `data/` holds its text, `superposition/` the method, `model/` the decoder built on
Megatron-Core; `parallel/` computes a step over ranks; `train` is the loop, inside a `process/`;
`checkpoints/` and `record/` write the run folder; `evaluation/` and `huggingface/` use trained
runs. `experiments/` trains the runs of a study, `analysis/` compares runs, and `paper_figures/`
draws them. `command_line` is the program `tst-study`; its verbs are in the `cli` of each package,
those for one run in `tst_study.cli`.
"""

__version__ = "0.1.0"
