"""What a recursion leaves for people: how the rounds went, and the decisions that bring the last one about."""

from collections.abc import Sequence

import numpy as np

from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.overrides import Override, write_overrides
from pipeline.artifacts.planted import count_planted, planted_note
from pipeline.commands.recursion.first_round import FirstRound
from pipeline.commands.recursion.rounds import Verdict, compare, has_settled
from pipeline.paths import DataPaths


def decisions(first: FirstRound, verdicts: Sequence[Verdict], *, n_planted: int | None = None) -> list[Override]:
    """People's own overrides, then those by which the last round differs from round 0, in the order of the images.

    They carry no time, since equal results are equal bytes.

    Args:
        n_planted: how many training labels were changed on purpose; the notes then say so.
    """
    last, note = verdicts[-1].keep, f"recursive filter, round {len(verdicts) - 1}"
    if n_planted is not None:
        note = f"{note}; {planted_note(n_planted)}"
    added = [
        Override(
            path=first.paths[row],
            sha256=first.sha256[row],
            decision="keep" if last[row] else "drop",
            note=note,
            timestamp="",
            line=0,
        )
        for row in np.flatnonzero(last != first.verdict.keep).tolist()
    ]
    people = {override.path for override in first.overrides}
    assert not people.intersection(override.path for override in added), "a round overruled a person"
    return [*first.overrides, *added]


def write_results(
    data: DataPaths, network: str, first: FirstRound, verdicts: Sequence[Verdict], settle_at: float
) -> None:
    """Write data/recursive/<network>/."""
    decided = decisions(first, verdicts, n_planted=count_planted(data))
    write_overrides(data.recursive_overrides(network), decided)
    write_json(
        data.recursive_rounds(network),
        {
            "network": network,
            "settle_at": settle_at,
            "settled": has_settled(verdicts, settle_at),
            "overrides_added": len(decided) - len(first.overrides),
            "rounds": compare(verdicts),
        },
    )
