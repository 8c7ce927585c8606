"""The same pair with many seeds: how far two equal runs end apart, and two equal pairs."""

from experiments.studies.grid import Part, against_baseline, main_of
from experiments.studies.scales import Scale

TITLE = "Noise of seeds"
CLAIMS = "The deviation of a loss and of a paired gain over seeds: what other studies must exceed."
SEEDS = {"smoke": 2, "quick": 4, "laptop": 8, "desktop": 16, "one-gpu": 5, "paper": 5}


def parts(scale: Scale) -> list[Part]:
    seeds = range(scale.seeds.start, scale.seeds.start + SEEDS[scale.name])
    return [against_baseline(scale.setting, (main_of(scale.is_paper),), seeds)]
