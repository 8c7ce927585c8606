"""Tables of runs that fit the width of the terminal, for `tst-study status` and `plan`."""

from collections.abc import Sequence

from tst_study.text import aligned, shortened, wrapped


def table_of_runs(
    rows: Sequence[Sequence[str]], width: int, numbers: Sequence[str], optional: Sequence[str] = ()
) -> list[str]:
    """Return the lines of a table that should be at most `width` characters wide. The first row
    holds the headings; columns that are empty below them are left out.

    The first column holds names, and a last column headed `message` holds sentences. If the table
    is too wide, the sentences go below their rows. If that is not enough, the `optional` columns
    are left out one after the other, in the order given. Only then are the names shortened, to no
    less than 24 characters. `numbers`: headings of the columns that are aligned to the right.
    """
    kept = [list(column) for column in zip(*rows, strict=True) if any(column[1:])]
    if not kept:
        return []

    def overlap() -> int:
        return sum(max(map(len, column)) + 2 for column in kept) - 2 - width

    below = [""] * len(rows)
    if kept[-1][0] == "message" and overlap() > 0:
        below = ["", *kept.pop()[1:]]
    for heading in optional:
        if overlap() > 0:
            kept = [column for column in kept if column[0] != heading]
    available = max(map(len, kept[0])) - max(0, overlap())
    kept[0] = [shortened(name, max(24, available)) for name in kept[0]]
    right = [place for place, column in enumerate(kept) if column[0] in numbers]
    table = aligned(list(zip(*kept, strict=True)), right)
    return [
        line
        for row, sentence in zip(table, below, strict=True)
        for line in (row, *wrapped([f"    {sentence}"] if sentence else [], width))
    ]
