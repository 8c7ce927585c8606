"""The table of studies by name, and the functions that load one or find the folder of its runs."""

import runpy
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tomli_w

from tst_study.config.identity import digest, identity_form
from tst_study.config.schema import load as load_config
from tst_study.config.schema import read_toml, to_dict
from tst_study.errors import UserError, one_line, one_of
from tst_study.experiments.corpora import by_folder
from tst_study.experiments.studies import gate, laptop, optimizers, tuned, what_does_the_work
from tst_study.experiments.studies.grid import Declared
from tst_study.experiments.studies.scales import SCALES
from tst_study.experiments.studies.study_file import StudyFile, scaled, scales
from tst_study.experiments.study import Study
from tst_study.record.reader import find_run_folders

STUDIES: dict[str, Declared] = {
    "laptop": laptop.STUDY,
    "gate": gate.STUDY,
    "optimizers": optimizers.STUDY,
    "what-does-the-work": what_does_the_work.STUDY,
    "tuned": tuned.STUDY,
}

GRIDS = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
"""The bundled studies that are grid files, by name."""


def described() -> dict[str, tuple[str, list[str]]]:
    """Return what every bundled study asks, and its scales, by name."""
    declared = {
        name: (f"{one.title}. {one.claims}", list(one.scales)) for name, one in STUDIES.items()
    }
    grids = {name: (read_toml(path)["asks"], scales(path)) for name, path in GRIDS.items()}
    return declared | grids


def write_bundled(name: str, scale: str | None, to: Path) -> list[Path]:
    """Write a bundled grid, at one of its scales, as a file of the user's, and the run config on
    which it builds beside it. Returns the paths. Raises `UserError` for a study that is not a grid,
    and for a file that exists."""
    path = GRIDS[one_of(name, GRIDS, "grid")]
    base = to.with_name(f"{to.stem}.run.toml")
    for file in (to, base):
        if file.exists():
            raise UserError(f"{file}: exists; name another file")
    known = scales(path)
    chosen = one_of(scale or "quick", known, "scale", f" of {name!r}") if known else ""
    values = scaled(path, chosen)
    base.write_bytes((path.parent / values["base"]).read_bytes())
    to.write_text(tomli_w.dumps({**values, "base": base.name}))
    return [to, base]


def load(
    sources: str | Sequence[str],
    scale: str | None = None,
    runs: Path | None = None,
    share: bool = True,
    recorded: Path | None = None,
    own_folder: bool = True,
) -> Study:
    """Return a study at a scale.

    sources: the name of a bundled study; or the path of a grid file (`.toml`) or of a Python file
    with a `STUDY`; or paths of run configs. scale: by default `quick`, or the first scale of a
    user's file. runs: the folder of its runs, by default `runs/<name>[-<scale>]` in the folder of
    the study's file. share, recorded: as in `Study`. own_folder: whether its folder must not hold
    the runs of another file.

    Raises `UserError` for an unknown study, a scale that the study does not have, files that are
    wrong, and if `runs` is a file or lies below one.
    """
    names = (sources,) if isinstance(sources, str) else tuple(sources)
    above = (runs, *runs.absolute().parents) if runs else ()
    if not all(path.is_dir() for path in above if path.exists()):
        raise UserError(f"{runs}: Not a directory; name a folder")
    kind = None if {*names} & {*STUDIES, *GRIDS} else source_kind(names[0])
    first = names[0]
    if kind == "run config":
        study = _of_configs(names, scale)
    elif len(names) > 1:
        raise UserError(f"{first}: a study of its own; name nothing but run configs beside it")
    elif kind == "python":
        study = _of_python(Path(first), scale)
    elif kind == "grid":
        study = _of_grid(Path(first), scale, Path(first).parent)
    elif first in GRIDS:
        study = _of_grid(GRIDS[first], scale or ("quick" if scales(GRIDS[first]) else None), Path())
    else:
        study = _declared(first, STUDIES[one_of(first, [*STUDIES, *GRIDS], "study")], scale)
    suffix = f"-{study.scale}" if study.scale else ""
    folder = runs or study.home / "runs" / f"{study.name}{suffix}"
    more = (recorded,) if recorded else ()
    study = replace(
        study,
        sources=names,
        folder=folder,
        share=share,
        recorded=(*more, *study.recorded),
        planned_only=study.planned_only and replace(study.planned_only, folder=folder),
    )
    if own_folder:
        study.check_folder()
    return study


