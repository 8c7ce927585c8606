"""The table of studies by name, and the functions that load one or find the folder of its runs."""

import runpy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os.path import realpath
from pathlib import Path

import tst_study
from tst_study.config.identity import digest, identity_form
from tst_study.config.schema import load as load_config
from tst_study.config.schema import read_toml, to_dict
from tst_study.errors import UserError, one_line, one_of
from tst_study.experiments.corpora import by_folder
from tst_study.experiments.studies.grid import Declared
from tst_study.experiments.studies.study_file import StudyFile, scales
from tst_study.experiments.study import BUNDLED, Study
from tst_study.record.reader import find_run_folders
from tst_study.superposition.loss_kinds import LossSetting, files_of, is_own

STUDIES = {path.stem: path for path in (*sorted(BUNDLED.glob("*.toml")), BUNDLED / "tuned.py")}
"""The files of the bundled studies, by name."""


def scales_of(path: Path) -> list[str]:
    """Return the names of the scales of a study's file."""
    return scales(path) if path.suffix == ".toml" else [name for name in _declared(path)[0] if name]


def described() -> dict[str, tuple[str, list[str]]]:
    """Return what every bundled study asks, and its scales, by name."""
    asks = {
        name: read_toml(path)["asks"] if path.suffix == ".toml" else load(name).asks
        for name, path in STUDIES.items()
    }
    return {name: (asks[name], scales_of(path)) for name, path in STUDIES.items()}


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
    kind = None if {*names} & {*STUDIES} else source_kind(names[0])
    if kind == "run config":
        study = _of_configs(names, scale)
    elif len(names) > 1:
        raise UserError(f"{names[0]}: a study of its own; name nothing but run configs beside it")
    elif kind is None and names[0] not in STUDIES and Path(names[0]).is_dir():
        raise UserError(
            f"{names[0]}: a folder without run configs; name a study or its file, or see what the "
            f"results in it say: tst-study analyse --runs {names[0]}"
        )
    else:
        study = _of_file(names[0], kind is None, scale)
    suffix = f"-{study.scale}" if study.scale else ""
    more = (recorded,) if recorded else ()
    study = replace(
        study,
        sources=names,
        folder=runs or study.home / "runs" / f"{study.name}{suffix}",
        share=share,
        recorded=(*more, *study.recorded),
    )
    if own_folder:
        study.check_folder()
    return study


def _of_file(name: str, bundled: bool, scale: str | None) -> Study:
    """Return the study of a file, or the bundled one of a name, at a scale: by default the first,
    but `quick` for a bundled one."""
    path = STUDIES[one_of(name, STUDIES, "study")] if bundled else Path(name)
    home, of = (Path(), f" of study {name!r}") if bundled else (path.parent, f" of {path}")
    declared, imported = _declared(path) if path.suffix == ".py" else ({}, [])
    known = [name for name in declared if name] if declared else scales(path)
    if scale and not known:
        raise UserError(f"--scale {scale}: {name} has no scales; leave it out")
    first = "quick" if bundled and "quick" in known else next(iter(known), "")
    chosen = one_of(scale, known, "scale", of) if scale else first
    if not bundled and (above := str(path.absolute().parent)) not in sys.path:
        sys.path.append(above)  # a loss of one's own may lie beside the file
    if declared:
        return _of_python(path, declared[chosen], imported, chosen, home)
    return _of_grid(path, chosen, home)


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


def _declared(path: Path) -> tuple[Mapping[str, Declared], list[Path]]:
    """Return what a Python file declares as `STUDY`, by scale (without scales, by an empty name),
    and the files beside it that it imports."""
    try:
        with imports_from(path.absolute().parent) as files:
            declared = runpy.run_path(str(path))["STUDY"]
    except KeyError:
        raise UserError(f"{path}: sets no STUDY; set STUDY = Declared(...)") from None
    except UserError:
        raise
    except Exception as error:  # whatever a user's code may raise
        raise UserError(f"{path}: {one_line(error)}; mend the file") from error
    by_scale = declared if isinstance(declared, Mapping) else {"": declared}
    if not all(isinstance(each, Declared) for each in by_scale.values()):
        raise UserError(f"{path}: STUDY is no `Declared` of tst_study.experiments; make it one")
    return by_scale, files


