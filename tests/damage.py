"""Damage to files, as a disk or a copy does it."""

from pathlib import Path


def flip(path: Path, place: int | None = None, bit: int = 1) -> None:
    """Flip a bit of a byte, by default of the one in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= bit
    path.write_bytes(content)
