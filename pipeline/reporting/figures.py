"""The report's figures: interactive ones for the page, files for papers and `dvc plots`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.figures.batch_curves import (
    WARMUP_TITLE,
    batch_chart,
    batch_figure,
    published_warmups,
    warmup_curves,
)
from pipeline.figures.classes import class_panels, class_share_chart, class_share_figure, eps_chart, eps_figure
from pipeline.figures.curves import LOSS, TEST_LOSS, TOP1, LearningAxis, learning_chart, learning_figure
from pipeline.figures.embeddings import class_map
from pipeline.figures.rate_curves import rate_chart, rate_figure
from pipeline.figures.rendering import (
    compact_chart,
    data_uri,
    image_grid,
    plotly_html,
    png,
    row_chart,
    svg,
    thumbnail,
    with_note,
)
from pipeline.figures.sparkline import sparkline
from pipeline.figures.study_curves import (
    POINTS_TITLE,
    TOP1_TITLE,
    accuracy_curves,
    best_batch_curves,
    difference_curves,
    learning_panels,
    published_values,
    sizes_tried,
)
from pipeline.replication.published import BEST_WARMUPS, BEST_WARMUPS_SOURCE
from pipeline.reporting.data_quality import duplicates_figure, planted_headline
from pipeline.reporting.inputs import NetworkInputs, ReportInputs
from pipeline.reporting.overview import MAX_CARDS
from pipeline.reporting.summary import Summary, is_about_table_one
from pipeline.stats.runs import Quantity

_LEARNING: dict[str, tuple[Quantity, LearningAxis]] = {
    "learning": ("train_loss", LOSS),
    "progress": ("top1", TOP1),
    "test_loss": ("test_loss", TEST_LOSS),
}
"""Chart -> the quantity on its vertical axis, over the images processed."""

_SHORT_TITLE = "test top-1 (%)"


@dataclass(frozen=True, kw_only=True)
class DroppedImage:
    """One picture of the gallery.

    Attributes:
        source: data URI.
        suggested, suggested_probability: the suggested label, which may be `label`, and its probability, 0 to 1.
        truth: the true label where labels were planted.
    """

    source: str
    path: str
    label: str
    suggested: str
    suggested_probability: float
    truth: str | None
    score: float
    reason: str


def study_charts(study: Summary, *, n_studies: int = 1) -> dict[str, str]:
    """Return the charts of a study as markup; empty ones are left out.

    They are `overview`, a small one for the first screen, `accuracy`, `best_batch`, `differences` and those of
    `_LEARNING`.

    Args:
        study: of the summary.
        n_studies: number of studies of the report. With several `overview` is low and without titles and legend, so
            that they fit on the screen; with more than `MAX_CARDS` it is a line of the filtered and the primary arm.
    """
    charts = {}
    if curves := accuracy_curves(study):
        if n_studies <= MAX_CARDS:
            chart = batch_chart(curves, y_title=_SHORT_TITLE)
            charts["overview"] = compact_chart(chart) if n_studies == 1 else row_chart(chart)
        charts["accuracy"] = batch_chart(curves, y_title=TOP1_TITLE, published=published_values(study))
    if best := best_batch_curves(study):
        charts["best_batch"] = rate_chart(best, tried=sizes_tried(study))
    if curves := difference_curves(study):
        charts["differences"] = batch_chart(curves, y_title=POINTS_TITLE, zero_line=True)
    for name, (quantity, axis) in _LEARNING.items():
        if panels := learning_panels(study, quantity):
            charts[name] = learning_chart(panels, axis, x_axis=study["x_axis"])
    markup = {name: plotly_html(chart, element_id=f"{study['name']}-{name}") for name, chart in charts.items()}
    if n_studies > MAX_CARDS and (line := _row_line(study)):
        markup["overview"] = line
    return markup


def _row_line(study: Summary) -> str:
    """Return the accuracies of the filtered and the primary arm as a line of a row; empty without both."""
    arms = ("filtered", study["plan"]["primary"])
    curves = [curve for curve in accuracy_curves(study) if curve.key.arm in arms]
    return sparkline(curves, unit="%") if {curve.key.arm for curve in curves} == set(arms) else ""


def filter_charts(summary: Summary) -> dict[str, str]:
    """Return `classes`, and `eps` next to table I, as markup."""
    charts = {"classes": class_share_chart(*_class_shares(summary))}
    if is_about_table_one(summary):
        charts["eps"] = eps_chart(*_eps_curves(summary), unit=_unit(summary["networks"][0]))
    return {name: plotly_html(chart, element_id=f"filter-{name}") for name, chart in charts.items()}


def warmup_chart(summary: Summary) -> str | None:
    """Return the best warm-ups as markup; None without such studies."""
    if not (curves := warmup_curves(summary["warmup_laws"])):
        return None
    return plotly_html(batch_chart(curves, **_warmup_arguments()), element_id="warmups-best")


def _warmup_files(summary: Summary) -> Iterator[tuple[str, Figure]]:
    """Yield the name of the file and the figure."""
    if curves := warmup_curves(summary["warmup_laws"]):
        yield "warmups.svg", batch_figure(curves, **_warmup_arguments())


def _warmup_arguments() -> dict[str, Any]:
    return {"y_title": WARMUP_TITLE, "published": published_warmups(BEST_WARMUPS, BEST_WARMUPS_SOURCE)}


def _filter_files(summary: Summary) -> Iterator[tuple[str, Figure]]:
    """Yield the name of each file and its figure."""
    yield "filter.classes.svg", class_share_figure(*_class_shares(summary))
    if is_about_table_one(summary):
        yield "filter.eps.svg", eps_figure(*_eps_curves(summary), unit=_unit(summary["networks"][0]))


def _class_shares(summary: Summary) -> tuple[list[str], dict[str, list[float]]]:
    """Return the class names, and for each network the noise share of each class, 0 to 1."""
    networks = summary["networks"]
    return [row["class"] for row in networks[0]["classes"]], {
        network["name"]: [row["n_noise"] / max(1, row["n"]) for row in network["classes"]] for network in networks
    }


def _eps_curves(summary: Summary) -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
    """Return for each network the share above each threshold, and the threshold in use if all classes share one."""
    networks = summary["networks"]
    return {network["name"]: (network["curve"]["eps"], network["curve"]["share"]) for network in networks}, {
        network["name"]: (network["eps"], network["noise_share"]) for network in networks if network["eps"] is not None
    }


def _unit(network: Summary) -> str:
    if network["scorer"] != "dbscan":
        return f"threshold of {network['scorer']}"
    units = {"embedding": "units of the embedding", "components": "units of the components"}
    return f"eps ({units[network['space']]})"


def class_panels_image(network: NetworkInputs, inputs: ReportInputs) -> str:
    """Return the panels of single classes as a data URI."""
    panels = class_panels(*_maps(network, inputs)["train"])
    return data_uri("image/png", png(panels, dpi=120, transparent=True))


def dropped_images(network: NetworkInputs, inputs: ReportInputs) -> list[DroppedImage]:
    """Return the dropped images for the page's gallery, the most suspect first."""
    names = inputs.data.class_names
    return [
        DroppedImage(
            source=data_uri(*thumbnail(np.asarray(inputs.data.train.images[row]))),
            path=network.path[row],
            label=names[network.labels[row]],
            suggested=names[network.suggested[row]],
            suggested_probability=float(network.suggested_probability[row]),
            truth=None if inputs.true_labels is None else names[inputs.true_labels[row]],
            score=float(network.score[row]),
            reason=network.reason[row],
        )
        for row in most_suspect(network, inputs.params.report.gallery_images)
    ]


