"""Columns of energy: one for each kind of device that some record tells, in one unit for a whole table."""

from collections.abc import Sequence

from pipeline.energy import KINDS, Energy
from pipeline.stats.wording import NOTHING

_HEADS = {"gpu": "GPU energy", "cpu": "CPU energy", "memory": "memory energy"}
# From here on in kilojoules.
_MANY_J = 10_000.0


class EnergyColumns:
    """What the cells of one table need to know of each other.

    Args:
        shown: everything that the table shows.
    """

    def __init__(self, shown: Sequence[Energy]) -> None:
        largest = {kind: max((getattr(drawn, kind) or 0.0 for drawn in shown), default=0.0) for kind in KINDS}
        # Work that uses no device of a kind draws 0 of it; a column of zeros tells nothing.
        self._kinds = [kind for kind in KINDS if largest[kind] > 0]
        self._unit, self._joules = ("kJ", 1e3) if max(largest.values()) >= _MANY_J else ("J", 1.0)

    @property
    def heads(self) -> list[str]:
        """Kind and unit; none where nothing tells."""
        return [f"{_HEADS[kind]} ({self._unit})" for kind in self._kinds]

    def cells(self, drawn: Energy) -> list[str]:
        """As many as heads: three digits, or all before the point."""
        return [_text(getattr(drawn, kind), self._joules) for kind in self._kinds]


def _text(joules: float | None, unit: float) -> str:
    if joules is None:
        return NOTHING
    value = joules / unit
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
