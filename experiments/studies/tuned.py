"""Study `tuned`, the third campaign: does the gain survive tuning, and a larger model? Superposed
arms, each at its own best learning rate, are compared with a baseline whose batch size and learning
rate were tuned.

`docs/research/plan-of-runs-3.md` registers the questions, the predictions and the rules. Part A has
models of 0.23 million weights, and tunes the batch size and the learning rates. Part B has models
of 1.07 million weights, and tunes the learning rates. At scale `desktop`, part B reads as many
tokens per weight as the half-length runs of part A.

This is no grid file, because the results of the pilot sweep decide which arm the primary question
is about, and that arm has more seeds."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tst_study.analysis.verdict.question import Arm, Question
from tst_study.config.schema import SuperposedPhase, read_toml
from tst_study.experiments.studies.grid import Declared, Part, Tuning, one_or_all
from tst_study.experiments.studies.setting import BASELINE, Setting

HERE = Path(__file__).parent
SCALES = read_toml(HERE / "scales" / "scales.toml")

BATCHES = (32, 64)
"""Sequences per step that are tried. With either number a run has the same number of latent
tokens."""
STEPS, LARGER_STEPS = {"desktop": 10_000}, {"desktop": 23_000}
"""Steps of parts A and B with 32 sequences, by scale; at other scales, half of the scale's own
steps. At `desktop` the runs have 20.5 and 47.1 million latent tokens, which is 88 and 44 per
weight."""
RATES, LARGER_RATES = (2e-3, 2.83e-3, 4e-3), (1e-3, 1.41e-3, 2e-3)
"""Learning rates that parts A and B try with 32 sequences. With 64 they are √2 times as high."""
LARGER = "laptop-128"
"""The model of part B."""
SEEDS = {"desktop": range(11, 23)}
"""Seeds by scale; other scales have their own."""
MORE_SEEDS = {"desktop": range(27, 35)}
"""Eight more seeds for the two arms of the primary question."""
PILOT_SEEDS = {"desktop": range(23, 27)}
"""Seeds of the pilot sweeps; at other scales as many as the study has, after them."""

OUTPUT_ONLY = SuperposedPhase(bag_size=4, step_ratio=0.25, mode="output_only")
ARMS = {
    "output only": OUTPUT_ONLY,
    "superposition, power law": SuperposedPhase(bag_size=4, step_ratio=0.25, weighting="power_law"),
    "superposition": SuperposedPhase(bag_size=4, step_ratio=0.25),
}
CANDIDATES = ("output only", "superposition, power law")
"""Names in `ARMS`. The arm of the primary question is the one of these with the lower loss in the
pilot sweep."""
PREDICTED = {
    "primary": (-0.004, 0.012),
    "output only": (-0.005, 0.012),
    "superposition, power law": (-0.008, 0.012),
    "superposition": (-0.018, 0.006),
    "as much text": (-0.006, 0.012),
    "larger": (-0.008, 0.010),
}
"""Predictions that were made before the first run: ranges of the gains over the tuned baseline, in
nats per token. The keys stand for the questions, in their order."""
FAMILY, SIZES = "tuned against tuned", "two sizes, as much text per weight"

Chosen = Mapping[SuperposedPhase, Setting]
"""The best set-up of each arm; the arm with the lowest loss comes first."""


def at(scale: str) -> Declared:
    """Return the study at a scale."""
    caveat = SCALES[scale].get("caveat", "")
    return Declared(
        "Does the gain survive tuning, and size",
        "Whether superposition gains over a baseline whose batch and rate were tuned, at its own "
        "tuned rate, and whether it still does with 4.6 times the weights and as much text per "
        f"weight. {caveat}".strip(),
        parts(scale),
        questions(scale),
    )


def parts(scale: str) -> Sequence[Part | Tuning]:
    """Return part A and part B: in each, sweeps of learning rates and then the runs that are
    measured."""
    small, larger = _setting(scale, STEPS), _setting(scale, LARGER_STEPS, LARGER)
    seeds = SEEDS.get(scale, SCALES[scale]["seeds"])
    after = range(seeds[-1] + 1, seeds[-1] + 1 + len(seeds))
    pilot, more = PILOT_SEEDS.get(scale, after), MORE_SEEDS.get(scale, ())

    def tuned_arms(baseline: Chosen) -> list[Tuning]:
        """Tune the rates of the superposed arms at the batch at which the baseline is at its
        best."""
        best = baseline[BASELINE]
        ladder = _ladder(small, best.plain.batch.sequences, RATES)

        def measured(rates: Chosen) -> list[Part]:
            primary = next(arm for arm in rates if arm in map(ARMS.get, CANDIDATES))
            both = {BASELINE: best, primary: rates[primary]}
            others = {arm: setting for arm, setting in rates.items() if arm != primary}
            half = {
                arm: setting.with_steps(setting.steps // 2)
                for arm, setting in ((BASELINE, best), (OUTPUT_ONLY, rates[OUTPUT_ONLY]))
            }
            wanted = [("primary", both, seeds), ("primary", both, more), ("tuned", others, seeds)]
            return [
                Part((setting.in_grid(name),), (arm,), those)
                for name, arms, those in (*wanted, ("half", half, seeds))
                for arm, setting in arms.items()
            ]

        return [Tuning((ladder,), tuple(ARMS.values()), measured, pilot)]

    def larger_measured(rates: Chosen) -> list[Part]:
        return [Part((setting.in_grid("larger"),), (arm,), seeds) for arm, setting in rates.items()]

    ladders = tuple(_ladder(small, batch, RATES) for batch in BATCHES)
    larger_ladder = _ladder(larger, BATCHES[0], LARGER_RATES, "larger-pilot")
    arms = (BASELINE, OUTPUT_ONLY)
    return [
        Tuning(ladders, (BASELINE,), tuned_arms, pilot),
        Tuning((larger_ladder,), arms, larger_measured, pilot[:2]),
    ]


def questions(scale: str) -> list[Question]:
    """Return the questions. Primary: is the better of output only and power-law weights better than
    the tuned baseline? Then the same for every superposed arm, and for output only at two model
    sizes, which at scale `desktop` read the same amount of text per weight."""
    small, larger = _setting(scale, STEPS).plain, _setting(scale, LARGER_STEPS, LARGER).plain
    seeds = tuple(SEEDS.get(scale, SCALES[scale]["seeds"]))
    twenty = (*seeds, *MORE_SEEDS.get(scale, ()))

    def asked(
        name: str, family: str, where: dict[str, Any], key: str, *arms: SuperposedPhase
    ) -> Question:
        return Question(
            name=f"{name} against the tuned baseline",
            arm=_arm(name, where, *arms),
            against=_arm("tuned baseline", where, BASELINE),
            family=family,
            primary=family == "primary",
            method="moderated-1",
            predicted=PREDICTED[key],
        )

    tokens = small.schedule.steps * small.batch.sequences * small.batch.sequence_length
    whole = {"hidden_size": small.model.hidden_size, "latent_tokens": tokens, "seed": seeds}
    half = whole | {"latent_tokens": tokens // 2}
    more_weights = {"hidden_size": larger.model.hidden_size, "seed": seeds}
    either = [ARMS[name] for name in CANDIDATES]
    primary = {"name": "primary-*", "seed": twenty}
    better = "the better of output only and power law"
    return [
        asked(better, "primary", primary, "primary", *either),
        *(asked(name, FAMILY, whole, name, each) for name, each in ARMS.items()),
        asked("output only, 0.23 million weights", SIZES, half, "as much text", OUTPUT_ONLY),
        asked("output only, 1.07 million weights", SIZES, more_weights, "larger", OUTPUT_ONLY),
    ]


def _arm(name: str, where: Mapping[str, Any], *phases: SuperposedPhase) -> Arm:
    """Return the runs with one of these superpositions, found by its declared keys."""
    tables = [phase.model_dump(mode="json") for phase in phases]
    keys = {f"superposition.{key}": one_or_all(t[key] for t in tables) for key in tables[0]}
    return Arm(name=name, where={**keys, **where})


def _setting(scale: str, steps: Mapping[str, int], model: str | None = None) -> Setting:
    """Return a set-up with 32 sequences per step, whose warm-up reads as much text as the
    scale's."""
    setting = Setting.read(HERE / SCALES[scale]["base"]).with_batch(BATCHES[0])
    changes = {"schedule.steps": steps.get(scale, setting.steps), "data.held_out": "spread"}
    return setting.changed("", {**changes, **({"model.preset": model} if model else {})})


def _ladder(
    setting: Setting, sequences: int, rates: Sequence[float], grid: str = "pilot"
) -> tuple[Setting, ...]:
    """Return copies of `setting` with `sequences` sequences per step, one copy for each of the
    rising rates. A run of a copy reads as much text as a run of `setting`. The rates are scaled
    by the square root of the batch's growth."""
    factor = math.sqrt(sequences / setting.plain.batch.sequences)
    batch = setting.with_batch(sequences).in_grid(grid).changed(f"batch{sequences}", {})
    return tuple(batch.with_rate(float(f"{rate * factor:.3g}")) for rate in rates)


STUDY = {scale: at(scale) for scale in ("smoke", "quick", "laptop", "desktop")}
