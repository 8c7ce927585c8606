"""Exports trained models as ordinary Hugging Face models, and starts runs from such models.

    tokenizer_files.py  the tokenizer as the run used it
    model_card.py       the README.md of an export
    export.py           writes weights, configuration, tokenizer and model card into one folder
    start.py            loads the weights of a Hugging Face model into the model of a run

config/architecture.py makes config.json, and config/tensor_names.py says from which part of a
Megatron tensor each exported tensor is made. Only export.py and start.py need torch.
"""
