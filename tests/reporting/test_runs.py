from pathlib import Path
from typing import Any

import pytest
from made_up_report import params_with, write_study

from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.reporting import runs as runs_module
from pipeline.reporting.runs import Setting, describe, read_runs, varying_fields
from pipeline.training.cells import HISTORY_SCHEMA, RUNS_SCHEMA


def test_what_is_read_is_what_training_writes() -> None:
    assert set(runs_module._RUN_COLUMNS) <= set(RUNS_SCHEMA.names)
    assert {"fingerprint", "examples", "train_loss"} <= set(HISTORY_SCHEMA.names)


def test_each_cell_has_its_own_history(tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    write_study(data, params_with(), "digits")
    runs = read_runs(data.runs("digits"), data.history("digits"))
    assert len(runs) == 27
    run = next(run for run in runs if run.seed == 2 and run.setting.batch_size == 128)
    assert [examples for examples, _ in run.history] == [128, 15 * 128, 45 * 128]
    assert [loss for _, loss in run.history] == pytest.approx([2.5, 2.3 / 15 + 0.2, 2.3 / 45 + 0.2])


@pytest.mark.parametrize("wrong", [{"arm": "best"}, {"top1": None}])
def test_rows_that_no_study_gives_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    data = DataPaths(root=tmp_path)
    write_study(data, params_with(seeds=[0]), "digits", lambda row: {"top1": 0.5, **wrong})
    with pytest.raises(InputError, match=r"digits.parquet: a row with arm .* run `dvc repro"):
        read_runs(data.runs("digits"), data.history("digits"))


def test_only_what_varies_is_named() -> None:
    settings = [Setting("resnet18", 32, rate, 5e-4) for rate in (0.05, 0.1)] + [Setting("resnet18", 64, 0.05, 5e-4)]
    assert varying_fields(settings) == ("learning_rate",)
    assert describe(settings[1], varying_fields(settings)) == "lr 0.1"
    assert describe(settings[1], ("model", "weight_decay")) == "resnet18, wd 0.0005"
    assert describe(settings[0], varying_fields(settings[:1])) == ""
