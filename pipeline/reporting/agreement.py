"""How much filters agree: between networks, and between one network's maps."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from pipeline.reporting.inputs import NetworkInputs
from pipeline.selection.stability import jaccard


def agreements(networks: Sequence[NetworkInputs]) -> list[dict[str, Any]]:
    """A row for each pair of filters on the same images: Jaccard index of what goes, and that of chance, 0 to 1.

    What goes is the filter's own decision, before people's overrides. A further map of
    `reduce.more_maps` is compared with the first one of its network.
    """
    return [*_between_networks(networks), *_between_maps(networks)]


def _between_networks(networks: Sequence[NetworkInputs]) -> Iterable[dict[str, Any]]:
    for left, right in combinations(networks, 2):
        shares = float(left.is_noise.mean()), float(right.is_noise.mean())
        yield {
            "first": left.name,
            "second": right.name,
            "jaccard": jaccard(left.is_noise, right.is_noise),
            "chance": _chance(*shares),
        }


def _between_maps(networks: Sequence[NetworkInputs]) -> Iterable[dict[str, Any]]:
    for network in networks:
        share = float(network.is_noise.mean())
        for index, value in enumerate(network.filter["stability_over_maps"], start=1):
            yield {
                "first": network.name,
                "second": f"{network.name}, map {index} of reduce.more_maps",
                "jaccard": float(value),
                "chance": _chance(share, share),
            }


def _chance(left: float, right: float) -> float:
    """Of two sets drawn independently that hold these shares of many images."""
    either = left + right - left * right
    return left * right / either if either else 1.0
