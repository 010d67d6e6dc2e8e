"""The report shows near duplicates if the filter searched for them, and says nothing of them otherwise."""

from pathlib import Path

import pyarrow as pa
import pytest
from markupsafe import escape

from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import DataPaths
from pipeline.reporting.data_quality import pair_pictures
from pipeline.reporting.figures import figure_files
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import build_summary
from tests.fixtures.report import params_with, write_artifacts
from tests.fixtures.unsaved_figures import figures_unsaved
from tests.unit.reporting.test_render_document import render as render_document
from tests.unit.reporting.test_render_page import Parsed
from tests.unit.reporting.test_render_page import render as render_page

_COUNTS = {
    "n_pairs": 3,
    "n_test": 40,
    "n_test_with_training": 1,
    "n_training_with_test": 1,
    "n_training_pairs_same_label": 1,
    "n_training_pairs_other_label": 1,
    "n_dropped": 2,
}


def _write_pairs(data: DataPaths, network: str) -> None:
    train, test = (read_parquet(data.manifest(split), ("path", "label", "label_name")) for split in ("train", "test"))
    rows = []
    n_classes = len(set(train["label"].to_pylist()))
    for first, split, second in ((0, "test", 1), (2, "train", 3), (4, "train", 4 + n_classes)):
        other = test if split == "test" else train
        rows.append(
            {
                "sample_id": first,
                **{name: train[name][first].as_py() for name in train.column_names},
                "other_split": split,
                "other_sample_id": second,
                **{f"other_{name}": other[name][second].as_py() for name in other.column_names},
                "similarity": 0.987654,
                "pixel_correlation": 0.95,
                "chance_pairs": 0.01,
            }
        )
    write_parquet(data.near_duplicates(network), pa.Table.from_pylist(rows))
    points = read_parquet(data.points(network))
    keep = points["keep"].to_numpy().copy()
    keep[:2] = False
    column = points.column_names.index("keep")
    write_parquet(data.points(network), points.set_column(column, "keep", pa.array(keep)))
    metrics = read_json(data.filter_metrics(network))
    write_json(data.filter_metrics(network), {**metrics, "near_duplicates": _COUNTS})


def test_page_and_document_show_the_pairs(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    _write_pairs(data, "resnet18")
    inputs = load_report_inputs(params, data)
    pictures = pair_pictures(inputs.networks[0], inputs)
    assert {kind: len(pairs) for kind, pairs in pictures.items()} == {"test": 1, "other_label": 1, "same_label": 1}
    for pairs in pictures.values():
        assert pairs[0].sources[0] != pairs[0].sources[1]
    summary = build_summary(inputs)
    assert summary["networks"][0]["near_duplicates"] == _COUNTS
    assert summary["networks"][0]["n_by_hand"] == 0
    with figures_unsaved():
        assert "resnet18.near-duplicates.png" in dict(figure_files(inputs, summary))
    for text in (Parsed(render_page(params, data)).text, render_document(params, data)[0].replace("\\", "")):
        assert "1 of 40 test images (2.50%) nearly equal a training image." in text
        assert "1 pair of training images with one label and 1 with different labels" in text
    assert str(escape(pictures["test"][0].paths[1])) in render_page(params, data)


@pytest.mark.slow
def test_nothing_is_said_without_a_search(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    inputs = load_report_inputs(params, data)
    assert pair_pictures(inputs.networks[0], inputs) == {}
    with figures_unsaved():
        assert not [name for name, _ in figure_files(inputs, build_summary(inputs)) if "near" in name]
    assert "near duplicate" not in render_page(params, data).lower()
    assert "near duplicate" not in render_document(params, data)[0].lower()


@pytest.mark.slow
def test_a_gallery_of_one_image_shows_no_pair(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    params = params.model_copy(update={"report": params.report.model_copy(update={"gallery_images": 1})})
    write_artifacts(data, params)
    _write_pairs(data, "resnet18")
    inputs = load_report_inputs(params, data)
    assert pair_pictures(inputs.networks[0], inputs) == {}
    with figures_unsaved():
        assert not [name for name, _ in figure_files(inputs, build_summary(inputs)) if "near" in name]
    assert "1 of 40 test images (2.50%) nearly equal a training image." in Parsed(render_page(params, data)).text
