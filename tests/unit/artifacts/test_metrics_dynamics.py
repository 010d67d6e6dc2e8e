"""Training dynamics on disk: they come back, and files of earlier versions and of other images are recognized."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.artifacts.metrics import read_dynamics, write_dynamics
from pipeline.errors import InputError

_MARGIN = np.array([1.5, -2, np.nan], dtype=np.float32)
_FORGETTING = np.array([0, np.inf, np.nan], dtype=np.float32)


def test_they_come_back(tmp_path: Path) -> None:
    write_dynamics(tmp_path / "d.parquet", _MARGIN, _FORGETTING)
    read = read_dynamics(tmp_path / "d.parquet", 3)
    assert read is not None
    np.testing.assert_array_equal(read[0], _MARGIN)
    np.testing.assert_array_equal(read[1], _FORGETTING)


def test_nothing_recorded_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    assert read_dynamics(path, 3) is None
    write_dynamics(path, np.full(3, np.nan, dtype=np.float32), np.full(3, np.nan, dtype=np.float32))
    assert read_dynamics(path, 3) is None


@pytest.mark.parametrize(
    ("margin", "forgetting", "n"),
    [(_MARGIN, _FORGETTING, 4), (_MARGIN, -_FORGETTING, 3), (_MARGIN * np.float32(np.inf), _FORGETTING, 3)],
)
def test_what_cannot_be_is_refused(tmp_path: Path, margin: np.ndarray, forgetting: np.ndarray, n: int) -> None:
    path = tmp_path / "d.parquet"
    write_dynamics(path, margin, forgetting)
    with pytest.raises(InputError) as raised:
        read_dynamics(path, n)
    assert raised.value.key == str(path)
