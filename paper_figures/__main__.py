"""`python -m paper_figures --runs DIR --to DIR [--only NAME …]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from paper_figures.build import build
from tst_study.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 with one line on standard error for bad input."""
    parser = argparse.ArgumentParser(prog="python -m paper_figures", description=__doc__)
    parser.add_argument("--runs", required=True, help="folder of run folders, at any depth")
    parser.add_argument("--to", default="figures", help="folder to write to (default: figures)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="pictures to write, by name")
    options = parser.parse_args(arguments)
    try:
        built = build(options.runs, options.to, options.only)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    for line in built.summary.lines():
        print(line)
    for missing in built.missing:
        print(f"{missing.title}: {missing.sentence}")
    print(f"{len(built.written)} files written to {built.to} in {built.seconds:.1f} s.")
    if built.report:
        print(f"Report: {built.report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
