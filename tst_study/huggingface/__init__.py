"""Trained models as ordinary Hugging Face models.

    architecture.py     which of transformers' architectures a model is; its config.json
    tensor_names.py     which part of which Megatron tensor every tensor of an export is
    tokenizer_files.py  the tokenizer as the run used it
    model_card.py       README.md
    export.py           all of these, and the weights, into one folder

Only export.py needs torch.
"""
