"""Study `data-constrained`: little text, read many times. The grid is unique tokens × epochs × four
arms: the baseline, and superposition on both sides, at the input only, and at the output only.

All four arms cost the same FLOPs. The arms that read bags at the input read 1 + r(s − 1) times as
much text as the baseline, and so repeat it more often."""

from collections.abc import Sequence

from tst_study.experiments.corpora import DCLM, FINEWEB_EDU, Books, Recipe
from tst_study.experiments.studies.grid import Declared, Part, against_baseline
from tst_study.experiments.studies.scales import Scale

EPOCHS = (1, 4, 16)
"""The numbers of times that the baseline reads the text."""


def parts(scale: Scale) -> list[Part]:
    """Return a part for each amount of text and number of epochs, as far as the scale affords
    them."""
    full = scale.main
    modes = ("full", "input_only", "output_only")
    arms = [full.model_copy(update={"mode": mode}) for mode in modes]
    parts_by_epochs = []
    for recipe, tokens in _texts(scale):
        for epochs in EPOCHS if scale.name != "smoke" else EPOCHS[:2]:
            positions = scale.setting.sequences * scale.setting["batch.sequence_length"]
            steps = round(tokens * epochs / positions)
            # Leave out runs shorter than twice their warm-up, and runs of more than eight times the
            # scale's steps.
            if 2 * scale.setting["schedule.warmup_steps"] <= steps <= 8 * scale.setting.steps:
                setting = scale.setting.with_text(recipe).with_steps(steps)
                setting = setting.changed(f"{tokens // 1000}k", {})
                parts_by_epochs.append(against_baseline(setting, arms, scale.seeds))
    return parts_by_epochs


def _texts(scale: Scale) -> Sequence[tuple[Recipe, int]]:
    """Return corpora, each with its approximate number of tokens. A run's record holds the exact
    number (`unique_raw_tokens`)."""
    if scale.name in ("one-gpu", "paper"):
        # A token of Llama-3's tokenizer is about 4.5 bytes of English.
        whole, sizes = (DCLM, (20, 80, 320)) if scale.is_paper else (FINEWEB_EDU, (2, 8, 32))
        return [(whole.first(size), round(size * 10**9 / 4.5)) for size in sizes]
    megabytes = {"smoke": (1,), "quick": (1, 2), "laptop": (2, 8)}.get(scale.name, (2, 8, 32))
    # The bundled prose has 370,000 tokens per megabyte: 50.0 million tokens in 135.3 MB of records,
    # at a vocabulary of 1,024.
    return [(Books(megabytes=size), size * 370_000) for size in megabytes]


STUDY = Declared(
    "Little text, read many times",
    "Which method to take when text is scarce: at equal FLOPs and equal unique tokens.",
    parts,
)
