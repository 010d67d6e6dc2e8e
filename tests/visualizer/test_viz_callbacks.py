import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dash import no_update
from made_up_report import CLASS_NAMES, N_TRAIN, write_network, write_prepared

from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.overrides import COLUMNS
from pipeline.artifacts.tables import read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.selection import dbscan
from viz.callbacks import choose, explore, hover, network_controls
from viz.data import Source, live_keep
from viz.layout import ALL_CLASSES


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    paths = DataPaths(root=tmp_path)
    write_prepared(paths)
    write_network(paths, "resnet18")
    return paths


def _text(component: Any) -> str:
    """All that a part of the page holds, as the browser gets it."""
    parts = component if isinstance(component, list) else [component]
    return json.dumps([part.to_plotly_json() for part in parts], default=lambda inner: inner.to_plotly_json())


def _event(row: int) -> dict[str, Any]:
    return {"points": [{"customdata": row, "bbox": {"x0": 1, "x1": 2, "y0": 3, "y1": 4}}]}


@pytest.mark.parametrize("min_samples", [1, 3, 30])
@pytest.mark.parametrize("eps", [0.05, 0.4, 1.5])
def test_live_noise_is_that_of_dbscan(data: DataPaths, eps: float, min_samples: int) -> None:
    source = Source(data)
    points = source.points("resnet18")
    keep, noise = live_keep(points, source.radii("resnet18", min_samples), eps)
    classes = [points.labels == label for label in np.unique(points.labels)]
    expected = np.zeros(len(keep), dtype=bool)
    for rows in classes:
        expected[rows] = dbscan.cluster(points.coordinates[rows], eps, min_samples) == -1
    np.testing.assert_array_equal(noise, expected)
    np.testing.assert_array_equal(keep, ~expected)


def test_an_eps_that_equals_a_distance_reaches_it(data: DataPaths) -> None:
    source = Source(data)
    points, radii = source.points("resnet18"), source.radii("resnet18", 2)
    _, noise = live_keep(points, radii, float(radii[7]))
    assert not noise[7]


def test_people_overrule_noise(data: DataPaths) -> None:
    table = read_parquet(data.points("resnet18"), ["path", "sha256"]).slice(0, 2).to_pylist()
    lines = [
        f'"{path}",{sha256},{choice},,'
        for (path, sha256), choice in zip(
            [(row["path"].replace('"', '""'), row["sha256"]) for row in table], ("drop", "keep"), strict=True
        )
    ]
    data.overrides.write_text("\n".join([",".join(COLUMNS), *lines, ""]))
    source = Source(data)
    points, radii = source.points("resnet18"), source.radii("resnet18", 3)
    for eps, others in ((1e-6, False), (1e6, True)):
        keep, noise = live_keep(points, radii, eps)
        assert (keep[0], keep[1]) == (False, True)
        assert (keep[2:] == others).all()
        assert (noise != others).all()