def source_kind(source: str) -> str | None:
    """Return whether a word names a `grid`, a `python` file or a `run config` on disk; None if it
    does not. A folder of run configs counts as one, unless it holds runs. Raises `UserError` for a
    file of another kind."""
    path = Path(source)
    if path.is_dir():
        holds_runs = any(path.glob("*/run.json")) or any(path.glob("*/job/config.toml"))
        return None if holds_runs or not run_configs(path) else "run config"
    if path.suffix not in (".toml", ".py", ".yaml", ".yml"):
        if path.is_file():
            raise UserError(f"{path}: no such folder, nor a study in TOML or Python; name one")
        return None
    if not path.is_file():
        raise UserError(f"{path}: no such file; `tst-study new {path}` writes a grid")
    if path.suffix == ".py":
        return "python"
    if path.suffix != ".toml":
        raise UserError(f"{path}: YAML is not read; write the same keys as TOML")
    values = read_toml(path)
    grid, config = {"base", "arms"} & values.keys(), {"model", "data"} & values.keys()
    if grid and config:
        raise UserError(
            f"{path}: has [{min(config)}] and {min(grid)}: put the run's own keys into another "
            "file, which `base` names"
        )
    if not grid and not config:
        raise UserError(f"{path}: neither a grid, which has [arms], nor a run config, with [data]")
    return "grid" if grid else "run config"


def run_configs(folder: Path) -> list[Path]:
    """Return the run configs that lie directly in a folder."""
    files = sorted(path for path in folder.glob("*.toml") if path.is_file())
    return [path for path in files if {"model", "data"} & read_toml(path).keys()]


def _declared(name: str, declared: Declared, scale: str | None, first: str = "quick") -> Study:
    """Return a study in Python at a scale, by default the `first`; if its parts are lists, it has
    no scales."""
    caveat, parts, questions = "", declared.parts, declared.questions
    if scale and not callable(parts):
        raise UserError(f"--scale {scale}: {name} has no scales; leave it out")
    scale = (scale or first) if callable(parts) else ""
    if scale:
        chosen = SCALES[one_of(scale, declared.scales, "scale", f" of study {name!r}")]
        parts = parts(chosen) if callable(parts) else parts
        questions = questions(chosen) if callable(questions) else questions
        caveat = chosen.caveat
    if callable(parts) or callable(questions):
        raise UserError(f"{name}: has functions of a scale, but names no scales; give lists")
    at_scale = f" ({scale})" if scale else ""
    return Study(
        name=name,
        scale=scale,
        title=f"{declared.title}{at_scale}",
        claims=f"{declared.claims} {caveat}".strip(),
        corpora=by_folder(*declared.texts),
        runs=lambda results: [run for part in parts for run in part.runs(name, results)],
        questions=questions,
    )


def _of_python(path: Path, scale: str | None) -> Study:
    """Return the study that a Python file declares as `STUDY`."""
    home = path.absolute().parent
    sys.path.insert(0, str(home))
    try:
        declared = runpy.run_path(str(path))["STUDY"]
    except KeyError:
        raise UserError(f"{path}: sets no STUDY; set STUDY = Declared(...)") from None
    except UserError:
        raise
    except Exception as error:  # whatever a user's code may raise
        raise UserError(f"{path}: {one_line(error)}; mend the file") from error
    finally:
        sys.path.remove(str(home))
    if not isinstance(declared, Declared):
        raise UserError(f"{path}: STUDY is no `Declared` of tst_study.experiments; make it one")
    imported = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = {Path(file).resolve() for file in imported if file}
    own = sorted(
        file
        for file in files
        if file.is_relative_to(home) and not {"site-packages", "tst_study"} & {*file.parts}
    )
    study = _declared(path.stem, declared, scale, next(iter(declared.scales), ""))
    return replace(study, home=path.parent, files=(path, *own), asks=declared.claims)


