"""The cache of measured landscapes: damaged files, and what its keys cover."""

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.errors import InputError
from pipeline.landscape import study
from pipeline.landscape.curvature import DISTANCES, LandscapeMeasurement, TopEigenvalue
from pipeline.landscape.study import Method, NetworkMeasurer

_TOP = TopEigenvalue(value=None, residual=None, products=9, converged=False)
_MEASURED = LandscapeMeasurement(loss=1.0, top=_TOP, slices=np.full((2, len(DISTANCES)), 0.5))
_SOUND: dict[str, Any] = study._values(_MEASURED)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = SimpleNamespace(model=None, format=None)
    monkeypatch.setattr(study, "load_trained", lambda *_: trained)
    monkeypatch.setattr(study, "measure", lambda *_, **__: _MEASURED)
    monkeypatch.setattr(NetworkMeasurer, "_load_uncached", lambda *_: (None, None))


def _measured(folder: Path) -> dict[str, Any]:
    method = Method(images=2, directions=2, seed=0)
    measurer = NetworkMeasurer({}, method, data_digest="", folder=folder, device=torch.device("cpu"))
    return measurer._measured(folder / "w.pt", "digest", "train")


_CHANGES: list[dict[str, Any]] = [
    {"loss": "1"}, {"products": None}, {"slices": []}, {"slices": [1, 2]}, {"slices": [["a"] * 21] * 2}, {"more": 1},
]  # fmt: skip


@pytest.mark.parametrize("content", ["{}", "[]", "null", "{", *(json.dumps(_SOUND | change) for change in _CHANGES)])
def test_a_damaged_result_is_not_taken(tmp_path: Path, content: str) -> None:
    _measured(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(content)
    with pytest.raises(InputError, match="run the same command again") as refused:
        _measured(tmp_path)
    assert refused.value.key == str(path)


def test_a_recorded_result_is_taken(tmp_path: Path) -> None:
    assert _measured(tmp_path) == _SOUND
    (path,) = tmp_path.iterdir()
    path.write_text(json.dumps(_SOUND | {"loss": 2.0}))
    assert _measured(tmp_path) == _SOUND | {"loss": 2.0}


def test_another_scipy_measures_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ARPACK finds the eigenvalue."""
    _measured(tmp_path)
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.0" if name == "scipy" else version(name))
    _measured(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
