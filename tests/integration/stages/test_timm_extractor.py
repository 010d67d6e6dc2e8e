"""Networks of timm in the stages finetune and extract: frozen, trained, and without their weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch

from pipeline.paths import DataPaths
from pipeline.training.weights import load_fold_networks
from tests.fixtures.hub import COMMIT, serving_hub, use_hub
from tests.fixtures.loopback import free_port
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import name_networks
from tests.fixtures.training import NAMES, assert_rows_near, bright_images, stage, write_project

_NETWORK = "timm/test_efficientnet"
_REPOSITORY = "timm/test_efficientnet.r160_in1k"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        state = timm.create_model("test_efficientnet").state_dict()
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    safetensors.torch.save_file(state, path)
    return path


def _project(folder: Path, **finetune: Any) -> DataPaths:
    data = write_project(folder, finetune=finetune)
    name_networks(folder / "params.yaml", [_NETWORK])
    return data


@pytest.mark.slow
def test_a_frozen_network_predicts_out_of_fold_as_it_normalizes(weights: Path, tmp_path: Path) -> None:
    data = _project(tmp_path, weights=str(weights), trainable="head", folds=2)
    assert stage("finetune", tmp_path, _NETWORK) == 0
    assert stage("extract", tmp_path, _NETWORK) == 0
    theirs = timm.create_model("test_efficientnet", num_classes=0).eval()
    theirs.load_state_dict(safetensors.torch.load_file(weights), strict=False)
    pixels = torch.from_numpy(bright_images(60)[0]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    resized = torch.nn.functional.interpolate((pixels - mean) / std, (160, 160), mode="bicubic", antialias=True)
    with torch.inference_mode():
        expected = theirs(resized).numpy()
    assert_rows_near(np.load(data.features(_NETWORK)), expected)
    extractor = load_fold_networks(data.extractor(_NETWORK))
    assert extractor.folds is not None
    for fold, network in enumerate(extractor.networks):
        rows = extractor.folds == fold
        given = np.load(data.probabilities(_NETWORK))[rows]
        assert_rows_near(given, network.predict_proba(bright_images(60)[0][rows]))
    metrics = json.loads(data.finetune_metrics(_NETWORK).read_text())
    assert metrics["pretrained"]["name"] == metrics["settings"]["network"] == _REPOSITORY
    assert (metrics["pretrained"]["input_size"], metrics["pretrained"]["file"]) == (160, "w.safetensors")
    assert metrics["settings"]["format"]["mean"] == [0.485, 0.456, 0.406]


@pytest.mark.slow
def test_all_weights_are_trained_from_a_pinned_commit_of_the_hub(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_hub(_REPOSITORY, {"model.safetensors": weights.read_bytes()}) as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache")
        data = _project(tmp_path, weights="pretrained", revisions={_NETWORK: COMMIT})
        assert stage("finetune", tmp_path, _NETWORK) == 0
    record = json.loads(data.finetune_metrics(_NETWORK).read_text())["pretrained"]
    assert (record["revision"], record["sha256"]) == (COMMIT, hub.sha256("model.safetensors"))
    before, (trained,) = safetensors.torch.load_file(weights), load_fold_networks(data.extractor(_NETWORK)).networks
    after = trained.model.state_dict()
    for name in ("conv_stem.weight", "bn1.weight", "bn1.running_var"):
        assert not torch.equal(after[f"backbone.{name}"], before[name]), name
        # Two steps from where it began: not random weights.
        assert torch.corrcoef(torch.stack([after[f"backbone.{name}"].ravel(), before[name].ravel()])).shape == (2, 2)
    torch.testing.assert_close(after["backbone.conv_stem.weight"], before["conv_stem.weight"], atol=0.1, rtol=0)
    assert trained.class_names == NAMES


def test_without_a_network_the_stage_ends_with_one_line_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"http://127.0.0.1:{free_port()}"
    use_hub(monkeypatch, root, tmp_path / "cache")
    for revisions in ({}, {_NETWORK: COMMIT}):
        _project(tmp_path, weights="pretrained", trainable="head", revisions=revisions)
        assert stage("finetune", tmp_path, _NETWORK) == 2
        error = printed_error(capsys.readouterr().err)
        assert error.key.startswith(f"{root}/{_REPOSITORY}/resolve/")
        assert "finetune.weights" in str(error)


def test_a_network_that_timm_does_not_have_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _project(tmp_path, weights="none")
    name_networks(tmp_path / "params.yaml", ["timm/test_efficient_net"])
    assert stage("finetune", tmp_path, "timm/test_efficient_net") == 2
    assert "did you mean timm/test_efficientnet" in str(printed_error(capsys.readouterr().err))
