"""Spaces and radii that find planted images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from pipeline.__main__ import main
from pipeline.artifacts.files import write_array, write_json
from pipeline.config.filter import FilterConfig
from pipeline.paths import DataPaths
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.progress import progress_of, show_every_update
from tests.fixtures.projects import (
    NETWORK,
    class_blobs,
    write_embedding,
    write_manifest,
    write_params,
    write_predictions,
)


def _project(folder: Path, n_classes: int = 3) -> list[str]:
    """Classes that lie apart among the components and on the second map, and on one heap on the first."""
    data = DataPaths(root=folder / "data")
    places, labels = class_blobs(np.random.default_rng(0), n_classes=n_classes, per_class=100, dimensions=2)
    write_manifest(data, "train", labels)
    write_predictions(data, labels)
    write_embedding(data, places)
    heap = np.random.default_rng(1).normal(size=places.shape).astype(np.float32)
    write_array(data.embeddings(NETWORK), np.stack([heap, places]))
    data.overrides.write_text("path,sha256,decision,label,note,timestamp\n")
    made = [{"tsne": {"requested": {"perplexity": value, "random_state": 0}}} for value in (30.0, 50.0)]
    write_json(data.reduce_metrics(NETWORK), {"maps": made})
    params = write_params(folder)
    return ["calibrate", "--network", NETWORK, "--params", str(params), "--data", str(data.root)]


def test_the_space_in_which_classes_lie_apart_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*_project(tmp_path), "--min-samples", "3", "5"]
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert len(rows) == 6
    assert {row["space"] for row in rows[:4]} == {"components", "embedding, perplexity 50.0"}
    assert {row["space"] for row in rows[4:]} == {"embedding"}
    assert rows[0]["average_precision"] > 0.6 > 0.1 > rows[-1]["average_precision"]
    assert printed.err == (
        f"{tmp_path / 'data'}: no provenance.json of prepare, finetune@{NETWORK}, extract@{NETWORK}, "
        f"reduce@{NETWORK}: their files were not checked\n"
    )
    assert main(command) == 0
    best = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("best: "))
    written = YAML(typ="safe").load(best.removeprefix("best: "))["filter"]
    assert written["scorer"] == {
        "name": "dbscan",
        "space": rows[0]["space"].split(",")[0],
        "min_samples": rows[0]["min_samples"],
    }
    assert written["eps"] == "tuned"


def test_the_settings_of_the_best_embedding_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, components = _project(tmp_path), DataPaths(root=tmp_path / "data").components(NETWORK)
    shape = np.load(components).shape
    write_array(components, np.random.default_rng(2).normal(size=shape).astype(np.float32))
    assert main([*command, "--min-samples", "5"]) == 0
    assert "reduce.tsne with perplexity 50.0" in capsys.readouterr().out


def test_an_assumed_fraction_is_printed_as_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_project(tmp_path), "--min-samples", "5", "--planted-fraction", "0.2"]) == 0
    best = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("best: "))
    written = YAML(typ="safe").load(best.removeprefix("best: "))["filter"]
    assert FilterConfig.model_validate(written).planted_fraction == 0.2


def test_a_min_samples_above_all_classes_is_left_out_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = _project(tmp_path)
    assert main([*command, "--min-samples", "5", "200", "--json"]) == 0
    assert {row["min_samples"] for row in json.loads(capsys.readouterr().out)} == {5}
    assert main([*command, "--min-samples", "200"]) == 2
    assert printed_error(capsys.readouterr().err).key == "calibrate"


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"--min-samples": "0"}, "--min-samples 0"),
        ({"--planted-fraction": "0.5"}, "--planted-fraction 0.5"),
        ({"--network": "resnet50"}, "--network resnet50"),
        ({"--data": "nowhere"}, "nowhere/prepare/train.parquet"),
    ],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], key: str) -> None:
    command = _project(tmp_path)
    assert main([*command, *(part for pair in arguments.items() for part in pair)]) == 2
    assert printed_error(capsys.readouterr().err).key == key


def test_one_class_has_no_other_to_plant_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_project(tmp_path, n_classes=1)) == 2
    assert printed_error(capsys.readouterr().err).key == "calibrate"


def test_every_setting_counts_also_one_without_an_eps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_every_update(monkeypatch)
    assert main([*_project(tmp_path), "--min-samples", "5", "200"]) == 0
    shown = progress_of(capsys.readouterr().err)
    assert shown == {"calibrate": [(done, 6, "settings") for done in range(1, 7)]}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        '["maps"]',
        '{"maps": {}}',
        '{"maps": []}',
        '{"maps": [3, 4]}',
        '{"maps": [{"tsne": {}}, {"tsne": {}}]}',
        '{"maps": [{"tsne": {"requested": {}}}]}',
    ],
)
def test_damaged_metrics_of_the_embedding_are_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, path = _project(tmp_path), DataPaths(root=tmp_path / "data").reduce_metrics(NETWORK)
    path.write_text(text)
    assert main(command) == 2
    assert printed_error(capsys.readouterr().err.splitlines()[-1]).key == str(path)


def test_settings_that_only_one_embedding_has_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, path = _project(tmp_path), DataPaths(root=tmp_path / "data").reduce_metrics(NETWORK)
    write_json(path, {"maps": [{"tsne": {"requested": value}} for value in ({}, {"perplexity": 50.0})]})
    assert main([*command, "--min-samples", "5"]) == 0
    assert "embedding, perplexity 50.0" in capsys.readouterr().out
