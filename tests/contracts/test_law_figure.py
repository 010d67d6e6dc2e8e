"""docs/tooling/law_figure.py draws the recorded runs of the law, whose differences the page states."""

import runpy
from itertools import product
from pathlib import Path
from typing import Any

from docs.tooling.recorded_runs import save_figure, unpack_ledger
from tests.fixtures.source_tree import ROOT

_PROGRAM: dict[str, Any] = runpy.run_path(str(ROOT / "docs/tooling/law_figure.py"))


def test_the_page_states_the_differences_of_the_ledger(tmp_path: Path) -> None:
    """The gain at each size, and how far the law is off: filtered at the smaller batch minus full."""
    found = _PROGRAM["read_accuracies"](unpack_ledger(_PROGRAM["LEDGER"], tmp_path))
    page = (ROOT / "docs/results/law/README.md").read_text(encoding="utf-8")
    stated = 0
    for (size, smaller), rate in product(_PROGRAM["equivalent_sizes"]().items(), (0.025, 0.05)):
        full = (size, rate, "full")
        for filtered in ((size, rate, "filtered"), (smaller, rate, "filtered")):
            estimate = _PROGRAM["difference"](found, filtered, full)
            if estimate is None or estimate.low is None:
                continue
            text = " to ".join(f"{value:+.2f}" for value in (estimate.low, estimate.high))
            assert f"{estimate.mean:+.2f} points ({text})".replace("-", "−") in page, (filtered, full)
            stated += 1
    assert stated >= 8


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
