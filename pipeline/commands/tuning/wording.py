"""What a search's summary says of late bloomers and of the context switch, on its page and in print."""

from collections.abc import Mapping
from typing import Any


def late_bloomers_said(summary: Mapping[str, Any]) -> str:
    """How many eliminated trials would have overtaken the winner, or why nobody knows.

    Args:
        summary: from `Found.summary`.
    """
    late, looked_at = summary["late_bloomers"], len(summary["finished_afterwards"])
    failed = [one["trial"] for one in summary["failed_afterwards"]]
    if summary["winner"]["trial"] in failed:
        return "the winner failed on its way to the end, so that no eliminated trial can be held beside it"
    if late is None:
        return "late bloomers: not looked at, as no eliminated trial was trained to the end; `finish` says how many are"
    if not summary["eliminated"]:
        return "late bloomers: there are none, as no trial was eliminated"
    return f"of {looked_at} eliminated trials trained to the end, {len(late)} overtook the winner" + (
        f"; {len(failed)} others failed on their way there" if failed else ""
    )


def switching_said(summary: Mapping[str, Any]) -> str:
    """What it costs that trials train an epoch at a time."""
    cost = summary["context_switch"]
    return (
        f"taking a trial up and laying it down took {cost['median_seconds']:.2f} s, {cost['median_share']:.1%} of an "
        f"epoch, the medians of {cost['epochs']} epochs"
    )
