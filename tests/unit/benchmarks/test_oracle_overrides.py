"""The oracle's decisions drop exactly the labels that were planted."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.oracle_overrides import main
from pipeline.artifacts.overrides import read_overrides, write_overrides
from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths
from tests.fixtures.planted import say_planted
from tests.fixtures.training import write_prepared


def test_planted_labels_are_dropped_and_all_others_kept(tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    write_prepared(data)
    labels = read_parquet(data.manifest("train"), ["label"])["label"].to_numpy()
    say_planted(data, {3: (labels[3] + 1) % 4, 8: (labels[8] + 2) % 4})
    for _ in range(2):  # again the same
        main(["--data", str(tmp_path)])
        decided = read_overrides(data.overrides)
        assert [row for row, override in enumerate(decided) if override.decision == "drop"] == [3, 8]
        assert {override.decision for override in decided} == {"keep", "drop"}
        assert len(decided) == len(labels)
        assert len(np.unique([override.path for override in decided])) == len(labels)


def test_other_decisions_and_unplanted_data_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DataPaths(root=tmp_path)
    write_prepared(data)
    with pytest.raises(SystemExit) as ended:
        main(["--data", str(tmp_path)])
    assert ended.value.code == 2
    assert "no label was planted" in capsys.readouterr().err
    assert not data.overrides.exists()
    say_planted(data, {0: 2})
    main(["--data", str(tmp_path)])
    first = read_overrides(data.overrides)[:1]
    write_overrides(data.overrides, [type(first[0])(**{**vars(first[0]), "note": "seen by hand"})])
    before = data.overrides.read_bytes()
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path)])
    assert data.overrides.read_bytes() == before
