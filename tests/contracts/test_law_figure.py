"""docs/tooling/law_figure.py draws the recorded runs of the law, whose differences the page states."""

import runpy
from pathlib import Path
from typing import Any

from docs.tooling.recorded_runs import save_figure, unpack_ledger
from tests.fixtures.source_tree import ROOT

_PROGRAM: dict[str, Any] = runpy.run_path(str(ROOT / "docs/tooling/law_figure.py"))


def test_the_page_states_the_differences_of_the_ledger(tmp_path: Path) -> None:
    found = _PROGRAM["read_accuracies"](unpack_ledger(_PROGRAM["LEDGER"], tmp_path))
    page = (ROOT / "docs/results/law/README.md").read_text(encoding="utf-8")
    for rate in (0.025, 0.05):
        filtered, full = (found[4096, rate, arm] for arm in ("filtered", "full"))
        assert len(filtered) == len(full) == 8
        estimate = _PROGRAM["difference"](found, (4096, rate, "filtered"), (4096, rate, "full"))
        text = " to ".join(f"{value:+.2f}" for value in (estimate.low, estimate.high)).replace("-", "−")
        assert f"{estimate.mean:+.2f} points ({text})".replace("-", "−") in page


def test_the_smaller_batches_are_those_of_the_law() -> None:
    sizes = _PROGRAM["equivalent_sizes"]()
    assert list(sizes) == [16, 64, 256, 1024, 4096]
    assert all(abs(smaller / size - 0.778**2) < 0.03 for size, smaller in sizes.items())


def test_the_figure_is_drawn_while_sizes_are_missing(tmp_path: Path) -> None:
    figure = tmp_path / "law.png"
    assert (
        save_figure(figure, _PROGRAM["LEDGER"], lambda ledger: _PROGRAM["draw"](_PROGRAM["read_accuracies"](ledger)))
        == 0
    )
    assert figure.stat().st_size > 10_000
