"""Little text, read many times: unique tokens × epochs × {baseline, full, input-only,
output-only}.

All four arms cost the same FLOPs; those with bags as input read 1 + r(s − 1) times the text, and
so repeat it more often.
"""

from collections.abc import Sequence

from tst_study.experiments.corpora import Books, HubText, Recipe
from tst_study.experiments.studies.grid import Declared, Part, against_baseline
from tst_study.experiments.studies.scales import DCLM, FINEWEB_EDU, Scale

EPOCHS = (1, 4, 16)
"""Epochs of the baseline."""


def parts(scale: Scale) -> list[Part]:
    full = scale.main
    modes = ("full", "input_only", "output_only")
    arms = [full.model_copy(update={"mode": mode}) for mode in modes]
    parts_by_epochs = []
    for recipe, tokens in _texts(scale):
        for epochs in EPOCHS if scale.name != "smoke" else EPOCHS[:2]:
            positions = scale.setting.sequences * scale.setting.sequence_length
            steps = round(tokens * epochs / positions)
            # Leave out runs shorter than twice their warm-up, and those of more than eight times
            # the scale's steps.
            if 2 * scale.setting.warmup_steps <= steps <= 8 * scale.setting.steps:
                setting = scale.setting.with_corpus(recipe, f"{tokens // 1000}k")
                setting = setting.with_steps(steps)
                parts_by_epochs.append(against_baseline(setting, arms, scale.seeds))
    return parts_by_epochs


def _texts(scale: Scale) -> Sequence[tuple[Recipe, int]]:
    """Corpora and about how many tokens of each are unique; the record holds the exact number."""
    if isinstance(scale.setting.corpora[0], HubText):
        whole, sizes = (DCLM, (20, 80, 320)) if scale.is_paper else (FINEWEB_EDU, (2, 8, 32))
        return [_hub_text(whole, gigabytes) for gigabytes in sizes]
    megabytes = {"smoke": (1,), "quick": (1, 2), "laptop": (2, 8)}.get(scale.name, (2, 8, 32))
    # 50.0 million tokens in 135.3 MB of the bundled prose's records, at a vocabulary of 1,024.
    return [(Books(megabytes=size), size * 370_000) for size in megabytes]


def _hub_text(whole: HubText, gigabytes: int) -> tuple[Recipe, int]:
    """Return the corpus's first gigabytes, and about how many tokens they are: a token of Llama-3
    is about 4.5 bytes of English."""
    limit = gigabytes * 10**9
    recipe = HubText(f"{whole.name}-{gigabytes}GB", whole.source, whole.tokenizer, limit)
    return recipe, round(limit / 4.5)


STUDY = Declared(
    "Little text, read many times",
    "Which method to take when text is short: at equal FLOPs and equal unique tokens.",
    parts,
)
