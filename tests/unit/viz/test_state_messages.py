"""Texts of the visualizer: messages, results of actions, and texts of images and settings."""

from pathlib import Path
from typing import Any

import pytest
from dash import html

from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.overrides import Override
from pipeline.paths import DataPaths
from pipeline.replication.published import KEPT_SHARES
from tests.fixtures.dash_components import all_of, text_of
from tests.fixtures.golden import check_golden
from tests.fixtures.planted import say_planted
from tests.fixtures.projects import NETWORK, write_params
from tests.fixtures.records import record
from tests.fixtures.report import write_network
from tests.fixtures.view import decide
from viz.callbacks.compare import draw_comparison
from viz.callbacks.embedding import MapControls, draw
from viz.callbacks.file_watch import update_notice
from viz.callbacks.filter_controls import adjust
from viz.callbacks.gallery import browse
from viz.callbacks.hover import describe
from viz.callbacks.overrides import OverrideSessions, run_command
from viz.callbacks.params_dialog import show_difference, write_settings
from viz.callbacks.summary import summarize
from viz.components import PAPER_FRACTIONS
from viz.data import Points, Source
from viz.decisions import Decisions, Image
from viz.export import page as export_page
from viz.export.page import make_content
from viz.filter_settings import FilterSettings, Limit, preview_filter
from viz.layout import ALL
from viz.state import settings_to_json

_HERE, _OTHER = MapControls(network=NETWORK), MapControls(network="resnet34")


def _check(name: str, texts: dict[str, Any], folder: Path) -> None:
    """Compare with a golden file that has one paragraph per case."""
    text = "\n".join(f"# {case}\n{text_of(part)}\n" for case, part in texts.items())
    check_golden(name, text.replace(str(folder), "FOLDER"))


def test_messages_of_what_cannot_be_shown(data: DataPaths, source: Source, tmp_path: Path) -> None:
    plotted = draw(source, _HERE, "class")["plotted"]
    texts = {
        f"an empty list: {which}": browse(source, _HERE, which, "suspect", 0)["grid"]
        for which in ("selection", "hand", "a", "planted")
    }
    nothing = MapControls(network=NETWORK, scores=[0.501, 0.502])
    texts |= {
        "no image passes": browse(source, nothing, "shown", "suspect", 0)["grid"],
        "no point was clicked": describe(source, None, _HERE),
        "a network without files": draw(source, _OTHER, "class")["problem"],
        "its images": browse(source, _OTHER, "dropped", "suspect", 0)["grid"],
        "its controls": adjust(source, "resnet34", None, ALL, None, None)["used"],
        "a network that comes": update_notice(source, NETWORK, None),
        "a network that is gone": update_notice(source, "resnet34", plotted),
    }
    write_network(data, NETWORK, seed=1)
    texts["new files"] = update_notice(source, NETWORK, plotted)
    texts["nothing has run"] = draw(Source(DataPaths(root=tmp_path / "empty")), _HERE, "class")["problem"]
    _check("visualizer_problems.txt", texts, tmp_path)


def test_messages_of_decisions(data: DataPaths, source: Source, points: Points, tmp_path: Path) -> None:
    def done(action: str, *rows: int, note: str = "", page: str = "p") -> str:
        command = {"action": action, "generation": points.generation, "page": page, "note": note}
        return run_command(source, sessions, {**command, "rows": list(rows)}).message

    sessions = OverrideSessions(data.overrides)
    images = [Image(points.paths[row].as_py(), points.sha256[row].as_py()) for row in (0, 1, 2)]
    texts = {
        "one image": done("drop", 3),
        "several": done("keep-selection", 3, 4),
        "undone": done("undo"),
        "nothing to undo": done("undo", page="another"),
        "a note of two lines": done("drop", 3, note="two\nlines"),
        "no decision to clear": Decisions(data.overrides).decide(images[:1], None, "").message,
    }
    mine = Decisions(data.overrides)
    mine.decide(images, "drop", "mine")
    Decisions(data.overrides).decide(images[1:], "keep", "theirs")
    undone = mine.undo()
    assert undone is not None
    texts["undone but for others"] = undone.message
    write_network(data, NETWORK, seed=1)
    texts["rows of files that are gone"] = done("drop", 3)
    _check("visualizer_decisions.txt", texts, tmp_path)


def test_texts_of_images_and_settings(data: DataPaths, source: Source, points: Points, tmp_path: Path) -> None:
    write_network(data, "resnet34", dropped=10)
    write_json(data.prepare_metrics, read_json(data.prepare_metrics) | {"dataset": "cifar10"})
    record(data, "prepare")
    decide(data, points, {79: "keep", 0: "drop"})
    params = write_params(tmp_path, filter={"drop_fraction": 0.05})
    own = settings_to_json(FilterSettings(scorer_choice="dbscan", per_class={1: Limit(threshold=0.5)}))
    curve, table = summarize(
        source,
        NETWORK,
        settings_to_json(FilterSettings(scorer_choice="dbscan", limit=Limit(min_samples=3))),
        ALL,
    )
    texts = {
        "dropped, kept by hand": describe(source, 79, _HERE),
        "kept, dropped by hand": describe(source, 0, _HERE),
        "dropped": describe(source, 78, _HERE),
        "some are shown": draw(source, MapControls(network=NETWORK, classes=[2, 3]), "class")["notice"],
        "two settings": draw_comparison(source, _HERE, _OTHER)["differences"],
        "the filter's own settings": adjust(source, NETWORK, None, ALL, None, None)["used"],
        "the table of classes": all_of(table, html.Caption),
        "the curve's axis": curve.layout.annotations[0].text,
        "the same settings are written": show_difference(
            source, params, NETWORK, settings_to_json(FilterSettings()), "limit"
        )[0],
        "settings of a class are written": show_difference(source, params, NETWORK, own, "limit")[0],
        "another difference was shown": write_settings(source, params, NETWORK, own, "limit", "x"),
    }
    _check("visualizer_images.txt", texts, tmp_path)


def test_texts_of_planted_labels_and_samples(data: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say_planted(data, {3: 0, 75: 1, 78: 1, 79: 2})
    source = Source(data)
    points = source.points(NETWORK)
    monkeypatch.setattr(export_page, "MAX_SHOWN", 20)
    override = Override(path="", sha256="", decision="keep", note="fine", timestamp="", line=2)
    exported = make_content(points, preview_filter(source, points, FilterSettings()), {79: override}).about
    texts = {
        "the map": draw(source, _HERE, "class")["planted"],
        "a planted label": describe(source, 79, _HERE),
        "an exported map": exported["notes"],
    }
    _check("visualizer_planted.txt", texts, tmp_path)


def test_the_papers_fractions_are_those_of_the_report() -> None:
    assert {network: round(1 - kept, 4) for network, kept in KEPT_SHARES.items()} == PAPER_FRACTIONS
