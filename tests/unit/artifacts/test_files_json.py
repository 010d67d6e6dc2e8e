"""JSON whose bytes depend on its values alone."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.files import read_json, write_json
from pipeline.errors import InputError

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(value=_VALUES)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("json") / "value.json"
    write_json(path, value)
    assert read_json(path) == value


def test_bytes_do_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    write_json(tmp_path / "one", {"b": 1, "a": {"d": 2, "c": 3}})
    write_json(tmp_path / "two", {"a": {"c": 3, "d": 2}, "b": 1})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").read_text().endswith("}\n")


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    write_json(tmp_path / "value", {"loss": math.nan, "rates": (math.inf, -math.inf, 1.5), 3: {"x": [math.nan]}})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    value = json.loads((tmp_path / "value").read_text(), parse_constant=refuse)
    assert value == {"loss": None, "rates": [None, None, 1.5], "3": {"x": [None]}}


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1', b"\xff"])
def test_unsound_file_gets_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "value.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_json(path)
    assert refused.value.key == str(path)
