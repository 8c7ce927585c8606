"""A run's configuration that starts from a Hugging Face model instead of drawn weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tst_study.config import Config, apply_override, from_dict, read_toml
from tst_study.errors import UserError
from tst_study.huggingface.architecture import from_huggingface, read_config


def config_from_model(
    folder: str | Path, rest: str | Path | None, overrides: Sequence[str] = ()
) -> Config:
    """The configuration of a run that starts from the weights in `folder`.

    Args:
        folder: config.json and safetensors, as `hf download` or `tst-study export` writes them.
        rest: a TOML file with everything else: data, batch, optimizer, schedule. Its `model` may
            say what has no bearing on the shape, such as `experts.balance_loss`.
        overrides: as of `tst-study train --set`.

    Raises:
        UserError: the folder holds no model that this package can be, the weights do not fit
            it, or the rest is incomplete.
    """
    folder = Path(folder)
    model = from_huggingface(read_config(folder), str(folder / "config.json"))

    from tst_study.huggingface.weights import HuggingFaceWeights, fingerprint

    HuggingFaceWeights(folder, model)  # raises where a tensor is missing or of another shape
    values: dict[str, Any] = {} if rest is None else read_toml(rest)
    more = values.get("model", {})
    shape = model.model_dump(mode="json")
    values["model"] = _merged(shape, more) if isinstance(more, Mapping) else more
    values["initial_weights"] = {"path": str(folder), "fingerprint": fingerprint(folder)}
    for override in overrides:
        apply_override(values, override)
    config = from_dict(values, source=str(rest or "--set"))
    for key, value in model.model_dump().items():
        changed = getattr(config.model, key) != value
        if changed and key not in ("experts", "initial_deviation"):
            raise UserError(
                f"model.{key} = {getattr(config.model, key)}: {folder} has {value}; leave it out"
            )
    return config


def _merged(whole: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` over `whole`, nested."""
    merged = dict(whole)
    for key, value in more.items():
        inner = merged.get(key)
        both = isinstance(inner, dict) and isinstance(value, Mapping)
        merged[key] = _merged(inner, value) if both and inner is not None else value
    return merged
