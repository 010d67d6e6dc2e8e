"""Settings of `filter-features`: those of params.yaml, changed by options; or defaults where there is no file."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pipeline.config.base import describe_validation_error
from pipeline.config.filter import NEEDS_TRAINING, FilterConfig
from pipeline.config.params import load_params
from pipeline.config.reduce import PcaConfig, ReduceConfig
from pipeline.config.runtime import DaskConfig
from pipeline.errors import InputError
from pipeline.reduction.checks import max_perplexity
from pipeline.scoring.registry import SCORERS

FEATURE_SCORERS = sorted(SCORERS.keys() - {"ensemble", *NEEDS_TRAINING})
"""Scorers that need no record of a training, and no list of other scorers."""


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """The sections `reduce`, `filter` and `dask`."""

    reduce: ReduceConfig
    filter: FilterConfig
    dask: DaskConfig

    def fitted_to(self, features: NDArray[np.floating]) -> "FeatureSettings":
        """Return the defaults as features (N, D) allow them.

        There is no PCA to as many components as rows or features, no more neighbors than other rows unless an option
        asks for them, also of a scorer with k, and a perplexity below N / 3.
        """
        n, fitted = len(features), self.filter
        changed: dict[str, Any] = {}
        if self.reduce.pca.n_components is not None and self.reduce.pca.n_components >= min(features.shape):
            changed["pca"] = PcaConfig(n_components=None)
        if "n_neighbors" not in self.reduce.model_fields_set:
            changed["n_neighbors"] = most = max(1, min(self.reduce.n_neighbors, n - 1))
            fitted = _checked(_with_k(fitted.model_dump(mode="json"), lambda k: min(k, most)))
        if self.reduce.tsne.perplexity > max_perplexity(n):
            changed["tsne"] = self.reduce.tsne.model_copy(update={"perplexity": max(1.0, (n - 1) / 3.5)})
        return replace(self, reduce=self.reduce.model_copy(update=changed), filter=fitted)


def feature_settings(
    params: Path, *, scorer: str | None, drop_fraction: float | None, neighbors: int | None
) -> FeatureSettings:
    """Read the parameter file and apply the options; without a file, both `scorer` and `drop_fraction` are required.

    Args:
        scorer: name of a scorer; it replaces `filter.scorer` with its options.
        drop_fraction: replaces the rule of the filter.
        neighbors: `reduce.n_neighbors`, and the option `k` of the scorer.

    Raises:
        InputError: the file is missing or wrong, or an option does not fit.
    """
    tree: dict[str, Any] = {}
    if scorer and drop_fraction is not None and not params.exists():
        reduce, dask = ReduceConfig(), DaskConfig()
    else:
        whole = load_params(params)
        reduce, dask = whole.reduce, whole.dask
        tree = whole.filter.model_dump(mode="json")
        if isinstance(tree["drop_fraction"], dict) and drop_fraction is None:
            raise InputError(
                f"{params}: filter.drop_fraction: gives a share per network, but there is no network; give one number, "
                "or --drop-fraction"
            )
    if scorer:
        tree["scorer"] = {"name": scorer}
    if drop_fraction is not None:
        tree |= {"drop_fraction": drop_fraction, "eps": None, "threshold": None}
    if neighbors is not None:
        if neighbors < 1:
            raise InputError(f"--neighbors: {neighbors}; give 1 or more")
        reduce = reduce.model_copy(update={"n_neighbors": neighbors})
    config = _checked(tree)
    if neighbors is not None:
        config = _checked(_with_k(config.model_dump(mode="json"), lambda _: neighbors))
    return FeatureSettings(reduce=reduce, filter=config, dask=dask)


def _with_k(tree: dict[str, Any], change: Callable[[int], int]) -> dict[str, Any]:
    """Return the section `filter` with another k of the scorer and of the scorers that it combines or selects by."""

    def changed(scorer: dict[str, Any]) -> dict[str, Any]:
        return {**scorer, "k": change(scorer["k"])} if "k" in scorer else scorer

    scorer = changed(tree["scorer"])
    if "scorers" in scorer:
        scorer = {**scorer, "scorers": [changed(member) for member in scorer["scorers"]]}
    if "scorer" in scorer:
        scorer = {**scorer, "scorer": changed(scorer["scorer"])}
    return {**tree, "scorer": scorer}


def _checked(tree: dict[str, Any]) -> FilterConfig:
    try:
        return FilterConfig.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        message = f"filter.{describe_validation_error(error, tree, FilterConfig)}"
        # An error of several keys together has no key of its own.
        raise InputError(message.replace("filter.(top level)", "filter", 1)) from None