@contextmanager
def imports_from(home: Path) -> Iterator[list[Path]]:
    """Let a block import modules from the folder of a study. Yields a list, which afterwards holds
    their files, without those of this package and of the Python environment."""
    # What was imported before is imported anew: it may have changed, or be another study's.
    names = {path.stem for path in home.iterdir()}
    before = {
        name: sys.modules.pop(name)
        for name, file in _users_modules(home).items()
        if home in file.parents or name.partition(".")[0] in names
    }
    files: list[Path] = []
    sys.path.insert(0, str(home))
    try:
        yield files
    finally:
        sys.path.remove(str(home))
        files += sorted({file for file in _users_modules(home).values() if home in file.parents})
        for name, module in before.items():
            sys.modules.setdefault(name, module)


def _users_modules(home: Path) -> dict[str, Path]:
    """Return the files of imported modules, but for this package and the Python environment."""
    package = Path(tst_study.__file__).parent  # in a checkout, it has links to folders beside it
    # A study may lie in an environment, as /usr/src lies in that of /usr/bin/python.
    environments = map(Path, (sys.prefix, sys.base_prefix))
    folders = [path for path in environments if not home.is_relative_to(path)]
    folders += [package, *(path for path in package.iterdir() if path.is_dir())]
    installed = tuple(f"{place}/" for path in folders for place in (path, path.resolve()))
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return {
        name: Path(file)
        for name, file in files.items()
        if file and name != "__main__"
        if not file.startswith(installed) and not realpath(file).startswith(installed)
    }


def _of_python(
    path: Path, declared: Declared, imported: Sequence[Path], scale: str, home: Path
) -> Study:
    losses = (arm.loss for part in declared.parts for arm in part.arms)
    return Study(
        name=path.stem,
        scale=scale,
        title=declared.title + (f" ({scale})" if scale else ""),
        claims=declared.claims,
        corpora=by_folder(*declared.texts),
        runs=lambda results: [
            run for part in declared.parts for run in part.runs(path.stem, results)
        ],
        questions=declared.questions,
        asks=declared.claims,
        home=home,
        files=(path, *imported, *_code_of(losses, imported)),
    )


def _of_grid(path: Path, scale: str, home: Path) -> Study:
    file = StudyFile(path, scale)
    grid = file.grid
    return Study(
        name=grid.study,
        scale=scale,
        title=grid.study + (f" ({scale})" if scale else ""),
        claims=f"{grid.asks} {grid.caveat}".strip() or f"The grid of {path}.",
        corpora=file.corpora(home),
        runs=file.runs,
        recorded=tuple(home / one for one in grid.existing),
        questions=file.questions(),
        asks=grid.asks,
        home=home,
        files=(*file.files, *_code_of(one.config.superposition.loss for one in file.points)),
        resources_of=file.resources_of,
    )


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
        files=(*paths, *_code_of(config.superposition.loss for config in configs.values())),
    )


def _code_of(losses: Iterable[LossSetting], besides: Sequence[Path] = ()) -> list[Path]:
    """Return the files of those losses that are the user's own, and of what they import from the
    same folders, each once, without `besides`."""
    files = {file for loss in losses if is_own(loss) for file in files_of(loss)}
    for home in {file.parent for file in files}:
        files |= {file for file in _users_modules(home).values() if home in file.parents}
    return sorted(files - {*besides})


def is_study(sources: Sequence[str]) -> bool:
    """Return whether words from the command line name a study, and not a folder of runs."""
    return sources[0] in STUDIES or source_kind(sources[0]) is not None


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
        raise UserError(f"{study}: no such folder or study; studies: {', '.join(STUDIES)}{also}")
    # If both folders exist, the first counts only if it holds runs: it may be a folder of text,
    # say, that happens to have the same name.
    return next((path for path in there[:-1] if find_run_folders(path)), there[-1])
