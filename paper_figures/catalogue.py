"""All tables and figures by name: `@figure` registers the function that makes one.

A module of `paper/` (in the paper's order), `extensions/` (what the paper does not show) or
`study/` (a study's own runs) holds its data and its drawing. Name, published files, what is said
where runs are lacking, and the command that would make them stand in the decorator.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeVar

from tst_study.errors import one_of
from tst_study.paper_figures import FOLDERS, NAMES, PAGES
from tst_study.paper_figures.item import Finding, Item
from tst_study.paper_figures.sources import Sources

Maker = TypeVar("Maker", bound=Callable[..., Item | None])
"""What it returns is None where runs are lacking."""

_REGISTERED: dict[str, Entry] = {}


@dataclass(frozen=True, eq=False)
class Entry:
    name: str
    group: str
    """The folder of its module."""
    make: Callable[[Sources], Item | None]
    title: str = ""
    """Empty where the maker sets it."""
    published: Sequence[str] = ()
    """The files of published numbers behind it."""
    needs: str = ""
    """Commands that make its measured half, in backquotes; empty for published numbers alone."""
    lacks: str = ""
    """The runs that it cannot do without, and how they are made."""

    def item(self, sources: Sources) -> Item | None:
        """Make its item, None where runs are lacking; what an item says about measured runs stays
        where it has any."""
        item = self.make(sources)
        if item is None:
            return None
        caption, finding = item.caption, item.finding
        if self.needs:
            measured = item.folders or (finding and finding.measured)
            caption += f" {item.measured}" if measured else f" Nothing measured: {self.needs}."
        if finding and not finding.measured:
            command = self.needs.split("`")[1] if self.needs else ""
            finding = Finding(finding.published, needs=command)
        return replace(
            item,
            name=self.name,
            group=self.group,
            title=item.title or self.title,
            caption=caption,
            published=self.published,
            finding=finding,
        )


def figure(names: str | Mapping[str, Any], **facts: Any) -> Callable[[Maker], Maker]:
    """Register a maker under its name, or a family by name: the maker is then given the value.

    `facts`: what an `Entry` holds beside them.
    """

    def register(maker: Maker) -> Maker:
        group = maker.__module__.split(".")[-2]
        family = {names: None} if isinstance(names, str) else names
        for name, which in family.items():
            make = maker if which is None else functools.partial(maker, which=which)
            _REGISTERED[name] = Entry(name, group, make, **facts)
        return maker

    return register


def submit(study: str, *scales: str) -> str:
    """Return the command that makes a study's runs, the paper's scale first, in backquotes."""
    return ", or smaller ".join(f"`tst-study submit {study} --scale {scale}`" for scale in scales)


PAIR = f"a finished baseline and a finished superposed run of one seed: {submit('laptop', 'quick')}"


@functools.cache
def catalogue() -> dict[str, Entry]:
    """Return every entry by name, in the order of pages."""
    for folder in FOLDERS:
        package = import_module(f"tst_study.paper_figures.{folder}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return {name: _REGISTERED[name] for name in NAMES}


def find(names: Sequence[str] | None) -> tuple[list[Entry], set[str]]:
    """Return the entries and pages that `--only` asks for, by name or by group, or else all.

    Raises `UserError` for an unknown name.
    """
    entries = list(catalogue().values())
    if not names:
        return entries, set(PAGES)
    for name in names:
        one_of(name, [*catalogue(), *PAGES, *FOLDERS], "--only: table or figure")
    wanted = [entry for entry in entries if {entry.name, entry.group} & set(names)]
    return wanted, set(PAGES) & set(names)
