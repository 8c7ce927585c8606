"""Trained models as ordinary Hugging Face models, and back.

    architecture.py     which of transformers' architectures a model is; its config.json, both ways
    tensor_names.py     which part of which Megatron tensor every tensor of an export is
    tokenizer_files.py  the tokenizer as the run used it
    model_card.py       README.md
    export.py           all of these, and the weights, tensor by tensor, into one folder
    weights.py          the other way: an export, or any such model, as Megatron's tensors
    import_model.py     a run's configuration that starts from it

Only export.py and weights.py need torch.
"""

from importlib.util import find_spec

from tst_study.errors import UserError


def need_safetensors() -> None:
    """Raises `UserError` where the library is not installed: it is an extra."""
    if find_spec("safetensors") is None:
        raise UserError("safetensors is not installed; pip install 'tst-study[export]'")
