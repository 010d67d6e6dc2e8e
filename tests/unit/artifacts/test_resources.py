"""Records of time, memory and energy: a damaged one is left out of the costs and noted."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.resources import read_costs, read_resources
from pipeline.energy import Energy
from pipeline.errors import InputError
from pipeline.run_log import ResourceMeter

DAMAGED = ["[]", "null", "{}", '{"wall_s": "x"}', '{"wall_s": 1.0, "joules": 3}']
"""Texts that are JSON, and no record."""

_RECORD = {"wall_s": 1.5, "peak_memory_mb": 9}


@pytest.mark.parametrize("text", [*DAMAGED, "", "{", "[" * 5000, '{"wall_s": 1e999}', '{"wall_s": -1}'])
def test_a_damaged_record_is_noted_and_left_out(tmp_path: Path, text: str) -> None:
    paths = {name: tmp_path / f"{name}.json" for name in ("prepare", "report", "missing")}
    paths["prepare"].write_text(json.dumps(_RECORD))
    paths["report"].write_text(text)
    notes: list[str] = []
    assert read_resources(paths, notes.append) == {"prepare": _RECORD}
    (note,) = notes
    assert note.startswith(f"{paths['report']}: ")
    assert note.endswith("; left out of the costs, and the next run of the stage writes it again")


@pytest.mark.parametrize(
    "value",
    [
        {"peak_memory_mb": None},
        {"images": 1.5},
        {"images": 2**64},
        {"images_per_s": None},
        {"peak_gpu_memory_mb": "1"},
        {"joules": {"gpu": 1.0, "fan": 2.0}},
        {"joules": {"cpu": True}},
        {"arms_wall_s": None},
        {"arms_wall_s": {"full": None}},
        {"arms_joules": {"full": 3}},
        {"python": 3},
    ],
    ids=str,
)
def test_values_of_another_type_are_damage(tmp_path: Path, value: dict[str, Any]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(_RECORD | value))
    notes: list[str] = []
    assert read_resources({"a": tmp_path / "a.json"}, notes.append) == {}
    assert next(iter(value)) in notes[0]


def test_what_the_meter_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    joules = Energy(gpu=1.0, cpu=None, memory=2.0)
    ResourceMeter().write(
        path, joules=joules, images=3, gpu_bytes=4, arms={"full": 1.0}, arms_joules={"full": Energy(gpu=0.5)}
    )
    record = read_resources({"train": path}, pytest.fail)["train"]
    assert record == json.loads(path.read_text())


@pytest.mark.parametrize("text", ["[]", "null", '{"prepare": []}', '{"prepare": {"wall_s": "x"}}', "{"])
def test_damaged_costs_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "resources.json"
    with pytest.raises(InputError, match=r"missing; run `python -m pipeline.stages.report`"):
        read_costs(path)
    path.write_text(json.dumps({"prepare": _RECORD}))
    assert read_costs(path) == {"prepare": _RECORD}
    path.write_text(text)
    with pytest.raises(InputError, match=r"run `python -m pipeline.stages.report`$") as refused:
        read_costs(path)
    assert refused.value.key == str(path)
