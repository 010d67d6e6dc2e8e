"""The plan of the table of audits: order, labels and recipes."""

import argparse
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from benchmarks.audit_minutes import USES
from benchmarks.audit_table.__main__ import iter_cells, main, table_arms
from benchmarks.audit_table.plan import CHOICE_SEED, NOISE_NETWORKS, ROWS, audit_params, label_files, noise_params
from benchmarks.label_noise.arguments import parse
from pipeline.artifacts.files import write_json
from pipeline.config.params import load_params
from tests.fixtures.source_tree import ROOT

_ARCHIVE = Path("images.tar.xz")


def _arguments(folder: Path, **changes: Any) -> argparse.Namespace:
    defaults = {
        "images": _ARCHIVE, "work": folder, "best": "two_folds", "seconds": 1200.0, "few": 12_500, "side": None,
        "resamples": 10,
    }  # fmt: skip
    return argparse.Namespace(**{**defaults, **changes})


def test_rows_are_audited_in_turn_and_each_kind_before_more_seeds(tmp_path: Path) -> None:
    cells = list(iter_cells(_arguments(tmp_path), {}))
    rows = [(row, [cell.arm for cell in group]) for row, group in groupby(cells, lambda cell: (cell.noise, cell.seed))]
    assert len(rows) == len(ROWS) == 10
    assert all(arms == ["resnet18", "resnet9", "two_folds"] for _, arms in rows)
    first = [noise for (noise, _), _ in rows[:5]]
    assert first == ["networks-0.09", "open_set-0.09", "corrupt-0.09", "pair-0.18", "clean"]
    assert sorted(seed for (noise, seed), _ in rows if noise == "networks-0.09") == [0, 1, 2]
    assert len({cell.name for cell in cells}) == len(cells)
    assert set(table_arms(_arguments(tmp_path, best="one"))) == {"resnet18", "resnet9"}
    assert table_arms(_arguments(tmp_path, best="wider"))["wider"] == ("resnet9_wide", "wider")


@pytest.mark.slow
def test_cells_have_equal_time_and_the_labels_of_their_row(tmp_path: Path) -> None:
    for file, _, _ in label_files(tmp_path):
        file.parent.mkdir(exist_ok=True)
        file.write_text("path,label\n")
    speeds = {"resnet18": 0.5, "resnet9": 0.25}
    for cell in iter_cells(_arguments(tmp_path), speeds):
        parsed = parse("", cell.options)
        params = load_params(parsed.params)
        assert (parsed.seconds, parsed.seconds_per_step) == (1200, speeds[params.networks[0]])
        assert (parsed.clock, parsed.seed, params.finetune.seed) == ("cpu", cell.seed, cell.seed)
        assert parsed.folds == ([2] if cell.arm == "two_folds" else [1])
        assert (parsed.labels is not None) == cell.noise.startswith("networks-")
        assert (
            parsed.labels is None or parsed.labels.name == f"{cell.noise.removeprefix('networks-')}-seed{cell.seed}.csv"
        )
        assert parsed.images == (12_500 if cell.noise.startswith("symmetric") else None)
        assert parsed.scorers is None


def test_no_cell_audits_the_labels_on_which_the_use_is_chosen(tmp_path: Path) -> None:
    assert CHOICE_SEED in {seed for _, _, seed in label_files(tmp_path)}
    assert CHOICE_SEED not in {seed for _, seed in ROWS}


def test_no_network_of_the_noise_is_audited_and_all_use_folds() -> None:
    audited = {"resnet18", "resnet9", "resnet9_wide"}
    assert audited.isdisjoint(NOISE_NETWORKS)
    assert len(set(NOISE_NETWORKS)) >= 2
    assert noise_params(_ARCHIVE, epochs=3, side=None)["finetune"]["folds"] == 2


def test_the_audits_are_of_the_preset_and_of_the_earlier_default() -> None:
    preset = load_params(ROOT / "presets/audit.yaml")
    small, large = (audit_params(_ARCHIVE, network, side=None) for network in ("resnet9", "resnet18"))
    assert small.finetune == preset.finetune
    assert (small.extract, small.filter) == (large.extract, large.filter) == (preset.extract, preset.filter)
    assert (large.finetune.batch_size, large.finetune.learning_rate, large.finetune.stem) == (256, 0.1, "imagenet")
    assert large.finetune.schedule.name == "cosine"


def test_the_summary_is_of_what_is_finished_and_names_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--images", str(_ARCHIVE), "--work", str(tmp_path), "--summarize"]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    capsys.readouterr()
    cell = next(iter_cells(_arguments(tmp_path, best="one"), {}))
    names = ("auroc", "average_precision", "f1_at_true_share", "precision_at_5_percent", "recall_at_5_percent")
    scorers = {"margin": {"measures": {name: {"value": 0.5} for name in names}}}
    identity = {"noise": cell.noise, "arm": cell.arm, "seed": cell.seed, "test_top1": 0.25}
    write_json(cell.result(tmp_path), {**identity, "scorers": scorers})
    main(command)
    printed = capsys.readouterr().out
    assert f"1 of {2 * len(ROWS)} cells are finished" in printed
    assert "not run: networks-0.09-resnet9-seed0, open_set-0.09-resnet18-seed0" in printed
    assert set(USES) - {"twice"} >= {"one", "wider"}
