"""Checks of `validate` in addition to those of every command."""

from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.fixtures.params import PRESET
from tests.fixtures.printed_errors import key_within, printed_error


def test_a_study_that_dvc_cannot_run_is_named_with_the_line_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "--params", str(PRESET)]) == 2
    error = printed_error(capsys.readouterr().err)
    assert key_within(error, PRESET) == "studies.digits.needs"
    assert str(error).endswith("`needs: filter/resnet18`")
    path = tmp_path / "params.yaml"
    path.write_text(PRESET.read_text().replace("  digits:\n", "  digits:\n    needs: filter/resnet18\n"))
    assert main(["validate", "--params", str(path)]) == 0
