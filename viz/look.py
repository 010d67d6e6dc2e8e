"""What a reader asks to see, and what there is to show."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from pipeline.errors import InputError
from viz.coloring import Facts
from viz.data import Points, Source
from viz.facts import facts_of
from viz.rules import Rule, Verdict, judge

_RULE = TypeAdapter(Rule)


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """One network's images as the controls have them.

    Attributes:
        shown: (N,) whether the image passes the filters by class and score.
    """

    points: Points
    rule: Rule
    verdict: Verdict
    shown: NDArray[np.bool_]

    @cached_property
    def facts(self) -> Facts:
        """What colours can tell."""
        return facts_of(self.points, self.verdict)


def look_at(
    source: Source,
    network: str,
    rule: Mapping[str, Any] | None,
    classes: Sequence[int] | None = None,
    scores: Sequence[float] | None = None,
) -> Look:
    """Judge a network's images and filter them.

    Args:
        rule: as `rule_to_json` gives it; None is the filter's own.
        classes: those shown; none named means all.
        scores: the least and greatest score shown, 0 to 1.

    Raises:
        InputError: files are missing or do not fit, or the rule is none.
    """
    points, chosen = source.points(network), rule_from_json(rule)
    verdict = _judged(source, points, chosen)
    shown = np.isin(points.labels, list(classes)) if classes else np.ones(len(points), dtype=np.bool_)
    if scores:
        shown &= (verdict.scores >= scores[0]) & (verdict.scores <= scores[1])
    return Look(points=points, rule=chosen, verdict=verdict, shown=shown)


def _judged(source: Source, points: Points, rule: Rule) -> Verdict:
    key = points.network, json.dumps(rule_to_json(rule), sort_keys=True)
    return source.verdicts.get(key, source.decisions_stamp(points), lambda: judge(source, points, rule))


def rule_to_json(rule: Rule) -> dict[str, Any]:
    """For the page to keep."""
    kept: dict[str, Any] = _RULE.dump_python(rule, mode="json")
    return kept


def rule_from_json(kept: Mapping[str, Any] | None) -> Rule:
    """The rule that the page kept, or that a link brings.

    Raises:
        InputError: it is none.
    """
    try:
        return _RULE.validate_python(kept or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"the link's rule: {where}: {first['msg']}; reset the settings") from None
