"""All tables and figures by name, as the modules of `paper/`, `extensions/` and `study/` register
them: in the paper's order, then what it does not show, then pictures of a study's own runs.
"""

import pkgutil
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from paper_figures.registration import REGISTERED, Entry
from tst_study.errors import one_of

FOLDERS = ("paper", "extensions", "study")
PAGES = ("report", "reproduction")
GROUPS = (*FOLDERS, "tables", "figures")

for _folder in FOLDERS:
    _package = import_module(f"paper_figures.{_folder}")
    for _module in pkgutil.iter_modules(_package.__path__, f"{_package.__name__}."):
        import_module(_module.name)


def _place(entry: Entry) -> tuple[int, bool, int, str]:
    number = re.fullmatch(r"(?:table|figure)(\d+)", entry.name)
    figure = not entry.name.startswith("table")
    return FOLDERS.index(entry.group), figure, int(number[1]) if number else 0, entry.name


CATALOGUE: tuple[Entry, ...] = tuple(sorted(REGISTERED.values(), key=_place))

KNOWN_STUDIES = frozenset(
    study
    for entry in CATALOGUE
    for study in re.findall(r"tst-study submit ([\w-]+)", f"{entry.needs} {entry.lacks}")
)
"""Studies whose runs some figure asks for."""


@dataclass(frozen=True)
class Selection:
    """What `--only` asks for; everything, where it asks for nothing."""

    entries: tuple[Entry, ...]
    pages: frozenset[str]
    pictures: dict[str, Entry]
    """Single pictures of a study, such as `gains-books-1000`, and the entries that make them."""

    @property
    def makers(self) -> tuple[Entry, ...]:
        return (*self.entries, *self.pictures.values())


def find(names: Sequence[str] | None) -> Selection:
    """A name is that of an entry, of a page, of a group, or of one picture of a study.

    Raises `UserError` for a name that cannot be any of these.
    """
    if not names:
        return Selection(CATALOGUE, frozenset(PAGES), {})
    pictures = {name: entry for name in names if (entry := _maker(name)) is not None}
    for name in names:
        if name not in pictures and name not in PAGES and not any(_is(e, name) for e in CATALOGUE):
            one_of(name, [*(e.name for e in CATALOGUE), *PAGES, *GROUPS], "--only: table or figure")
    entries = tuple(entry for entry in CATALOGUE if any(_is(entry, name) for name in names))
    return Selection(entries, frozenset(PAGES) & set(names), pictures)


def _maker(name: str) -> Entry | None:
    """The entry of `gains-books-1000`: a study's pictures are named `kind-which`."""
    kind, dash, _ = name.partition("-")
    entry = REGISTERED.get(kind.removesuffix("_end"))
    return entry if dash and entry and entry.group == "study" else None


def _is(entry: Entry, name: str) -> bool:
    of_paper = entry.group == "paper" and name == re.sub(r"\d+$", "s", entry.name)
    return of_paper or name in (entry.name, entry.group)
