"""`python -m paper_figures [--runs DIR] [--to DIR] [--only NAME …]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from paper_figures.build import Built, build
from tst_study.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 with one line on standard error for bad input."""
    parser = argparse.ArgumentParser(prog="python -m paper_figures", description=__doc__)
    parser.add_argument("--runs", help="folder of run folders, at any depth; none: published only")
    parser.add_argument("--to", default="figures", help="folder to write to (default: figures)")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="table4, figure4, report, tables, beyond, …"
    )
    options = parser.parse_args(arguments)
    try:
        built = build(options.runs, options.to, options.only)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    for line in lines(built):
        print(line)
    return 0


def lines(built: Built) -> list[str]:
    """What was found and written, for a terminal."""
    said = [f"{missing.title}: {missing.sentence}" for missing in built.missing]
    said.append(f"{len(built.written)} files written to {built.to} in {built.seconds:.1f} s.")
    return [*said, f"Report: {built.report}"] if built.report else said


if __name__ == "__main__":
    sys.exit(main())
