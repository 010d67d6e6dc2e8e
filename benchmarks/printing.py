"""Print the tables of the benchmarks. Separate from `measuring`, which imports torch."""

from collections.abc import Mapping, Sequence

Row = Mapping[str, str | int | float]


def print_table(rows: Sequence[Row]) -> None:
    """Print rows with right-aligned columns, each as wide as its widest entry."""
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    for line in ({name: name for name in widths}, *rows):
        print("  ".join(f"{line[name]!s:>{width}}" for name, width in widths.items()))
