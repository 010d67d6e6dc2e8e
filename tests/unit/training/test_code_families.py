"""Which versions of the training code count as one, and how one is added to the list."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.provenance import import_closure
from pipeline.errors import InputError
from pipeline.training import code_families, run_key
from pipeline.training.code_families import (
    COMMAND,
    FAMILIES_FILE,
    Family,
    Hashes,
    MachineHashes,
    add_to_families,
    code_name,
    find_family,
    read_families,
    write_families,
)
from pipeline.training.run_key import training_code_digest
from tests.fixtures.training import TINY

A, B, C = (letter * 64 for letter in "abc")
HERE, THERE = {"torch": "2", "arithmetic": "avx512"}, {"torch": "2", "arithmetic": "avx2"}
H, OTHER = {"sgd": "01", "muon": "02"}, {"sgd": "01", "muon": "ff"}
FIRST = Family(members=(A,), records=(MachineHashes(machine=HERE, hashes=H),))


def _never(family: Family) -> Hashes | None:
    raise AssertionError("nobody needs the code of history")


def _add(
    families: list[Family],
    code: str,
    hashes: Hashes,
    *,
    machine: Mapping[str, Any] = HERE,
    run_family: Callable[[Family], Hashes | None] = _never,
) -> tuple[list[Family], str]:
    return add_to_families(families, code, machine, hashes, run_family=run_family)


def test_the_training_code_is_listed() -> None:
    assert find_family(training_code_digest(), read_families()), (
        "the training code has changed, so that earlier runs do not count: "
        f"run `{COMMAND}` and commit {FAMILIES_FILE.name}"
    )


def test_neither_the_list_nor_who_reads_it_is_in_the_digest() -> None:
    closures = (
        import_closure(f"pipeline.training.{name}", exclude=run_key._EXCLUDED) for name in run_key._RESULT_MODULES
    )
    modules = set().union(*closures)
    assert "pipeline.training.loop" in modules
    assert not {f"pipeline.training.{name}" for name in ("code_families", "canonical_runs", "fingerprint")} & modules


def test_the_first_code_is_the_name_of_its_family() -> None:
    families, line = _add([], A, H)
    assert families == [FIRST]
    assert FIRST.name == A
    assert line == "aaaaaaaaaaaa begins a new family"


def test_code_with_equal_hashes_joins() -> None:
    families, line = _add([FIRST], B, H)
    assert families == [replace(FIRST, members=(A, B))]
    assert line == "bbbbbbbbbbbb joins family aaaaaaaaaaaa: its 2 hashes are equal; runs stay valid"


def test_code_with_other_hashes_begins_a_family_and_names_them() -> None:
    families, line = _add([FIRST], B, OTHER)
    assert families == [FIRST, Family(members=(B,), records=(MachineHashes(machine=HERE, hashes=OTHER),))]
    assert line == "bbbbbbbbbbbb begins a new family: 1 of 2 hashes differ (muon); earlier runs are trained again"


def test_code_that_goes_back_joins_the_earlier_family() -> None:
    second = Family(members=(B,), records=(MachineHashes(machine=HERE, hashes=OTHER),))
    families, _ = _add([FIRST, second], C, H)
    assert [family.members for family in families] == [(A, C), (B,)]


def test_listed_code_changes_nothing() -> None:
    families, line = _add([FIRST], A, H)
    assert families == [FIRST]
    assert line == "aaaaaaaaaaaa is listed in family aaaaaaaaaaaa; its 2 hashes are as recorded"


def test_listed_code_with_other_hashes_is_refused() -> None:
    with pytest.raises(InputError) as raised:
        _add([replace(FIRST, members=(A, B))], B, OTHER)
    assert raised.value.key == code_families.FAMILIES_FILE.name
    assert "muon;" in str(raised.value).split(), "the job whose hashes differ"


def test_another_machine_is_recorded_for_code_that_is_alone() -> None:
    families, line = _add([FIRST], A, OTHER, machine=THERE)
    assert [record.hashes for record in families[0].records] == [H, OTHER]
    assert line.endswith("its 2 hashes are now recorded for this machine")


def test_another_machine_is_recorded_where_earlier_code_agrees() -> None:
    two = replace(FIRST, members=(A, B))
    families, _ = _add([two], B, OTHER, machine=THERE, run_family=lambda family: OTHER)
    assert families[0].hashes_on(THERE) == OTHER
    others: list[Callable[[Family], Hashes | None]] = [lambda family: H, lambda family: None]
    for run_family in others:
        with pytest.raises(InputError) as raised:
            _add([two], B, OTHER, machine=THERE, run_family=run_family)
        assert raised.value.key == code_families.FAMILIES_FILE.name


def test_new_code_on_another_machine_is_compared_with_earlier_code() -> None:
    joined, _ = _add([FIRST], B, OTHER, machine=THERE, run_family=lambda family: OTHER)
    assert joined[0].members == (A, B)
    assert joined[0].hashes_on(THERE) == OTHER
    apart, _ = _add([FIRST], B, OTHER, machine=THERE, run_family=lambda family: H)
    assert [family.members for family in apart] == [(A,), (B,)]
    with pytest.raises(InputError) as raised:
        _add([FIRST], B, OTHER, machine=THERE, run_family=lambda family: None)
    assert raised.value.key == code_families.FAMILIES_FILE.name


def test_a_job_that_is_new_does_not_part_code() -> None:
    families, _ = _add([FIRST], B, {**H, "lamb": "03"})
    assert families[0].members == (A, B)
    assert families[0].hashes_on(HERE) == {**H, "lamb": "03"}


def test_hashes_of_no_common_job_say_nothing() -> None:
    families, _ = _add([FIRST], B, {"lamb": "03"})
    assert len(families) == 2


def test_a_list_survives_a_file(tmp_path: Path) -> None:
    families = [replace(FIRST, members=(A, B)), Family(members=(C,), records=())]
    families[0] = replace(families[0], records=(*FIRST.records, MachineHashes(machine=THERE, hashes=OTHER)))
    write_families(families, tmp_path / "list.json")
    assert read_families(tmp_path / "list.json") == families
    assert read_families(tmp_path / "none.json") == []


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"families": [{}]}', '{"families": [{"members": [], "records": []}]}', '{"families": 3}'],
)
def test_a_damaged_list_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        read_families(path)
    assert raised.value.key == str(path)


def test_a_digest_in_two_families_is_refused(tmp_path: Path) -> None:
    write_families([FIRST, FIRST], tmp_path / "list.json")
    with pytest.raises(InputError) as raised:
        read_families(tmp_path / "list.json")
    assert raised.value.key == str(tmp_path / "list.json")


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_families, "_listed", lambda: (replace(FIRST, members=(A, B)),))


@pytest.mark.usefixtures("listed")
def test_runs_of_listed_digests_have_one_code_others_their_own() -> None:
    settings = dataclasses.asdict(TINY)
    assert [code_name(code, settings) for code in (A, B, C)] == [A, A, C]


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(
    "changes",
    [
        {"compile": True},
        {"compression": "fp16"},
        {"precision": "tf32"},
        {"precision": "fp16"},
        {"network": "torchvision/vgg16"},
        {"network": "timm/tf_efficientnet_lite0"},
    ],
)
def test_what_canonical_runs_do_not_compute_keeps_its_digest(changes: dict[str, Any]) -> None:
    assert code_name(B, dataclasses.asdict(replace(TINY, **changes))) == B
    # As a ledger has them.
    assert code_name(B, json.loads(json.dumps(dataclasses.asdict(TINY)))) == A
    assert code_name(B, {}) == B
