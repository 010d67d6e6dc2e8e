"""What docs/guides/report.md says of plots while a study trains: the item for dvc.yaml, and the command."""

import io
import os
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.live import LiveMetrics
from pipeline.training.state import HistoryRecord
from tests.fixtures.source_tree import ROOT

_SECTION = (ROOT / "docs/guides/report.md").read_text(encoding="utf-8").partition("## While a study trains")[2]


def test_the_item_for_plots_adds_one_entry_to_dvc_yaml() -> None:
    (item,) = re.findall(r"```yaml\n(.*?)```", _SECTION, flags=re.DOTALL)
    text = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
    before, after = (YAML().load(io.StringIO(each)) for each in (text, text + item))
    assert list(after) == list(before)
    assert list(before)[-1] == "plots"
    (added,) = after["plots"][len(before["plots"]) :]
    assert dict(added) == {"data/live/plots/metrics": {"x": "step"}}


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_command_plots_the_files_of_a_running_study(tmp_path: Path) -> None:
    (line,) = re.findall(r"^dvc plots show .*$", _SECTION, flags=re.MULTILINE)
    live = LiveMetrics(tmp_path / "data" / "live", study="digits", n_runs=1, log=print)
    live.start_run("full, batch 16, seed 0")
    steps = range(1, 4)
    live.record([HistoryRecord(epoch=n, step=n, examples=n, train_loss=2.5 / n, lr=0.1) for n in steps])
    environ = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    for command in (["dvc", "init", "--quiet", "--no-scm"], line.split()):
        done = subprocess.run(command, cwd=tmp_path, env=environ, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    page = (tmp_path / "dvc_plots" / "index.html").read_text(encoding="utf-8")
    assert all(repr(2.5 / n) in page for n in steps)
