"""The table of studies by name, and the functions that load one or find the folder of its runs."""

from pathlib import Path

from tst_study.errors import UserError, one_of
from tst_study.experiments.corpora import PREPARED, Recipe
from tst_study.experiments.studies import (
    comparisons,
    data_constrained,
    gate,
    laptop,
    mixture_10b_a1b,
    tuned,
    what_does_the_work,
)
from tst_study.experiments.studies.grid import Declared
from tst_study.experiments.studies.scales import SCALES
from tst_study.experiments.study import Study
from tst_study.record.reader import find_run_folders

STUDIES: dict[str, Declared] = {
    "laptop": laptop.STUDY,
    "gate": gate.STUDY,
    **comparisons.STUDIES,
    "data-constrained": data_constrained.STUDY,
    "mixture-10b-a1b": mixture_10b_a1b.STUDY,
    "what-does-the-work": what_does_the_work.STUDY,
    "tuned": tuned.STUDY,
}


def load(
    name: str,
    scale: str,
    runs: Path | None = None,
    share: bool = True,
    recorded: Path | None = None,
) -> Study:
    """Return a study, by its name, at a scale.

    `runs`: the folder of its runs, by default `runs/<name>-<scale>`. `share` and `recorded`: as in
    `Study`. Raises `UserError` for an unknown study, a scale that the study does not have, and if
    `runs` is a file or lies below one.
    """
    above = (runs, *runs.absolute().parents) if runs else ()
    if not all(path.is_dir() for path in above if path.exists()):
        raise UserError(f"{runs}: Not a directory; name a folder")
    declared = STUDIES[one_of(name, STUDIES, "study")]
    chosen = SCALES[one_of(scale, declared.scales, "scale", f" of study {name!r}")]
    parts = declared.parts(chosen)
    return Study(
        name=name,
        scale=scale,
        title=f"{declared.title} ({scale})",
        claims=f"{declared.claims} {chosen.caveat}".strip(),
        corpora={PREPARED / recipe.name: recipe for part in parts for recipe in part.corpora()},
        runs=lambda results: [run for part in parts for run in part.runs(name, results)],
        folder=runs or Path("runs") / f"{name}-{scale}",
        share=share,
        recorded=recorded,
        questions=declared.questions(chosen),
    )


def recipes() -> dict[Path, Recipe]:
    """Return the recipe of every corpus that a study reads at some scale, by the corpus's
    folder."""
    studies = [load(name, scale) for name, declared in STUDIES.items() for scale in declared.scales]
    return {folder: recipe for study in studies for folder, recipe in study.corpora.items()}


def folder_of(study: str, scale: str, runs: Path | None = None) -> Path:
    """Return the folder of a study's runs.

    That is `runs` if it is given, or else the default folder of the study at this scale. `study`
    may also be a folder of runs, given by its path or by its name below `runs/`. If `runs` is not
    given, raises `UserError` if `study` names neither a study nor a folder, or names a study that
    does not have this scale.
    """
    if runs is not None or study in STUDIES:
        return runs or load(study, scale).folder
    places = dict.fromkeys((Path(study), Path("runs") / study))
    there = [path for path in places if path.exists()]
    if not there:
        own = sorted(path.name for path in Path("runs").glob("*/"))
        also = f"; in runs/ there are: {', '.join(own)}" if own else ""
        raise UserError(
            f"{study}: no such folder, nor a study; studies: {', '.join(STUDIES)}{also}"
        )
    # If both folders exist, the first counts only if it holds runs: it may be a folder of text,
    # say, that happens to have the same name.
    return next((path for path in there[:-1] if find_run_folders(path)), there[-1])
