"""`train.isa` limits the instructions of a whole process, and refuses what it cannot limit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import has_avx2, instruction_set
from pipeline.artifacts.files import read_json
from pipeline.config.params import check_params
from pipeline.errors import InputError
from pipeline.instruction_set import AVX2_VARIABLES, limit_instructions
from pipeline.paths import WorkPaths
from tests.fixtures.params import digits_tree
from tests.fixtures.training import command, environment, run, runs_of, write_project

AVX2 = {"isa": "avx2"}
_MACHINE = """
import json, sys
import torch
from pipeline.instruction_set import limit_instructions
from pipeline.training.run_key import machine_info
limit_instructions(sys.argv[1] or None)
print(json.dumps(machine_info(torch.device("cpu"))))
"""

needs_avx2 = pytest.mark.skipif(not has_avx2(), reason="the processor has no AVX2")


def _machine(isa: str, **variables: str) -> Any:
    unset = {name: value for name, value in environment().items() if name not in AVX2_VARIABLES}
    command = [sys.executable, "-c", _MACHINE, isa]
    return json.loads(subprocess.run(command, env={**unset, **variables}, check=True, stdout=subprocess.PIPE).stdout)


@pytest.mark.slow
@needs_avx2
@pytest.mark.subprocess
def test_it_equals_variables_that_were_set_before_the_start() -> None:
    limited = _machine("avx2")
    assert limited == _machine("", **AVX2_VARIABLES)
    assert limited["device"] == "AVX2"


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in AVX2_VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_without_a_limit_nothing_is_set(environ: pytest.MonkeyPatch) -> None:
    limit_instructions(None)
    assert not AVX2_VARIABLES.keys() & os.environ.keys()


def test_a_processor_without_them_is_refused(environ: pytest.MonkeyPatch) -> None:
    environ.setattr(instruction_set, "has_avx2", lambda: False)
    with pytest.raises(InputError, match=r"^train\.isa: avx2"):
        limit_instructions("avx2")


@needs_avx2
@pytest.mark.parametrize("name", AVX2_VARIABLES)
def test_another_value_of_the_user_is_refused_by_name(name: str, environ: pytest.MonkeyPatch) -> None:
    environ.setenv(name, "SSE41")
    with pytest.raises(InputError, match=f"{name}.*SSE41.*unset {name}"):
        limit_instructions("avx2")


@needs_avx2
def test_a_process_that_has_computed_before_is_not_limited_in_part(environ: pytest.MonkeyPatch) -> None:
    environ.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    with pytest.raises(AssertionError):
        limit_instructions("avx2")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"train": AVX2}, "finetune.isa"),
        ({"finetune": AVX2}, "finetune.isa"),
        ({"finetune": AVX2, "train": AVX2, "studies.digits.recipe": {"isa": None}}, "studies.digits.recipe.isa"),
        ({"studies.digits.recipe": AVX2}, "studies.digits.recipe.isa"),
    ],
)
def test_all_stages_have_one_instruction_set(changes: dict[str, Any], key: str) -> None:
    tree = digits_tree()
    for path, value in changes.items():
        parent = tree
        for name in path.split("."):
            parent = parent.setdefault(name, {})
        parent.update(value)
    with pytest.raises(InputError) as raised:
        check_params(tree, source="params.yaml")
    assert str(raised.value).startswith(f"params.yaml: {key}: ")


@pytest.mark.slow
@needs_avx2
@pytest.mark.subprocess
def test_stages_and_commands_compute_the_same_key(tmp_path: Path) -> None:
    data = write_project(tmp_path, study={"arms": ["full"]}, finetune=AVX2, train=AVX2)
    assert run(command("train", tmp_path)).returncode == 0
    work, other = (WorkPaths(root=tmp_path / name) for name in ("work", "other"))
    key = runs_of(data)[0]["fingerprint"]
    assert read_json(work.ledger / key / "identity.json")["machine"]["device"] == "AVX2"
    # The import replaces the machine of the key by that of its own process.
    words = ["runs", "import", str(work.root), "--work", str(other.root), "--params", str(tmp_path / "params.yaml")]
    assert run([sys.executable, "-m", "pipeline", *words]).returncode == 0
    assert (other.ledger / key).is_dir()
