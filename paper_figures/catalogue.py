"""The catalogue of all tables and figures by name. The decorator `@figure` registers the function
that makes one.

These functions are in the modules of `paper/`, of `extensions/` (what the paper does not show) and
of `study/` (a study's own runs). The decorator states the name, the published files, the commands
that make the runs, and what to say if runs are lacking."""

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
"""A function that makes a table or figure. It returns None if it lacks runs that it cannot do
without."""

_REGISTERED: dict[str, Registered] = {}


@dataclass(frozen=True, eq=False)
class Registered:
    """A table or figure that can be made, with what its decorator says about it."""

    name: str
    group: str
    """The folder of its module, one of `FOLDERS`."""
    make: Callable[[Sources], Item | None]
    title: str = ""
    """Empty if the function `make` sets it."""
    published: Sequence[str] = ()
    """The names, without `.csv`, of the files of published numbers from which it is made."""
    needs: str = ""
    """Commands, in backquotes, that make the runs of its measured half; empty if it shows published
    numbers alone, and for the items of `study/`."""
    lacks: str = ""
    """The runs that it cannot do without, and the commands that make them; empty if it needs
    none."""

    def item(self, sources: Sources) -> Item | None:
        """Make the item, and fill in its name, group, title and published files. Returns None if it
        lacks runs that it cannot do without.

        If the entry has `needs`, the caption is completed by `Item.measured` or, if nothing was
        measured, by the commands in `needs`. A finding gets the commands of the largest scale.
        """
        item = self.make(sources)
        if item is None:
            return None
        caption, finding = item.caption, item.finding
        if self.needs:
            measured = item.folders or (finding and finding.measured)
            caption += f" {item.measured}" if measured else f" Nothing measured: {self.needs}."
        if finding:
            finding = replace(finding, needs=self.needs.partition(", or smaller ")[0])
            if not finding.measured:
                finding = Finding(finding.published, needs=finding.needs)
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
    """Return a decorator that registers a function under a name, or under every name in a mapping.

    With a mapping, the function is called with the value of the name as its argument `which`.
    `facts`: other fields of the `Registered`.
    """

    def register(maker: Maker) -> Maker:
        group = maker.__module__.split(".")[-2]
        family = {names: None} if isinstance(names, str) else names
        for name, which in family.items():
            make = maker if which is None else functools.partial(maker, which=which)
            _REGISTERED[name] = Registered(name, group, make, **facts)
        return maker

    return register


def submit(study: str, *scales: str) -> str:
    """Return, in backquotes, the commands that make a study's runs at these scales, which are given
    from the largest to the smallest."""
    return ", or smaller ".join(f"`tst-study submit {study} --scale {scale}`" for scale in scales)


PAIR = f"a finished baseline and a finished superposed run of one seed: {submit('laptop', 'quick')}"
"""`Registered.lacks` of the items that need a single pair of runs."""


@functools.cache
def catalogue() -> dict[str, Registered]:
    """Import all makers and return every entry by name, in the order of `NAMES`."""
    for folder in FOLDERS:
        package = import_module(f"tst_study.paper_figures.{folder}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return {name: _REGISTERED[name] for name in NAMES}


def find(names: Sequence[str] | None) -> tuple[list[Registered], set[str]]:
    """Return the entries and the pages that `--only` asks for by name or group; all of them if
    there are no names.

    Raises `UserError` for an unknown name.
    """
    entries = list(catalogue().values())
    if not names:
        return entries, set(PAGES)
    for name in names:
        one_of(name, [*catalogue(), *PAGES, *FOLDERS], "--only: table or figure")
    wanted = [entry for entry in entries if {entry.name, entry.group} & set(names)]
    return wanted, set(PAGES) & set(names)
