"""What the visualizer says: of what it cannot show, of what it did, and of the images and the settings."""

from pathlib import Path
from typing import Any

import pytest
from dash import html
from dash_components import all_of, text_of
from golden import check_golden
from made_up import NETWORK, write_params
from made_up_planted import say_planted
from made_up_report import write_network
from made_up_view import decide, view_data

from pipeline.artifacts.overrides import Override
from pipeline.paths import DataPaths
from viz.callbacks.browsing import browse
from viz.callbacks.comparing import draw_other
from viz.callbacks.deciding import Desk, carry_out
from viz.callbacks.exploring import Asked, draw
from viz.callbacks.judging import adjust, summarize
from viz.callbacks.pointing import describe
from viz.callbacks.proposing import show_difference, write_rule
from viz.callbacks.watching import news
from viz.data import Points, Source
from viz.decisions import Decisions, Image
from viz.export import content
from viz.export.content import content_of
from viz.layout import ALL
from viz.look import rule_to_json
from viz.rules import Limit, Rule, judge

_HERE, _OTHER = Asked(network=NETWORK), Asked(network="resnet34")


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    return view_data(tmp_path)


@pytest.fixture
def source(data: DataPaths) -> Source:
    return Source(data)


@pytest.fixture
def points(source: Source) -> Points:
    return source.points(NETWORK)


def _check(name: str, said: dict[str, Any], folder: Path) -> None:
    """A golden file with a paragraph for each message, by the name of the case."""
    text = "\n".join(f"# {case}\n{text_of(part)}\n" for case, part in said.items())
    check_golden(name, text.replace(str(folder), "FOLDER"))


def test_what_cannot_be_shown(data: DataPaths, source: Source, tmp_path: Path) -> None:
    drawn = draw(source, _HERE, "class")["drawn"]
    said = {
        f"an empty list: {which}": browse(source, _HERE, which, "suspect", 0)["grid"]
        for which in ("selection", "hand", "a", "planted")
    }
    nothing = Asked(network=NETWORK, scores=[0.501, 0.502])
    said |= {
        "no image passes": browse(source, nothing, "shown", "suspect", 0)["grid"],
        "no point was clicked": describe(source, None, _HERE),
        "a network without files": draw(source, _OTHER, "class")["problem"],
        "its images": browse(source, _OTHER, "goes", "suspect", 0)["grid"],
        "its controls": adjust(source, "resnet34", None, ALL, None, None)["used"],
        "a network that comes": news(source, NETWORK, None),
        "a network that is gone": news(source, "resnet34", drawn),
    }
    write_network(data, NETWORK, seed=1)
    said["new files"] = news(source, NETWORK, drawn)
    said["nothing has run"] = draw(Source(DataPaths(root=tmp_path / "empty")), _HERE, "class")["problem"]
    _check("visualizer_problems.txt", said, tmp_path)


def test_what_was_decided(data: DataPaths, source: Source, points: Points, tmp_path: Path) -> None:
    def done(action: str, *rows: int, note: str = "", page: str = "p") -> str:
        asked = {"action": action, "rows": rows, "generation": points.generation, "page": page, "note": note}
        return carry_out(source, desk, {**asked, "rows": list(rows)}).said

    desk = Desk(data.overrides)
    images = [Image(points.paths[row].as_py(), points.sha256[row].as_py()) for row in (0, 1, 2)]
    said = {
        "one image": done("drop", 3),
        "several": done("keep-selection", 3, 4),
        "undone": done("undo"),
        "nothing to undo": done("undo", page="another"),
        "a note of two lines": done("drop", 3, note="two\nlines"),
        "no decision to clear": Decisions(data.overrides).decide(images[:1], None, "").sentence,
    }
    mine = Decisions(data.overrides)
    mine.decide(images, "drop", "mine")
    Decisions(data.overrides).decide(images[1:], "keep", "theirs")
    undone = mine.undo()
    assert undone is not None
    said["undone but for others"] = undone.sentence
    write_network(data, NETWORK, seed=1)
    said["rows of files that are gone"] = done("drop", 3)
    _check("visualizer_decisions.txt", said, tmp_path)


def test_what_is_said_of_images_and_settings(data: DataPaths, source: Source, points: Points, tmp_path: Path) -> None:
    write_network(data, "resnet34", dropped=10)
    decide(data, points, {79: "keep", 0: "drop"})
    params = write_params(tmp_path, filter={"drop_share": 0.05})
    own = rule_to_json(Rule(judge="dbscan", own={1: Limit(threshold=0.5)}))
    curve, table = summarize(source, NETWORK, rule_to_json(Rule(judge="dbscan", limit=Limit(min_samples=3))), ALL)
    said = {
        "dropped, kept by hand": describe(source, 79, _HERE),
        "kept, dropped by hand": describe(source, 0, _HERE),
        "dropped": describe(source, 78, _HERE),
        "some are shown": draw(source, Asked(network=NETWORK, classes=[2, 3]), "class")["notice"],
        "two settings": draw_other(source, _HERE, _OTHER)["differences"],
        "the filter's own settings": adjust(source, NETWORK, None, ALL, None, None)["used"],
        "the table of classes": all_of(table, html.Caption),
        "the curve's axis": curve.layout.yaxis.title.text,
        "the same settings are written": show_difference(source, params, NETWORK, rule_to_json(Rule()), "limit")[0],
        "settings of a class are written": show_difference(source, params, NETWORK, own, "limit")[0],
        "another difference was shown": write_rule(source, params, NETWORK, own, "limit", "x"),
    }
    _check("visualizer_images.txt", said, tmp_path)


def test_what_is_said_of_planted_labels_and_of_samples(
    data: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_planted(data, {3: 0, 75: 1, 78: 1, 79: 2})
    source = Source(data)
    points = source.points(NETWORK)
    monkeypatch.setattr(content, "MOST_SHOWN", 20)
    override = Override(path="", sha256="", decision="keep", note="fine", timestamp="", line=2)
    exported = content_of(points, judge(source, points, Rule()), {79: override}).about
    said = {
        "the map": draw(source, _HERE, "class")["planted"],
        "a planted label": describe(source, 79, _HERE),
        "an exported map": exported["notes"],
    }
    _check("visualizer_planted.txt", said, tmp_path)
