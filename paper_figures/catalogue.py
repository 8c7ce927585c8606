"""All tables and figures by name, and the module that makes each: imported when it is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from tst_study.errors import UserError

if TYPE_CHECKING:
    from paper_figures.item import Item, Missing
    from paper_figures.sources import Sources

Group = Literal["paper", "beyond", "study"]


@dataclass(frozen=True)
class Named:
    name: str
    module: str
    group: Group

    @property
    def from_runs(self) -> bool:
        """Whether runs can have a part in it."""
        return self.name not in PUBLISHED_ONLY

    def items(self, sources: Sources) -> list[Item | Missing]:
        """Every module has `items(sources, name)`; one of a study's may give several pictures."""
        module = import_module(f"paper_figures.{self.group}.{self.module}")
        found: list[Item | Missing] = module.items(sources, self.name)
        return found


def _named(group: Group, **modules: Sequence[str]) -> list[Named]:
    return [Named(name, module, group) for module, names in modules.items() for name in names]


CATALOGUE: tuple[Named, ...] = (
    *_named(
        "paper",
        headline_runs=["table1"],
        reinitialisation=["table2"],
        headline_downstream=["table3"],
        final_loss_grid=["table4", "table5", "table6", "table7"],
        downstream_grid=[f"table{number}" for number in range(8, 29)],
        mixture_of_experts_run=["figure1"],
        matched_comparisons=["figure3"],
        bag_size_curves=["figure4", "figure5"],
        input_and_output=["figure6"],
        learning_rate_sweep=["figure7"],
    ),
    *_named("paper", bag_size_curves=["figure8"], bag_weightings=["figure9"]),
    *_named("paper", mutual_information=["figure10"], bag_size_curves=["figure11"]),
    *_named(
        "beyond",
        compute_multiplier=["compute_multiplier"],
        law_of_superposition=["law_of_superposition"],
        best_setting=["best_setting"],
        data_constrained=["data_constrained"],
        effects=["effects"],
        expert_load=["expert_load"],
        shared_trunks=["shared_trunks"],
        context_checks=["context_checks"],
        disagreements=["disagreements"],
    ),
    *_named(
        "study",
        overview=["overview"],
        gains=["gains"],
        loss_curves=["loss_curves"],
        loss_over_bag_size=["loss_over_bag_size"],
        loss_over_length=["loss_over_length"],
        headline_table=["headline_table"],
    ),
)
"""In the paper's order, then what it does not show, then pictures of a study's own runs."""

PUBLISHED_ONLY = ("law_of_superposition", "disagreements")

PAGES = ("report", "reproduction")
GROUPS = ("paper", "beyond", "study", "tables", "figures")


@dataclass(frozen=True)
class Wanted:
    """What `--only` asks for; everything, where it asks for nothing."""

    entries: tuple[Named, ...]
    pages: frozenset[str]
    single: frozenset[str]
    """Names of single pictures of a study, such as `gains-books-1000`."""
    single_entries: tuple[Named, ...]
    """Those that make them, among others."""


def find(names: Sequence[str] | None) -> Wanted:
    """A name is that of an entry, of a page, of a group, or of one picture of a study.

    Raises `UserError` for a name that cannot be any of these.
    """
    if not names:
        return Wanted(CATALOGUE, frozenset(PAGES), frozenset(), ())
    single = {name: entry for name in names if (entry := _maker(name)) is not None}
    for name in names:
        if name not in single and name not in PAGES and not any(_is(e, name) for e in CATALOGUE):
            raise UserError(_unknown(name))
    return Wanted(
        entries=tuple(e for e in CATALOGUE if any(_is(e, name) for name in names)),
        pages=frozenset(PAGES) & set(names),
        single=frozenset(single),
        single_entries=tuple(dict.fromkeys(single.values())),
    )


def _maker(name: str) -> Named | None:
    """The entry of `gains-books-1000`: a study's pictures are named `kind-which`."""
    kind, dash, _ = name.partition("-")
    study = (entry for entry in CATALOGUE if entry.group == "study" and dash)
    return next((e for e in study if e.name == kind.removesuffix("_end")), None)


def _is(entry: Named, name: str) -> bool:
    paper = entry.group == "paper"
    return (
        name in (entry.name, entry.group)
        or (name == "tables" and paper and entry.name.startswith("table"))
        or (name == "figures" and paper and entry.name.startswith("figure"))
    )


def _unknown(name: str) -> str:
    known = [*(entry.name for entry in CATALOGUE), *PAGES, *GROUPS]
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"--only {name}: no such table or figure; {hint}"
