"""The schema for editors is current and knows every key."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.__main__ import main
from pipeline.commands.schema import params_schema
from tests.fixtures.params import digits_tree
from tests.fixtures.schema import schema_errors

_ROOT = Path(__file__).parents[3]


def test_committed_schema_is_current(tmp_path: Path) -> None:
    assert main(["schema", "--out", str(tmp_path / "schema.json")]) == 0
    current = (tmp_path / "schema.json").read_text()
    committed = (_ROOT / "presets" / "params.schema.json").read_text()
    assert committed == current, "run `python -m pipeline schema`"


def test_outside_a_clone_it_is_next_to_the_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["schema"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["params.schema.json"]


@pytest.mark.parametrize("name", ["params.yaml", "presets/digits.yaml", "presets/cifar10.yaml", "presets/paper.yaml"])
def test_first_line_names_the_schema_from_where_the_file_is(name: str) -> None:
    path = _ROOT / name
    modeline = path.read_text().splitlines()[0]
    schema = path.parent / modeline.removeprefix("# yaml-language-server: $schema=")
    assert schema.resolve() == _ROOT / "presets" / "params.schema.json"


@pytest.mark.parametrize("name", ["digits", "cifar10", "paper"])
def test_presets_fit_the_schema(name: str) -> None:
    assert schema_errors(YAML(typ="safe").load(_ROOT / "presets" / f"{name}.yaml")) == []


def test_a_wrong_key_type_or_bound_does_not_fit() -> None:
    tree = digits_tree()
    assert schema_errors(tree) == []
    for section, key, value in (
        ("extract", "batch", 1),
        ("extract", "batch_size", "many"),
        ("extract", "batch_size", 0),
        ("prepare", "dataset", "mnist"),
        ("studies", "digits", {**tree["studies"]["digits"], "recipe": {"stemm": "cifar"}}),
    ):
        assert schema_errors({**tree, section: {**tree[section], key: value}}) != []


def test_attributes_of_docstrings_are_at_their_keys() -> None:
    sections = params_schema()["$defs"]
    assert sections["PrepareConfig"]["properties"]["val_size"]["description"].startswith("fraction of each class's")
    assert "Attributes:" not in json.dumps(sections)