def _of_grid(path: Path, scale: str | None, home: Path) -> Study:
    known = scales(path)
    if scale and not known:
        raise UserError(f"--scale {scale}: {path} has no [scales]; leave it out")
    chosen = one_of(scale, known, "scale", f" of {path}") if scale else next(iter(known), "")
    file = StudyFile(path, chosen)
    grid = file.grid
    asks = f"{grid.asks} {grid.caveat}".strip() or f"The grid of {path}."

    def part(plan_only: bool) -> Study:
        return Study(
            name=grid.study,
            scale=chosen,
            title=grid.study + (f" ({chosen})" if chosen else ""),
            claims=asks,
            corpora=file.corpora(home),
            runs=lambda results: file.runs(results, plan_only),
            recorded=tuple(home / one for one in grid.existing),
            questions=file.questions(),
            asks=grid.asks,
            home=home,
            files=file.files,
            resources_of=file.resources_of,
        )

    only = ", ".join(dict.fromkeys(point.setup for point in file.points if point.plan_only))
    planned = replace(part(True), title=f"{only}: planned only, never trained", questions=())
    return replace(part(False), planned_only=planned if only else None)


def _of_configs(names: Sequence[str], scale: str | None) -> Study:
    """Return the study of several run configs, which is no grid. Their paths mean what they mean
    to `train`."""
    if scale:
        raise UserError(f"--scale {scale}: run configs have no scales; leave it out")
    paths = [
        path
        for name in map(Path, names)
        for path in (run_configs(name) if name.is_dir() else [name])
    ]
    configs = {path: load_config(path) for path in paths}
    studies = {config.study: path for path, config in configs.items()}
    if len(studies) > 1:
        (one, first), (two, second), *_ = studies.items()
        raise UserError(f"{first} has study = {one!r}, {second} {two!r}; give all the same")
    there: dict[str, Path] = {}
    for path, config in configs.items():
        values = to_dict(config)
        other = there.setdefault(digest(identity_form(values, values["data"])), path)
        if other != path:
            raise UserError(f"{path}: is the same run as {other}; take one out")
    (name,) = studies
    return Study(
        name=name,
        scale="",
        title=name,
        claims=f"The runs of {len(paths)} files.",
        corpora={},
        runs=lambda results: list(configs.values()),
        files=tuple(paths),
    )


def is_study(sources: Sequence[str]) -> bool:
    """Return whether words from the command line name a study, and not a folder of runs."""
    return sources[0] in (*STUDIES, *GRIDS) or source_kind(sources[0]) is not None


def folder_of(
    sources: str | Sequence[str], scale: str | None = None, runs: Path | None = None
) -> Path:
    """Return the folder of a study's runs.

    That is `runs` if it is given, or else the default folder of the study at this scale. `sources`:
    as for `load`, or a folder of runs, given by its path or by its name below `runs/`. If `runs` is
    not given, raises `UserError` if `sources` name neither a study nor a folder, or name a study
    that does not have this scale.
    """
    names = (sources,) if isinstance(sources, str) else tuple(sources)
    if runs is not None or is_study(names):
        return runs or load(names, scale).folder
    study = names[0]
    places = dict.fromkeys((Path(study), Path("runs") / study))
    there = [path for path in places if path.exists()]
    if not there:
        own = sorted(path.name for path in Path("runs").glob("*/"))
        also = f"; in runs/ there are: {', '.join(own)}" if own else ""
        raise UserError(
            f"{study}: no such folder, nor a study; studies: {', '.join([*STUDIES, *GRIDS])}{also}"
        )
    # If both folders exist, the first counts only if it holds runs: it may be a folder of text,
    # say, that happens to have the same name.
    return next((path for path in there[:-1] if find_run_folders(path)), there[-1])
