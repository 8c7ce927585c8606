"""Everything a study's runs can show, written to one folder; only what changed is drawn again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.summary import Summary, summarise
from paper_figures import (
    context_checks,
    gains,
    headline_table,
    loss_curves,
    loss_over_bag_size,
    loss_over_length,
    overview,
    report,
)
from paper_figures.picture import Missing, Picture, save, write_bytes
from tst_study.errors import UserError

PICTURES: dict[str, Callable[[Summary], list[Picture | Missing]]] = {
    module.KIND: module.pictures
    for module in (
        overview,
        gains,
        loss_curves,
        loss_over_bag_size,
        loss_over_length,
        context_checks,
    )
}
OTHERS = (headline_table.KIND, report.KIND)


@dataclass(frozen=True)
class Built:
    """What `build` found and did."""

    to: Path
    summary: Summary
    pictures: tuple[Picture, ...]
    missing: tuple[Missing, ...]
    """What cannot be drawn from these runs, each with the command that would make them."""
    written: tuple[Path, ...]
    """Files whose content is new; empty where nothing changed."""
    report: Path | None
    seconds: float


def build(runs: Path | str, to: Path | str, only: Sequence[str] | None = None) -> Built:
    """Write every picture (PDF, SVG, PNG, CSV, trace), the headline table and `report.html`.

    `only`: kinds of pictures, `headline_table` or `report`, or the names of single pictures.
    Raises `UserError` where the folder of runs does not exist, or `only` names nothing known.
    """
    began = time.perf_counter()
    summary = summarise(runs)
    to = Path(to)
    drawn = [picture for make in PICTURES.values() for picture in make(summary)]
    pictures = [picture for picture in drawn if isinstance(picture, Picture)]
    missing = [picture for picture in drawn if isinstance(picture, Missing)]
    wanted = _wanted(only, pictures)
    try:
        to.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        for picture in pictures:
            if {picture.kind, picture.name, report.KIND} & wanted:  # the report shows all
                written += save(picture, summary.tables.runs, to)
        if headline_table.KIND in wanted:
            written += _write_table(summary, to)
        page = None
        if report.KIND in wanted:
            page = to / "report.html"
            content = report.html(summary, pictures, missing, to)
            written += [page] if write_bytes(page, content.encode()) else []
    except OSError as error:
        raise UserError(f"{error.filename or to}: cannot be written ({error.strerror})") from None
    return Built(
        to=to,
        summary=summary,
        pictures=tuple(pictures),
        missing=tuple(missing),
        written=tuple(written),
        report=page,
        seconds=time.perf_counter() - began,
    )


def _wanted(only: Sequence[str] | None, pictures: Sequence[Picture]) -> set[str]:
    known = {*PICTURES, *OTHERS}
    if not only:
        return known
    names = known | {picture.name for picture in pictures}
    for name in only:
        if name not in names:
            raise UserError(f"--only {name}: no such picture; there are {', '.join(sorted(names))}")
    return set(only)


def _write_table(summary: Summary, to: Path) -> list[Path]:
    table = headline_table.headline_table(summary)
    texts = {
        ".csv": table.to_csv(index=False, lineterminator="\n"),
        ".md": headline_table.markdown(table),
        ".tex": headline_table.latex(table),
    }
    paths = [to / f"headline_table{suffix}" for suffix in texts]
    both = zip(paths, texts.values(), strict=True)
    return [path for path, text in both if write_bytes(path, text.encode())]
