"""`sieve`: choose the samples to keep, by the pipeline's filter on images or any features."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from batchsieve.arrays import (
    Labels,
    as_array,
    checked_features,
    checked_fraction,
    checked_integer,
    checked_number,
    checked_probabilities,
    checked_seed,
    column_order_warning,
    holds_images,
    labels_by_columns,
)
from batchsieve.evidence import (
    N_COMPONENTS,
    content_order,
    neighbor_rows,
    principal_components,
    tsne_coordinates,
    voted_probabilities,
)
from batchsieve.filter_result import Explanation, FilterResult, KeepMask
from pipeline.config.base import describe_validation_error
from pipeline.config.filter import NEEDS_TRAINING, FilterConfig
from pipeline.errors import InputError
from pipeline.filtering.apply import FilterContext, apply_filter, check_estimate, reasons_of
from pipeline.run_log import RunLog
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.registry import SCORERS, check_scorer, member_scorers, needs_with_members
from pipeline.scoring.suggestions import suggest_labels

if TYPE_CHECKING:
    from batchsieve.looking.sources import Images

_NETWORK = "features"
_FOLDS = 5
_NEIGHBORS = 10
"""In reasons, for class probabilities and for suggested labels."""


def sieve(
    features: "Images",
    labels: ArrayLike,
    pred_probs: ArrayLike | None = None,
    *,
    network: str | None = None,
    weights: Path | str | None = None,
    scorer: str | Mapping[str, Any] = "dbscan",
    drop_fraction: float | Literal["estimated"] | None = None,
    eps: float | Literal["knee", "tuned"] | None = None,
    threshold: float | None = None,
    allocation: Literal["overall", "per_class", "balanced"] = "overall",
    allow_empty: bool = False,
    class_names: Sequence[int] | Sequence[str] | None = None,
    n_components: int = N_COMPONENTS,
    perplexity: float = 30.0,
    n_jobs: int = 2,
    seed: int = 0,
) -> KeepMask:
    """Choose which of N samples to keep, by the filter of Gahlot et al. (2020) or another scorer.

    The paper's filter reduces the features to principal components, embeds all classes together by t-SNE, and drops
    the samples that DBSCAN classifies as noise within their class. Other scorers use components, neighbors or class
    probabilities; inputs that are not given are computed as in `find_issues`, with 5 folds and 10 neighbors. The result
    does not depend on the order of the samples, except for duplicates.

    Give at most one of `drop_fraction`, `eps` and `threshold`. Without any of them, DBSCAN uses `eps="knee"`.

    Args:
        features: (N, D) numbers; or N images, uint8 (N, H, W, 3), RGB, or PIL images, of which a pretrained network
            computes the features.
        labels: (N,) integers or strings. DBSCAN and the other scorers of distances also accept a single class.
        pred_probs: (N, C) out-of-fold probabilities, for the scorers that need them; with a warning as `find_issues`.
        network: of images: `timm/NAME`, or `resnet18` to `resnet152`. None: `timm/tf_efficientnet_lite0`.
        weights: of the network, as of `look`.
        scorer: name of a scorer of `filter.scorer` in params.yaml, except for those that need a record of the training
            (`aum`, `forgetting`, `mean_confidence`); or a mapping of its `name` and options, e.g.
            `{"name": "dbscan", "space": "components", "min_samples": 10}`. `space: components` needs no t-SNE.
        drop_fraction: fraction of the samples to drop, 0 to 1: the most suspect ones, as close to it as ties allow.
            "estimated": the share of wrong labels that the class probabilities suggest.
        eps: radius of DBSCAN, in units of the embedding or components; `knee` of the curve of k-distances; or `tuned`,
            the radius that best detects samples planted in other classes, 5 % of all.
        threshold: for the other scorers: drop samples whose value is higher, in the scorer's unit, which for
            `label_odds` are odds, from 0 on. It is not compared with `result.score`.
        allocation: division of `drop_fraction` among the classes. `overall`: the highest scores, regardless of class;
            `per_class`: the same fraction of each class; `balanced`: the remaining class counts are as equal as the
            class sizes allow.
        allow_empty: whether a class may lose all its samples.
        class_names: (C,) order of the columns of `pred_probs`; as in `find_issues`.
        n_components: principal components to which more features are reduced; at most N are used.
        perplexity: of t-SNE; N must be above three times the perplexity.
        n_jobs: threads of t-SNE. Another number gives another embedding.
        seed: of t-SNE and of the folds.

    Returns:
        (N,) bool, True for samples to keep, in their order. `result` has scores, reasons and suggested labels.

    Raises:
        InputError: naming the argument, the value and the fix: lengths that differ, values that are not finite, too
            few samples for the perplexity or for DBSCAN's `min_samples`, a class that would lose all its samples, no
            weights of the network.

    Example:
        >>> import numpy as np
        >>> from batchsieve import sieve
        >>> labels = np.repeat([0, 1], 60)
        >>> features = np.random.default_rng(0).normal(size=(120, 4)) + 8 * labels[:, None]
        >>> labels[0] = 1  # far from the rest of its class
        >>> keep = sieve(features, labels, scorer={"name": "dbscan", "space": "components"}, drop_fraction=1 / 120)
        >>> np.flatnonzero(~keep)
        array([0])
        >>> keep.show(1)  # in a notebook a table, or pictures of images
        FilterResult(119 of 120 samples kept, scorer='dbscan')
        sample  label  suggested_label  score  reason
        0       1      0                ...
    """
    checked, columns = labels_by_columns(labels, pred_probs, class_names)
    n = len(checked.codes)
    seed, n_jobs = checked_seed(seed), checked_integer(n_jobs, "n_jobs")
    n_components = checked_integer(n_components, "n_components")
    perplexity = checked_number(perplexity, "perplexity")
    images = features if holds_images(features) else None
    if images is None and (network or weights):
        argument, value = ("network", network) if network else ("weights", weights)
        raise InputError(f"{argument}: {value}, but features are given; leave it out, or give images")
    input_probabilities = None if columns is None else checked_probabilities(columns, n)
    if input_probabilities is not None and (line := column_order_warning(input_probabilities, checked)):
        warnings.warn(line, stacklevel=2)
    config = _config(scorer, drop_fraction, eps, threshold, allocation, allow_empty)
    settings = config.scorer.model_dump()
    _check_inputs(config, checked, n)
    needs = needs_with_members(settings) | ({"probabilities"} if drop_fraction == "estimated" else set())
    if images is None:
        values = checked_features(as_array(features, "features"), n)
    else:
        from batchsieve.looking.networks import image_features  # torch, which features need not

        values = checked_features(image_features(images, labels, network=network, weights=weights), n)
    order = content_order(values, checked.codes)
    ordered = Labels(codes=checked.codes[order], classes=checked.classes)
    log = RunLog.silent()
    components = principal_components(values[order], n_components, log)
    embeddings = neighbors = probabilities = None
    if "embedding" in needs:
        embedding = tsne_coordinates(
            components, ordered.codes, perplexity=perplexity, n_jobs=n_jobs, seed=seed, log=log
        )
        embeddings = embedding[None]
    if "neighbors" in needs:
        k, key = _most_neighbors(settings)
        neighbors = neighbor_rows(components, k, key=key, seed=seed, log=log)
    if input_probabilities is not None:
        probabilities = input_probabilities[order]
    elif "probabilities" in needs:
        voters = neighbor_rows(components, min(_NEIGHBORS, n - 1), key="labels", seed=seed, log=log)
        probabilities = voted_probabilities(
            components, voters, ordered, folds=_FOLDS, seed=seed, log=log,
            fix="give more samples of each class, or pred_probs",
        )  # fmt: skip
    inputs = ScorerInputs(
        labels=ordered.codes,
        embeddings=embeddings,
        components=components,
        neighbors=neighbors,
        probabilities=probabilities,
        # NaN: without a record of the training, scorers use the model's probability.
        training_confidence=np.full(n, np.nan, dtype=np.float32),
    )
    context = FilterContext(network=_NETWORK, class_names=checked.names, overrides={})
    try:
        sieved = apply_filter(inputs, config, context, fix="give more samples")
    except InputError as error:
        raise _naming_arguments(error) from None
    inverse = np.argsort(order)

    def explain() -> Explanation:
        given = inputs
        if inputs.neighbors is None and inputs.has("classes"):
            nearest = neighbor_rows(components, min(_NEIGHBORS, n - 1), key="labels", seed=seed, log=log)
            given = replace(inputs, neighbors=nearest)
        suggestion = suggest_labels(given)
        reasons = reasons_of(given, config, sieved.decision, suggestion, context)
        return Explanation(
            reason=np.array(reasons, dtype=object)[inverse],
            suggested_label=None if suggestion is None else checked.classes[suggestion.labels[inverse]],
            suggested_probability=None if suggestion is None else suggestion.probabilities[inverse],
        )

    result = FilterResult(
        keep=sieved.keep[inverse],
        score=sieved.decision.scores[inverse],
        label=checked.classes[checked.codes],
        scorer=config.scorer.name,
        explain=explain,
        wrong_share=sieved.estimate,
        images=images,
    )
    return KeepMask(result)


def _config(
    scorer: str | Mapping[str, Any],
    drop_fraction: float | Literal["estimated"] | None,
    eps: float | str | None,
    threshold: float | None,
    allocation: str,
    allow_empty: bool,
) -> FilterConfig:
    """Return the arguments as the section `filter` of the parameters, which checks them.

    Raises:
        InputError: naming the argument.
    """
    if not isinstance(scorer, str | Mapping):
        raise InputError(f"scorer: {scorer!r}; give the name of a scorer, or a mapping of its name and options")
    options = {"name": scorer} if isinstance(scorer, str) else dict(scorer)
    name = options.get("name")
    rules = {"drop_fraction": drop_fraction, "eps": eps, "threshold": threshold}
    set_rules = [rule for rule, value in rules.items() if value is not None]
    if len(set_rules) > 1:
        raise InputError(f"{set_rules[0]}: is given with {' and '.join(set_rules[1:])}; give one of them")
    if name == "dbscan":
        if threshold is not None:
            raise InputError(f"threshold: {threshold}, but dbscan has a radius; give eps, or drop_fraction")
        eps = eps if set_rules else "knee"
    elif eps is not None:
        raise InputError(f"eps: {eps}, but {name} has no radius; give threshold, or drop_fraction")
    elif not set_rules:
        raise InputError(f"drop_fraction: missing for the scorer {name}; give it, or a threshold")
    if drop_fraction is not None:
        drop_fraction = checked_fraction(drop_fraction, "drop_fraction")
    elif allocation != "overall":
        raise InputError(f"allocation: {allocation} divides a drop_fraction; give one, or leave allocation out")
    tree = {
        "scorer": options,
        "drop_fraction": drop_fraction,
        "eps": eps if eps is None or isinstance(eps, str) else checked_number(eps, "eps"),
        "threshold": None if threshold is None else checked_number(threshold, "threshold"),
        "allocation": allocation,
        "allow_empty": allow_empty,
    }
    try:
        # Validated as JSON, in which sections accept lists; NumPy's numbers become floats.
        return FilterConfig.model_validate_json(json.dumps(tree, default=float))
    except ValidationError as error:
        message = describe_validation_error(error, tree, FilterConfig)
        raise _naming_arguments(InputError(f"filter.{message}")) from None


def _check_inputs(config: FilterConfig, labels: Labels, n: int) -> None:
    """Reject invalid labels and settings before t-SNE, which may take an hour."""
    settings = config.scorer.model_dump()

    def unknown(*shape: int) -> NDArray[Any]:
        """Return a placeholder of the shape of a later array, which takes no memory."""
        return np.broadcast_to(np.float32(0), shape)

    future_inputs = ScorerInputs(
        labels=labels.codes,
        embeddings=unknown(1, n, 2),
        components=unknown(n, 1),
        neighbors=unknown(n, _most_neighbors(settings)[0]),
        probabilities=unknown(n, len(labels.classes)),
        training_confidence=unknown(n),
    )
    for member in (settings, *member_scorers(settings).values()):
        # `label_odds` works without a record. The reasons of the others would speak of one.
        if member["name"] in NEEDS_TRAINING and member["name"] != "label_odds":
            raise InputError(
                f"scorer: {member['name']} needs a record of the training, which arrays lack; take label_odds"
            )
    check_scorer(future_inputs, settings, labels.names, "scorer")
    try:
        check_estimate(future_inputs, config, _NETWORK)
    except InputError as error:
        raise _naming_arguments(error) from None


def _most_neighbors(settings: Mapping[str, Any]) -> tuple[int, str]:
    """Return the largest `k` of a scorer and its members that read neighbors, 1 if none does, and its key."""
    scorers = {"scorer": settings, **{f"scorer.{key}": member for key, member in member_scorers(settings).items()}}
    largest = [
        (int(str(scorer["k"])), f"{key}.k")
        for key, scorer in scorers.items()
        if "neighbors" in SCORERS[str(scorer["name"])].needs
    ]
    return max(largest, default=(1, "scorer"))


def _naming_arguments(error: InputError) -> InputError:
    """Return the error with names of arguments instead of keys of params.yaml, which begin with the section."""
    return InputError(str(error).replace("filter.", ""))
