"""Several scorers as one: the mean of their ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from pipeline.selection.evidence import Evidence, Judged, Scorer


def relative_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) ranks brought to 0 (least) to 1 (most); equal values share the mean of theirs, one value alone has 1/2."""
    n = len(values)
    return np.asarray((rankdata(values) - 1) / (n - 1)) if n > 1 else np.full(n, 0.5)


def ensemble_of(scorers: Mapping[str, Scorer]) -> Scorer:
    """The scorer that combines those of a registry."""

    def values(evidence: Evidence, *, of: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Mean over the members of their relative ranks, 0 to 1; a member that looks at the map, over all maps."""
        return np.asarray(np.mean([_member_ranks(evidence, member) for member in of], axis=0))

    def _member_ranks(evidence: Evidence, member: Mapping[str, Any]) -> NDArray[np.float64]:
        name, options = split_options(member)
        seen = [evidence]
        if looks_at_map(scorers[name], options) and evidence.maps is not None:
            seen = [evidence.on_map(index) for index in range(len(evidence.maps))]
        ranks = [relative_ranks(scorers[name].values(one, **options)) for one in seen]
        return np.asarray(np.mean(ranks, axis=0))

    def phrases(judged: Judged) -> list[str]:
        who = ", ".join(split_options(member)[0] for member in judged.options["of"])
        ranks = (100 * judged.values).tolist()
        return [f"more suspect than {rank:.3g} % of all images in the mean of {who}" for rank in ranks]

    return Scorer(values=values, phrases=phrases)


def split_options(scorer: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A scorer's name, and the rest."""
    return scorer["name"], {key: value for key, value in scorer.items() if key != "name"}


def looks_at_map(scorer: Scorer, options: Mapping[str, Any]) -> bool:
    """Whether the map decides what it says."""
    return "map" in scorer.needs or options.get("space") == "map"
