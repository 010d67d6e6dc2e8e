"""`compare` reads records of other projects: what is none is one line."""

from pathlib import Path

import pytest

from pipeline.commands.compare.experiments import _read_report_parameter, _recorded
from pipeline.errors import InputError
from pipeline.paths import DataPaths


@pytest.mark.parametrize("text", ["[]", "null", "3", '{"parameters": [], "outputs": 3}', "[" * 100_000, '{"a": NaN}'])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    data = DataPaths(root=tmp_path)
    path = data.provenance("report")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        _read_report_parameter(path, "margin", lambda _: True, "")
    assert raised.value.key == str(path)
    with pytest.raises(InputError):
        _recorded(data, "report", None, "outputs", "")


def test_a_missing_key_is_no_value(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"parameters": {}}')
    assert _read_report_parameter(tmp_path / "p.json", "margin", lambda _: True, "") is None
