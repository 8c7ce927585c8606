"""The scales at which studies can be run: for each a set-up, its seeds, and the values of s and r.

| scale | trains for | on |
| --- | --- | --- |
| `smoke` | 200 steps: does everything work? | two cores, a minute |
| `quick` | 1,500 steps of prose | two cores, minutes |
| `laptop` | 5,000 steps of prose | two cores, an hour or so |
| `desktop` | 10,000 steps of prose, more values of s and r | two cores, a night |
| `one-gpu` | the 270M shape, 10,000 steps of 2^18 tokens of FineWeb-Edu | one GPU, days |
| `paper` | the lengths of the paper's runs | the paper's clusters |

A study may set other lengths. For example, the study `laptop` trains 20,000 steps of prose at scale
`laptop`.

The paper does not state some things about its runs. For the sequence length of the dense runs we
assume 2,048, which is SmolLM2's; with 1,024 sequences it gives the batch of 2^21 tokens. Weight
decay, gradient clipping, initialisation and seeds are `tst_study`'s defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tst_study.config.schema import SuperposedPhase
from tst_study.experiments.corpora import DCLM, FINEWEB_EDU, Books, Recipe
from tst_study.experiments.studies.setting import Setting

PILOT_CHOICES = {"schedule.decay_ratio": 0.3, "model.qk_norm": True}
"""The choices of the pilot sweep (`gate`) besides the learning rate, by key of the config."""
AS_RECORDED = {"data.held_out": "beginning"}
"""The value that keeps the first campaign's held-out text at scales `laptop` and `desktop`. The
campaign's runs are committed, and with another held-out text these scales would no longer stand for
the same runs."""
PAPER_MAIN = SuperposedPhase(bag_size=6, step_ratio=0.3)
"""The superposition that the paper runs at every dense size."""
SMALL_MAIN = SuperposedPhase(bag_size=4, step_ratio=0.25)
"""The main superposition at all scales but `paper`. It is in the range that the paper recommends;
an earlier pilot on two cores had s = 4, r = 0.2."""


def main_with(**changes: object) -> SuperposedPhase:
    """Return `SMALL_MAIN` with other values for some of its keys."""
    return SuperposedPhase.model_validate({**SMALL_MAIN.model_dump(), **changes})


def of_the_paper(model: str, steps: int, learning_rate: float) -> Setting:
    """Return a set-up like that of the paper's dense runs."""
    return _set_up(model, DCLM, 1024, 2048, steps, 2_000, learning_rate, 8_388_608).changed(
        "",
        {
            "numerics.dtype": "bfloat16",
            "execution.parallel": {"optimizer": "distributed", "overlap_gradients": True},
        },
    )


def _set_up(
    model: str,
    text: Recipe,
    sequences: int,
    length: int,
    steps: int,
    warmup: int,
    rate: float,
    held_out: int,
) -> Setting:
    values = {
        "model": {"preset": model},
        "data": {"validation_tokens": held_out},
        "batch": {"sequences": sequences, "sequence_length": length},
        "optimizer": {"learning_rate": rate},
        "schedule": {"steps": steps, "warmup_steps": warmup},
    }
    return Setting(values, (text,), evaluations=8)


DENSE_270M = of_the_paper("270m", 20_000, 2e-3)
DENSE_270M_LONG = DENSE_270M.with_steps(100_000)
DENSE_600M = of_the_paper("600m", 20_000, 1e-3)
DENSE_3B = of_the_paper("3b", 20_000, 2e-4)


@dataclass(frozen=True)
class Scale:
    """The size at which a study is run."""

    name: str
    setting: Setting
    """The set-up that studies train unless they say otherwise."""
    seeds: range
    bag_sizes: tuple[int, ...]
    step_ratios: tuple[float, ...]
    caveat: str = ""
    """A sentence of caution about the results at this scale; empty if there is nothing to say."""

    @property
    def is_paper(self) -> bool:
        """Whether this is the scale of the paper's own runs."""
        return self.name == "paper"

    @property
    def main(self) -> SuperposedPhase:
        """The superposition of studies that do not vary s and r."""
        return PAPER_MAIN if self.is_paper else SMALL_MAIN

    def setting_of(self, paper: Setting) -> Setting:
        """Return the scale's own set-up, or, at scale `paper`, the set-up that is given."""
        return paper if self.is_paper else self.setting


def _prose(
    steps: int,
    warmup_steps: int,
    shards: int | None,
    validation_tokens: int,
    recorded: Mapping[str, Any] = {},
) -> Setting:
    """Return a set-up with two layers on the bundled books, at the rate, the decay and the norms at
    which the pilot sweep found the baseline at its best (docs/research/campaign.md, G0).

    The warm-up has the same number of steps at every length of a scale. So runs of several lengths
    can share the steps before the decay, and a comparison of lengths is not one of warm-ups.
    """
    setting = _set_up(
        "laptop-64", Books(shards), 16, 64, steps, warmup_steps, 2e-3, validation_tokens
    )
    # So small a model would gain nothing from a GPU.
    small = {"execution.threads": 1, "execution.device": "cpu"}
    return setting.changed("", {**small, **PILOT_CHOICES, **recorded})


_ONE_GPU = _set_up("270m", FINEWEB_EDU, 128, 2048, 10_000, 500, 1e-3, 4_194_304).changed(
    "", {"numerics.dtype": "bfloat16"}
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
SCALES = {scale.name: scale for scale in _SCALES}
"""The scales by name, from the smallest to the largest."""
