"""Study `data-constrained`: little text, read many times. The grid is unique tokens × epochs × four
arms: the baseline, and superposition on both sides, at the input only, and at the output only.

All four arms cost the same FLOPs. The arms that read bags at the input read 1 + r(s − 1) times as
much text as the baseline, and so repeat it more often."""

from collections.abc import Sequence

from tst_study.experiments.corpora import DCLM, FINEWEB_EDU, Books, Recipe, Text
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
                setting = scale.setting.with_corpus(recipe, f"{tokens // 1000}k")
                setting = setting.with_steps(steps)
                parts_by_epochs.append(against_baseline(setting, arms, scale.seeds))
    return parts_by_epochs


def _texts(scale: Scale) -> Sequence[tuple[Recipe, int]]:
    """Return corpora, each with its approximate number of tokens. A run's record holds the exact
    number (`unique_raw_tokens`)."""
    if isinstance(scale.setting.texts[0], Text):
        whole, sizes = (DCLM, (20, 80, 320)) if scale.is_paper else (FINEWEB_EDU, (2, 8, 32))
        return [_hub_text(whole, gigabytes) for gigabytes in sizes]
    megabytes = {"smoke": (1,), "quick": (1, 2), "laptop": (2, 8)}.get(scale.name, (2, 8, 32))
    # The bundled prose has 370,000 tokens per megabyte: 50.0 million tokens in 135.3 MB of records,
    # at a vocabulary of 1,024.
    return [(Books(megabytes=size), size * 370_000) for size in megabytes]


def _hub_text(whole: Text, gigabytes: int) -> tuple[Recipe, int]:
    """Return the first gigabytes of a corpus, and about how many tokens they hold: a token of
    Llama-3's tokenizer is about 4.5 bytes of English."""
    limit = gigabytes * 10**9
    recipe = Text(f"{whole.name}-{gigabytes}GB", whole.source, whole.tokenizer, limit)
    return recipe, round(limit / 4.5)


STUDY = Declared(
    "Little text, read many times",
    "Which method to take when text is scarce: at equal FLOPs and equal unique tokens.",
    parts,
)
