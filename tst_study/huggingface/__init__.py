"""Trained models as ordinary Hugging Face models, and such models as the beginning of a run.

    tensor_names.py     the part of a Megatron tensor that each tensor of an export is
    tokenizer_files.py  the tokenizer as the run used it
    model_card.py       the README.md of an export
    export.py           writes weights, configuration, tokenizer and model card into one folder
    start.py            loads the weights of such a folder into the model of a run

config/architecture.py makes config.json. Only export.py and start.py need torch.
"""
