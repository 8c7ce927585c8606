"""Trained models as ordinary Hugging Face models, and such models as the beginning of a run.

    tensor_names.py     which part of which Megatron tensor every tensor of an export is
    tokenizer_files.py  the tokenizer as the run used it
    model_card.py       README.md
    export.py           all of these, and the weights, into one folder
    start.py            the weights of a folder, into the model of a run

config/architecture.py has config.json. Only export.py and start.py need torch.
"""
