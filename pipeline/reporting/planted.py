"""Labels that are wrong on purpose: how many of them each filter found, and what training on the rest gains."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.planted import planted_note
from pipeline.reporting.inputs import NetworkInputs, ReportInputs
from pipeline.stats.estimates import Estimate
from pipeline.stats.wording import percent, plural, points, points_interval

# The comparison with all images answers whether to drop; that with as many random ones, whether the choice matters.
_AGAINST = {"full": "on all images", "random": "on as many images chosen at random"}


def planted_summary(inputs: ReportInputs) -> list[dict[str, Any]]:
    """One entry where labels were changed on purpose, none otherwise; counts are of training images."""
    if inputs.true_labels is None:
        return []
    wrong = inputs.true_labels != inputs.data.train.labels
    noise = inputs.params.prepare.plant_label_noise
    return [
        {
            "n": int(wrong.sum()),
            "n_train": len(wrong),
            "kind": noise and noise.kind,
            "networks": [{"name": network.name, **detection(network, wrong)} for network in inputs.networks],
        }
    ]


def detection(network: NetworkInputs, wrong: NDArray[np.bool_]) -> dict[str, Any]:
    """How many of the wrong labels (N,) are among the images that a network's filter drops.

    Returns:
        n_dropped; n_found, those of them that are wrong; by_chance, how many a random choice of as many images of
        each class finds on average; recall, the share of the wrong labels that is found, and precision, the share of
        the dropped images that is wrong, both 0 to 1, precision null where nothing is dropped.
    """
    dropped = ~network.keep
    sizes, wrong_ones, going = (
        np.bincount(network.labels[rows], minlength=int(network.labels.max()) + 1)
        for rows in (slice(None), wrong, dropped)
    )
    n_dropped, n_found = int(dropped.sum()), int((dropped & wrong).sum())
    return {
        "n_dropped": n_dropped,
        "n_found": n_found,
        "by_chance": float((going * wrong_ones / np.maximum(sizes, 1)).sum()),
        "recall": n_found / int(wrong.sum()),
        "precision": n_found / n_dropped if n_dropped else None,
    }


def planted_headline(planted: Mapping[str, Any]) -> str:
    """`Labels changed on purpose: 144 of 1,438 training labels (symmetric); test labels are as they were.`"""
    note, kind = planted_note(planted["n"]), f" ({planted['kind']})" if planted["kind"] else ""
    return f"{_capitalized(note)} of {planted['n_train']:,} training labels{kind}; test labels are as they were."


def planted_sentences(planted: Mapping[str, Any], studies: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each filter found, and what each study says of training on the rest."""
    found = [_found(network, planted["n"]) for network in planted["networks"]]
    return [*found, *(sentence for study in studies for sentence in _gains(study))]


def _found(network: Mapping[str, Any], n_wrong: int) -> str:
    dropped = plural(network["n_dropped"], "image")
    if not network["n_dropped"]:
        return f"{network['name']} drops no image, and finds none of the {n_wrong:,} wrong labels."
    return (
        f"{network['name']} drops {dropped} and finds {network['n_found']:,} of the {n_wrong:,} wrong labels "
        f"({percent(network['recall'], 1)} %); {percent(network['precision'], 1)} % of what it drops is wrong. "
        f"A random choice of {dropped} finds {network['by_chance']:.1f} on average."
    )


def _gains(study: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each control, the full data first."""
    rows = {row["control"]: row for row in study["pooled"] if row["verdict"]}
    for control, words in _AGAINST.items():
        if (row := rows.get(control)) is None:
            continue
        estimate = Estimate(**row["estimate"])
        interval = points_interval(estimate)
        confidence = f"{100 * (1 - study['plan']['alpha']):g} % interval "
        yield (
            f"Training on the rest instead of {words}, study {study['name']}: {points(estimate.mean)} percentage "
            f"points of test top-1 ({'' if estimate.low is None else confidence}{interval}; "
            f"{plural(row['verdict']['seeds'], 'seed')}, {plural(row['settings'], 'setting')}): "
            f"{row['verdict']['outcome']}."
        )


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
