"""The scales at which studies can be run: for each a set-up and its seeds.

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

The files in `scales/` hold the set-ups. Those on two cores have two layers and read the bundled
books, at the rate, the decay and the norms at which the pilot sweep found the baseline at its best
(docs/research/campaign.md, G0). The warm-up has the same number of steps at every length of a
scale. So runs of several lengths can share the steps before the decay, and a comparison of lengths
is not one of warm-ups. Weight decay, gradient clipping, initialisation and seeds, which the paper
does not state, are `tst_study`'s defaults."""

from dataclasses import dataclass
from pathlib import Path

from tst_study.config.schema import SuperposedPhase, read_toml
from tst_study.experiments.studies.setting import Setting

PAPER_MAIN = SuperposedPhase(bag_size=6, step_ratio=0.3)
"""The superposition that the paper runs at every dense size."""
SMALL_MAIN = SuperposedPhase(bag_size=4, step_ratio=0.25)
"""The main superposition at all scales but `paper`. It is in the range that the paper recommends;
an earlier pilot on two cores had s = 4, r = 0.2."""


def main_with(**changes: object) -> SuperposedPhase:
    """Return `SMALL_MAIN` with other values for some of its keys."""
    return SuperposedPhase.model_validate({**SMALL_MAIN.model_dump(), **changes})


@dataclass(frozen=True)
class Scale:
    """The size at which a study is run."""

    name: str
    setting: Setting
    """The set-up that studies train unless they say otherwise."""
    seeds: range
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


HERE = Path(__file__).parent
SCALES = {
    name: Scale(
        name,
        Setting.read(HERE / values["base"]),
        range(min(values["seeds"]), max(values["seeds"]) + 1),
        values.get("caveat", ""),
    )
    for name, values in read_toml(HERE / "scales" / "scales.toml").items()
}
"""The scales by name, from the smallest to the largest."""
