"""`@figure`: makes a function that returns a picture or a table an entry of the catalogue.

A module then holds its data and its drawing; name, group, published files, what is said where runs
are lacking, and the command that would make them stand here once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from paper_figures.item import Finding, Item, Missing
from paper_figures.sources import Sources

Made = Item | Sequence[Item]
"""None at all: runs are lacking."""
Maker = TypeVar("Maker", bound=Callable[..., Made])

REGISTERED: dict[str, Entry] = {}


@dataclass(frozen=True, eq=False)
class Entry:
    name: str
    group: str
    """`paper`, `extensions` or `study`: the folder of its module."""
    make: Callable[[Sources], Made]
    title: str = ""
    """Empty: the maker says it."""
    published: Sequence[str] = ()
    """Files of published numbers that it is made from."""
    needs: str = ""
    """How its measured half is made, commands in backquotes; empty: published numbers alone."""
    lacks: str = ""
    """The runs without which there is nothing to draw, and how they are made."""
    shows: str = ""
    """What the paper shows of it, said where there is nothing to draw."""

    @property
    def from_runs(self) -> bool:
        """Whether runs can have a part in it."""
        return bool(self.needs or self.lacks)

    def items(self, sources: Sources) -> list[Item | Missing]:
        """Usually one; an entry of a study may give several pictures."""
        made = self.make(sources)
        found = [made] if isinstance(made, Item) else made
        return [self._whole(item) for item in found] or [self._missing()]

    def _whole(self, item: Item) -> Item:
        """What an item says of measured runs holds where it has any."""
        caption, finding = item.caption, item.finding
        if self.needs:
            measured = item.folders or (finding and finding.measured)
            caption += f" {item.measured}" if measured else f" Nothing measured: {self.needs}."
        if finding and not finding.measured:
            finding = Finding(finding.published, needs=self._command if self.from_runs else "")
        return replace(
            item,
            kind=self.name,
            group=self.group,
            name=item.name or self.name,
            title=item.title or self.title,
            caption=caption,
            published=self.published,
            finding=finding,
        )

    def _missing(self) -> Missing:
        finding = Finding(self.shows, needs=self._command) if self.shows else None
        return Missing(self.name, self.title, f"Needs {self.lacks}.", finding)

    @property
    def _command(self) -> str:
        return (self.needs or self.lacks).split("`")[1]


def figure(names: str | Mapping[str, Any], **facts: Any) -> Callable[[Maker], Maker]:
    """Register a maker under its name, or a family by name: the maker is then given the value.

    `facts`: what an `Entry` holds beside them.
    """

    def register(maker: Maker) -> Maker:
        group = maker.__module__.split(".")[1]
        family = {names: None} if isinstance(names, str) else names
        for name, which in family.items():
            make = maker if which is None else functools.partial(maker, which=which)
            REGISTERED[name] = Entry(name, group, make, **facts)
        return maker

    return register


def submit(study: str, *scales: str) -> str:
    """The command that makes the runs of a study, the paper's scale first, in backquotes."""
    return ", or smaller ".join(f"`tst-study submit {study} --scale {scale}`" for scale in scales)


PAIR = f"a finished baseline and a finished superposed run of one seed: {submit('laptop', 'quick')}"