def test_radii_are_computed_once_per_network_and_min_samples(data: DataPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = dbscan.release_radii_by_class

    def counted(points: Any, labels: Any, *, min_samples: int) -> Any:
        asked.append(min_samples)
        return real(points, labels, min_samples=min_samples)

    monkeypatch.setattr("viz.data.release_radii_by_class", counted)
    source = Source(data)
    for eps in (0.1, 0.2, 0.3):
        for min_samples in (3, 4):
            explore(source, "resnet18", ALL_CLASSES, "decision", eps, min_samples)
    assert sorted(asked) == [3, 4]
    write_network(data, "resnet18")
    explore(source, "resnet18", ALL_CLASSES, "decision", 0.1, 3)
    assert sorted(asked) == [3, 3, 4], "files replaced by a stage are read again"


def test_table_counts_what_the_map_shows(data: DataPaths) -> None:
    figure, table, problem = explore(Source(data), "resnet18", ALL_CLASSES, "decision", 0.4, 3)
    assert problem is None
    kept, dropped = (len(trace.customdata) for trace in figure.data)
    assert kept > 0 < dropped
    caption, _, body = (part.children for part in table.children)
    assert caption == "at eps 0.4, min_samples 3 (the filter used eps 1.5)"
    rows = [[cell.children for cell in row.children] for row in body]
    assert rows[0] == ["all", "80", f"{dropped / N_TRAIN:.1%}", str(kept), "74"]
    assert [row[0] for row in rows[1:]] == list(CLASS_NAMES)
    assert sum(int(row[3]) for row in rows[1:]) == kept


def test_zoom_is_kept(data: DataPaths) -> None:
    zoom = {"xaxis.range[0]": 1.0, "xaxis.range[1]": 2.0, "yaxis.range[0]": 3.0, "yaxis.range[1]": 4.0}
    for event, expected in ((zoom, [(1.0, 2.0), (3.0, 4.0)]), ({"autosize": True}, [None, None]), (None, [None, None])):
        figure, _, _ = explore(Source(data), "resnet18", ALL_CLASSES, "class", 0.4, 3, zoom=event)
        assert [figure.layout.xaxis.range, figure.layout.yaxis.range] == expected


def test_one_class_alone(data: DataPaths) -> None:
    figure, _, _ = explore(Source(data), "resnet18", 2, "class", 0.4, 3)
    assert [row % 4 for trace in figure.data for row in trace.customdata] == [2] * 20


@pytest.mark.parametrize("chosen", [None, ALL_CLASSES, 4])
def test_all_classes(data: DataPaths, chosen: int | None) -> None:
    figure, _, _ = explore(Source(data), "resnet18", chosen, "class", 0.4, 3)
    assert sum(len(trace.customdata) for trace in figure.data) == N_TRAIN


@pytest.mark.parametrize(("eps", "min_samples"), [(None, 3), (0.4, None), (0.4, 0), (0.4, 101)])
def test_what_may_not_be_typed_changes_nothing(data: DataPaths, eps: float | None, min_samples: int | None) -> None:
    assert explore(Source(data), "resnet18", ALL_CLASSES, "class", eps, min_samples) == (no_update,) * 3


def test_controls_start_where_the_filter_stands(data: DataPaths) -> None:
    options, greatest, step, value = network_controls(Source(data), "resnet18", 3)
    assert [option["value"] for option in options] == [ALL_CLASSES, 0, 1, 2, 3]
    assert value == 1.5
    assert greatest >= 3.0
    assert 100 < greatest / step < 10_000


def test_hover_tells_all_about_a_point(data: DataPaths) -> None:
    shown, place, content = hover(Source(data), _event(5), "resnet18")
    assert shown
    assert place == {"x0": 1, "x1": 2, "y0": 3, "y1": 4}
    text = _text(content)
    for part in (
        "#5",
        "http://evil.example",
        "predicted <script>",
        "score 0.063",
        "3 of 5 nearest",
        "/thumbnail/5.png",
    ):
        assert part in text, part


@pytest.mark.parametrize("event", [None, {"points": []}, {"points": [{}]}, _event(80), _event(-1)])
def test_hover_over_nothing(data: DataPaths, event: dict[str, Any] | None) -> None:
    assert hover(Source(data), event, "resnet18")[0] is False


def test_click_shows_the_neighbours(data: DataPaths) -> None:
    text = _text(choose(Source(data), _event(79), "resnet18"))
    for row in (79, 0, 1, 2):
        assert f"/thumbnail/{row}.png" in text
    assert "Click a point" in _text(choose(Source(data), None, "resnet18"))


def test_missing_artefacts_say_what_to_run(data: DataPaths) -> None:
    source = Source(data)
    for answer in (explore(source, "resnet34", ALL_CLASSES, "class", 1.0, 3)[2], choose(source, _event(0), "resnet34")):
        assert "resnet34/points.parquet: missing; run `dvc repro`" in _text(answer)
    assert hover(source, _event(0), "resnet34")[0] is False
    assert network_controls(source, "resnet34", 3)[0] == [{"label": "all", "value": ALL_CLASSES}]


def test_images_of_another_preparation_are_noticed(data: DataPaths) -> None:
    source = Source(data)
    source.points("resnet18")
    write_array(data.images("train"), np.zeros((79, 8, 8, 3), dtype=np.uint8))
    with pytest.raises(InputError, match="80 rows are not those of the 79 training images; run `dvc repro`"):
        source.points("resnet18")


def test_classes_of_another_preparation_are_noticed(data: DataPaths) -> None:
    data.prepare_metrics.write_text('{"class_names": ["a", "b"]}')
    with pytest.raises(InputError, match=r"column label does not fit .*metrics\.json"):
        Source(data).points("resnet18")
