"""Optimizer state kept or reset at the switch; both arms share their trunk."""

from experiments.studies.grid import Part, against_baseline, main_of
from experiments.studies.scales import Scale

TITLE = "Optimizer state kept or reset at the switch"
CLAIMS = "What a reset of AdamW's moments costs; a public replication lost its whole gain by it."


def parts(scale: Scale) -> list[Part]:
    main = main_of(scale.is_paper)
    reset = main.model_copy(update={"optimizer_at_switch": "reset"})
    return [against_baseline(scale.setting, (main, reset), scale.seeds)]
