"""What the dialog offers to write: a moved share is a share, a moved threshold a threshold."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.params import load_params
from tests.fixtures.projects import NETWORK, write_params
from viz.callbacks.filter_controls import adjust
from viz.callbacks.params_dialog import initial_kind, show_difference, write_settings
from viz.data import Source
from viz.layout import ALL

_SHARE, _THRESHOLD = {"control": "share", "value": 12.0}, {"control": "threshold", "value": 0.9}


def _moved(source: Source, control: str, value: float) -> dict[str, Any]:
    """Return the settings after one control has moved on a new page."""
    opened = adjust(source, NETWORK, None, ALL, None, None)["settings"]
    rule: dict[str, Any] = adjust(source, NETWORK, opened, ALL, control, value)["settings"]
    return rule


def _file(folder: Path, **limit: Any) -> Path:
    return write_params(folder, filter={"scorer": {"name": "dbscan", "min_samples": 5}, **limit})


def test_a_moved_share_is_written_as_a_share(source: Source, tmp_path: Path) -> None:
    params = _file(tmp_path, drop_fraction=0.05)
    rule = _moved(source, "share", 12.0)
    what = initial_kind(params, _SHARE)
    shown, _ = show_difference(source, params, NETWORK, rule, what, _SHARE)
    assert "eps" not in shown
    write_settings(source, params, NETWORK, rule, what, shown, _SHARE)
    written = load_params(params).filter
    assert (written.drop_fraction, written.eps) == (0.12, None)


@pytest.mark.parametrize(
    ("limit", "moved", "kind"),
    [
        ({"drop_fraction": 0.05}, None, "share"),
        ({"drop_fraction": 0.05}, _SHARE, "share"),
        ({"drop_fraction": 0.05}, _THRESHOLD, "limit"),
        ({"eps": 1.5, "drop_fraction": None}, None, "limit"),
        ({"eps": 1.5, "drop_fraction": None}, _SHARE, "share"),
    ],
)
def test_the_dialog_opens_with_moved_values_or_those_of_the_file(
    tmp_path: Path, limit: dict[str, Any], moved: Any, kind: str
) -> None:
    assert initial_kind(_file(tmp_path, **limit), moved) == kind


def test_with_several_networks_the_dialog_opens_with_the_share(tmp_path: Path) -> None:
    params = _file(tmp_path, drop_fraction=0.05)
    params.write_text(params.read_text().replace("[resnet18]", "[resnet34, resnet18]"))
    assert initial_kind(params, _THRESHOLD) == "share"


def test_a_share_that_no_control_moved_is_that_of_the_preview(source: Source, tmp_path: Path) -> None:
    params = _file(tmp_path, drop_fraction=0.05)
    rule = adjust(source, NETWORK, adjust(source, NETWORK, None, ALL, None, None)["settings"], ALL, "threshold", 3.1)[
        "settings"
    ]
    shown, any_change = show_difference(source, params, NETWORK, rule, "share", _THRESHOLD)
    assert any_change
    assert "drop_fraction" in shown
