"""The laptop study: when does superposition beat a matched-FLOPs baseline, on two cores?

Two parts, and they are not mixed: real prose, whose verdict counts, and a generated language
that shows the mechanism. Each scale says what it can show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from experiments.corpora import Books, TopicalLanguage
from experiments.studies.generated_runs import Generated
from experiments.studies.prose_runs import MAIN, Prose, grid
from experiments.study import Results, Study
from tst_study.config import Config

NAME = "laptop"
TITLE = "Token superposition on two cores"

ABLATIONS = (
    MAIN.model_copy(update={"mode": "output_only"}),
    MAIN.model_copy(update={"mode": "input_only"}),
    MAIN.model_copy(update={"reinitialize_at_switch": True}),
    MAIN.model_copy(update={"optimizer_at_switch": "reset"}),
    MAIN.model_copy(update={"weighting": "power_law"}),
)


@dataclass(frozen=True)
class Scale:
    claims: str
    prose: Prose
    generated: Generated
    books: Books
    language: TopicalLanguage

    def runs(self, results: Results) -> list[Config]:
        """Prose first: its runs are the longer ones, and the short ones fill the gaps."""
        return [*self.prose.runs(results), *self.generated.runs()]


def _smoke() -> Scale:
    books, language = Books(shards=1), TopicalLanguage(tokens=1_000_000, validation_tokens=65_536)
    return Scale(
        claims="Shows that everything works from text to figure, and nothing else: runs of a few "
        "hundred steps say nothing about the method.",
        prose=Prose(
            study=NAME,
            corpus=str(books.folder),
            validation_tokens=32_768,
            steps=300,
            seeds=2,
            learning_rates=(4e-3, 8e-3),
            evaluations=4,
        ),
        generated=Generated(
            study=NAME,
            corpus=str(language.folder),
            vocabulary_size=language.words,
            validation_tokens=32_768,
            steps=300,
            seeds=2,
            bag_sizes=(1, 4),
        ),
        books=books,
        language=language,
    )


def _quick() -> Scale:
    # One of five files is twice the text that these runs read.
    books, language = Books(shards=1), TopicalLanguage()
    return Scale(
        claims="Prose for 3,000 steps with two seeds: the short regime, in which a pilot saw ties "
        "and losses, at the rate that `laptop`'s sweep chose. The generated language shows the "
        "mechanism.",
        prose=Prose(
            study=NAME,
            corpus=str(books.folder),
            validation_tokens=65_536,
            steps=3_000,
            seeds=2,
            learning_rates=(2e-3,),  # a sweep would take the time of the pairs; see docs/log.md
        ),
        generated=_generated(language, steps=1_500),
        books=books,
        language=language,
    )


def _laptop() -> Scale:
    books, language = Books(), TopicalLanguage()
    return Scale(
        claims="Prose for 20,000 steps with three seeds: long enough for a pilot to have seen a "
        "gain. The generated language shows the mechanism.",
        prose=Prose(
            study=NAME,
            corpus=str(books.folder),
            validation_tokens=262_144,
            steps=20_000,
            seeds=3,
            learning_rates=(1e-3, 2e-3, 4e-3),
            sweep_steps=5_000,  # of whole length it would be a quarter of the study
        ),
        generated=_generated(language, steps=3_000),
        books=books,
        language=language,
    )


def _desktop() -> Scale:
    """`laptop` and more: lengths; s at r = 0.2, r at s = 4 and ablations at 8,000 steps; three
    seeds each. A superposed run of 40,000 steps reads more text than the books hold, and so some
    of it twice (its record says how many epochs)."""
    laptop = _laptop()
    others = (
        *grid((2, 3, 6, 8, 16), (0.2,)),
        *grid((4,), (0.1, 0.3, 0.4, 0.5)),
        *ABLATIONS,
    )
    prose = replace(
        laptop.prose,
        settings=(MAIN, *others),
        settings_steps=8_000,
        other_lengths=(1_500, 3_000, 8_000, 40_000),
    )
    return replace(
        laptop,
        claims="Prose with three seeds: bag sizes 2 to 16, step ratios 0.1 to 0.5, lengths of "
        "1,500 to 40,000 steps and ablations; which settings win, and from which length on.",
        prose=prose,
    )


def _generated(language: TopicalLanguage, steps: int) -> Generated:
    return Generated(
        study=NAME,
        corpus=str(language.folder),
        vocabulary_size=language.words,
        validation_tokens=32_768,
        steps=steps,
        seeds=3,
    )


SCALES = {"smoke": _smoke, "quick": _quick, "laptop": _laptop, "desktop": _desktop}


def study(scale: str) -> Study:
    chosen = SCALES[scale]()
    return Study(
        name=NAME,
        scale=scale,
        title=f"{TITLE} ({scale})",
        claims=chosen.claims,
        corpora=(chosen.books, chosen.language),
        runs=chosen.runs,
    )