def figure_files(
    inputs: ReportInputs, summary: Summary, done: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, bytes]]:
    """Yield all figures as files: name and content. Each has a note if labels were planted.

    Args:
        done: called after the figures of each study, and of each network.
    """
    note = planted_headline(summary["planted"][0]) if summary["planted"] else None
    for name, figure in _figures(inputs, summary, done):
        with_note(figure, note)
        yield name, svg(figure) if name.endswith(".svg") else png(figure)


def _figures(inputs: ReportInputs, summary: Summary, done: Callable[[], None]) -> Iterator[tuple[str, Figure]]:
    for study in summary["studies"]:
        if curves := accuracy_curves(study):
            figure = batch_figure(curves, y_title=TOP1_TITLE, published=published_values(study))
            yield f"{study['name']}.accuracy.svg", figure
        if best := best_batch_curves(study):
            yield f"{study['name']}.best_batch.svg", rate_figure(best, tried=sizes_tried(study))
        if curves := difference_curves(study):
            yield f"{study['name']}.differences.svg", batch_figure(curves, y_title=POINTS_TITLE, zero_line=True)
        for name, (quantity, axis) in _LEARNING.items():
            if panels := learning_panels(study, quantity):
                yield f"{study['name']}.{name}.svg", learning_figure(panels, axis, x_axis=study["x_axis"])
        done()
    yield from _warmup_files(summary)
    yield from _filter_files(summary)
    names = inputs.data.class_names
    for network in inputs.networks:
        for split, arguments in _maps(network, inputs).items():
            yield f"{network.name}.{split}-map.png", class_map(*arguments)
        yield f"{network.name}.class-noise.png", class_panels(*_maps(network, inputs)["train"])
        rows = most_suspect(network, inputs.params.report.gallery_images)
        captions = [f"{names[network.labels[row]]}\n→ {names[network.suggested[row]]}" for row in rows]
        if inputs.true_labels is not None:
            truths = [names[label] for label in inputs.true_labels[rows]]
            captions = [f"{caption}, true {truth}" for caption, truth in zip(captions, truths, strict=True)]
        grid = image_grid([np.asarray(inputs.data.train.images[row]) for row in rows], captions)
        yield f"{network.name}.dropped.png", grid
        if (pairs := duplicates_figure(network, inputs)) is not None:
            yield f"{network.name}.near-duplicates.png", pairs
        done()


def most_suspect(network: NetworkInputs, n: int) -> NDArray[np.int64]:
    """Return the rows (k,) of at most `n` dropped images, by descending score, then by row."""
    dropped = np.flatnonzero(~network.keep)
    order: NDArray[np.int64] = dropped[np.argsort(-network.score[dropped], kind="stable")][:n]
    return order


def _maps(network: NetworkInputs, inputs: ReportInputs) -> dict[str, tuple[Any, ...]]:
    """Return the arguments of `class_map` by split; noise is known only for the training images."""
    names = inputs.data.class_names
    return {
        "train": (network.xy, network.labels, names, network.is_noise),
        "test": (network.test_xy, inputs.data.test.labels, names),
    }
