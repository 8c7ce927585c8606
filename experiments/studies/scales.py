"""One set-up per scale, and how much of a study's axes each scale affords.

| scale | trains | on |
| --- | --- | --- |
| `smoke` | 200 steps: does everything work? | two cores, a minute |
| `quick` | 1,500 steps of prose | two cores, minutes |
| `laptop` | 5,000 steps of prose | two cores, an hour or so |
| `desktop` | 10,000 steps of prose, the whole axes | two cores, a night |
| `one-gpu` | the 270M shape, 10,000 steps of 2^18 tokens of FineWeb-Edu | one GPU, days |
| `paper` | the paper's runs | its clusters |

A study may set other lengths: `laptop` trains 20,000 steps of prose at scale `laptop`, say.

What the paper does not state of its runs is named here: the sequence length of the dense ones
(2,048 is SmolLM2's, and gives the batch of 2^21 tokens with 1,024 sequences), weight decay,
clipping, initialisation and seeds (`tst_study`'s defaults).
"""

from dataclasses import dataclass

from tst_study.config.schema import Parallel, SuperposedPhase
from tst_study.experiments.corpora import Books, HubText
from tst_study.experiments.studies.setting import Setting

PILOT_CHANGES = ("schedule.decay_ratio=0.3", "model.qk_norm=true")
"""The pilot sweep's choices, other than the learning rate."""
AS_RECORDED = 'data.held_out="beginning"'
"""The held-out text of the committed runs at the scales `laptop` and `desktop`."""
SCALES = ("smoke", "quick", "laptop", "desktop", "one-gpu", "paper")
FINEWEB_EDU = HubText(
    "fineweb-edu-llama3",
    "hf://HuggingFaceFW/fineweb-edu/sample-100BT:train",
    "meta-llama/Meta-Llama-3-8B",
)

PAPER_MAIN = SuperposedPhase(bag_size=6, step_ratio=0.3)
"""The paper's headline setting."""
SMALL_MAIN = SuperposedPhase(bag_size=4, step_ratio=0.25)
"""Within what the paper recommends; a pilot on two cores had s = 4, r = 0.2."""
DCLM = HubText("dclm-llama3", "hf://mlfoundations/dclm-baseline-1.0", "meta-llama/Meta-Llama-3-8B")
VALIDATION_TOKENS = 8_388_608
WARMUP_STEPS = 2_000


def main_with(**changes: object) -> SuperposedPhase:
    """Return `SMALL_MAIN` with other values for some of its keys."""
    return SuperposedPhase.model_validate({**SMALL_MAIN.model_dump(), **changes})


def _dense(model: str, steps: int, learning_rate: float) -> Setting:
    return Setting(
        model=model,
        corpora=(DCLM,),
        sequences=1024,
        sequence_length=2048,
        steps=steps,
        warmup_steps=WARMUP_STEPS,
        learning_rate=learning_rate,
        dtype="bfloat16",
        parallel=Parallel(optimizer="distributed", overlap_gradients=True),
        validation_tokens=VALIDATION_TOKENS,
    )


DENSE_270M = _dense("270m", 20_000, 2e-3)
DENSE_270M_LONG = DENSE_270M.with_steps(100_000)
DENSE_600M = _dense("600m", 20_000, 1e-3)
DENSE_3B = _dense("3b", 20_000, 2e-4)


@dataclass(frozen=True)
class Scale:
    name: str
    setting: Setting
    seeds: range
    bag_sizes: tuple[int, ...]
    step_ratios: tuple[float, ...]
    caveat: str = ""
    """A limit of every study at this scale."""

    @property
    def is_paper(self) -> bool:
        return self.name == "paper"

    @property
    def main(self) -> SuperposedPhase:
        return PAPER_MAIN if self.is_paper else SMALL_MAIN

    def setting_of(self, paper: Setting) -> Setting:
        """Return the scale's own set-up; at scale `paper`, the one that is given."""
        return paper if self.is_paper else self.setting


def _prose(
    steps: int, warmup_steps: int, shards: int | None, validation_tokens: int, *recorded: str
) -> Setting:
    """The bundled books, two layers, where the pilot sweep found the baseline at its best
    (docs/research/campaign.md, G0).

    The warm-up is a scale's, not a length's: lengths share their stable phase, and a comparison
    of lengths is not one of warm-ups.
    """
    return Setting(
        model="laptop-64",
        corpora=(Books(shards=shards),),
        sequences=16,
        sequence_length=64,
        steps=steps,
        warmup_steps=warmup_steps,
        learning_rate=2e-3,
        threads=1,
        validation_tokens=validation_tokens,
        device="cpu",  # two layers do not pay on a GPU
        changes=(*PILOT_CHANGES, *recorded),
    )


_ONE_GPU = Setting(
    model="270m",
    corpora=(FINEWEB_EDU,),
    sequences=128,
    sequence_length=2048,
    steps=10_000,
    warmup_steps=500,
    learning_rate=1e-3,
    dtype="bfloat16",
    validation_tokens=4_194_304,
)
TENTHS = tuple(tenth / 10 for tenth in range(1, 11))

_SCALES = (
    Scale(
        "smoke",
        _prose(200, 15, 1, 16_384),
        range(1),
        (2, 4),
        (0.2, 0.4),
        "Runs of a few hundred steps show that everything works, and nothing about the method.",
    ),
    Scale(
        "quick",
        _prose(1_500, 100, 1, 65_536),
        range(3),
        (2, 4, 8),
        (0.2, 0.4),
        "A first look: trained this briefly, superposition loses on prose (docs/findings.md).",
    ),
    # Fresh seeds: 0 to 2 were looked at while the campaign was planned.
    Scale(
        "laptop",
        _prose(5_000, 500, None, 262_144, AS_RECORDED),
        range(3, 6),
        (2, 4, 8, 16),
        TENTHS[:4],
    ),
    Scale(
        "desktop",
        _prose(10_000, 500, None, 262_144, AS_RECORDED),
        range(3, 7),
        (2, 3, 4, 6, 8, 12, 16),
        TENTHS[:6],
    ),
    Scale("one-gpu", _ONE_GPU, range(3), (2, 4, 6, 8, 12, 16), TENTHS[:6]),
    Scale("paper", DENSE_270M, range(1), tuple(range(2, 17)), TENTHS),
)


def scale_of(name: str) -> Scale:
    return next(scale for scale in _SCALES if scale.name == name)
