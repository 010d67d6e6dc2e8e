"""dvc.yaml of a project outside a clone has the stages of the repository, with digests for the files of their code."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.__main__ import main
from pipeline.commands.code_digests import STAGES, project_dvc_yaml
from tests.fixtures.source_tree import ROOT

_TEXT = (ROOT / "dvc.yaml").read_text(encoding="utf-8")


def _stages(text: str) -> dict[str, dict[str, Any]]:
    return {name: entry.get("do", entry) for name, entry in YAML(typ="safe").load(text)["stages"].items()}


def test_stages_differ_in_their_dependencies_on_code_alone() -> None:
    own, project = _stages(_TEXT), _stages(project_dvc_yaml(_TEXT))
    code = project.pop("code")
    assert tuple(own) == tuple(project) == STAGES
    for name, stage in project.items():
        assert stage["deps"] == [
            f"data/code/{name}", *(path for path in own[name]["deps"] if not path.startswith("pipeline/"))
        ]  # fmt: skip
        assert stage | {"deps": None} == own[name] | {"deps": None}
    assert code["outs"] == [f"data/code/{name}" for name in STAGES]
    assert code["always_changed"]
    assert YAML(typ="safe").load(project_dvc_yaml(_TEXT))["plots"] == YAML(typ="safe").load(_TEXT)["plots"]


def test_no_file_of_the_repository_is_named() -> None:
    assert "pipeline/" not in project_dvc_yaml(_TEXT)


def test_digests_of_the_code_are_a_file_for_each_stage(tmp_path: Path) -> None:
    assert main(["code-digests", "--out", str(tmp_path)]) == 0
    digests = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(digests) == set(STAGES)
    assert len(set(digests.values())) == len(STAGES)
    assert all(len(digest.strip()) == 64 for digest in digests.values())
