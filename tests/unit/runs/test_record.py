"""A finished run that was damaged or forged is noticed: set aside and trained again here, refused from elsewhere."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts import plans
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.plans import RegisteredPlan, copy_registered_plans, read_registered_plans, register_plan
from pipeline.errors import InputError
from pipeline.runs.ledger import Ledger
from pipeline.runs.record import CHECKED_FILES, CHECKSUMS, WEIGHTS, lacks_weights
from pipeline.training.run_key import RunKey
from tests.fixtures.golden import check_golden, refusals
from tests.unit.runs.test_ledger import DIVERGED, FINISHED, KEY, OTHER_KEY

# The test images that `FINISHED` was evaluated on, [right, wrong, right, right].
_LABELS = np.array([0, 0, 1, 1])
_RESULT = replace(FINISHED, balanced_accuracy=0.75)

Harm = Callable[[Path], object]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    runs = Ledger(tmp_path / "cells")
    runs.add(KEY, _RESULT)
    return runs


def _edited(name: str, **changes: Any) -> Harm:
    def edit(entry: Path) -> None:
        write_json(entry / name, {**read_json(entry / name), **changes})

    return edit


def _edited_history(**changes: Any) -> Harm:
    def edit(entry: Path) -> None:
        record = read_json(entry / "result.json")
        write_json(entry / "result.json", {**record, "history": [{**record["history"][0], **changes}]})

    return edit


def _written(name: str, content: bytes) -> Harm:
    return lambda entry: (entry / name).write_bytes(content)


def _prefixed(name: str, start: str) -> Harm:
    """Put a key before the others of a JSON object."""
    return lambda entry: (entry / name).write_text((entry / name).read_text().replace("{", start, 1))


def _replaced(name: str, old: str, new: str) -> Harm:
    """Change the text itself: no writer of JSON makes it."""
    return lambda entry: (entry / name).write_text((entry / name).read_text().replace(old, new))


def _array(values: Any, dtype: Any) -> Harm:
    return lambda entry: np.save(entry / "correct.npy", np.asarray(values, dtype))


def _fifo(name: str) -> Harm:
    def replace_file(entry: Path) -> None:
        (entry / name).unlink(missing_ok=True)
        os.mkfifo(entry / name)

    return replace_file


def _link(name: str) -> Harm:
    def replace_file(entry: Path) -> None:
        (entry / name).unlink(missing_ok=True)
        (entry / name).symlink_to("/dev/zero")

    return replace_file


_TERABYTE = b"\x93NUMPY\x01\x00\x76\x00{'descr': '|b1', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(
    127
) + (b"\n")
_DEEP = b"[" * 100_000 + b"]" * 100_000
# Python parses it, and cannot copy or write it.
_NESTED = "[" * 600 + "]" * 600

# Each is noticed without checksums: the files contradict each other, or are not what a run can have.
_FORGED: dict[str, Harm] = {
    "top-1 of 5": _edited("result.json", top1=5.0),
    "another top-1 than correct.npy": _edited("result.json", top1=0.99),
    "a status that does not exist": _edited("result.json", status="evil"),
    "diverged with a result": _edited("result.json", status="diverged"),
    "negative workers": _edited("result.json", workers=-5),
    "no loss": _edited("result.json", loss=None),
    "a word as loss": _edited("result.json", loss="low"),
    "a list as loss": _edited("result.json", loss=[1.0]),
    "no history": _edited("result.json", history=[]),
    "history of a word": _edited_history(train_loss="low"),
    "history of another key": _edited_history(extra=1),
    "accuracy in history above 1": _edited_history(top1=1.5),
    "steps beyond 64 bits": _edited_history(step=10**30),
    "a chain of other text": _edited("result.json", links=[{"step": 1, "sha256": "x"}]),
    "hardware of numbers": _edited("result.json", places=[1]),
    "negative seconds": _edited("timing.json", seconds=-1.0),
    "a word as seconds": _edited("timing.json", seconds="long"),
    "a date that sorts last": _edited("timing.json", recorded="zzz"),
    "a date with a line end": _edited("timing.json", recorded="2026-11-23T18:45:12.000000Z\n"),
    "a key twice": _prefixed("result.json", '{"top1": 0.75,'),
    "a number that JSON does not have": _prefixed("timing.json", '{"joules_of_none": NaN,'),
    "a list as result": _written("result.json", b"[]"),
    "deep JSON": _written("result.json", _DEEP),
    "deep JSON of the time": _written("timing.json", _DEEP),
    "a machine of 600 levels": _replaced("result.json", 'from": null', f'from": {{"a": {_NESTED}}}'),
    "a job of 600 levels": _replaced("identity.json", '"seed": 0', f'"seed": {_NESTED}'),
    "a terabyte": _written("correct.npy", _TERABYTE),
    "numbers for truth values": _array([1, 0, 1, 1], np.int64),
    "two dimensions": _array([[1, 0, 1, 1]], np.bool_),
    "no image": _array([], np.bool_),
    "objects": _array([None], object),
    **{f"FIFO {name}": _fifo(name) for name in ("result.json", "correct.npy", "timing.json")},
    **{f"link {name}": _link(name) for name in ("result.json", "correct.npy", "timing.json")},
}

# These are whole and agree, but are not what was written.
_CHANGED: dict[str, Harm] = {
    "a digit of the loss": _edited("result.json", loss=0.3),
    "another image right": _array([False, True, True, True], np.bool_),
    "other energy": _edited("timing.json", joules={"gpu": 1.0, "cpu": None, "memory": None}),
    "no checksum": _written(CHECKSUMS, b"{}"),
    "checksums of a list": _written(CHECKSUMS, b"[]"),
    "weights that were not there": _written("weights.pt", b"x"),
}


def import_all(ours: Ledger, theirs: Ledger) -> None:
    """Import as the command does on an equal machine."""
    for key in theirs.run_keys(to_import=True):
        ours.import_run(theirs, key, key)


@pytest.mark.parametrize("harm", [*_FORGED.values(), *_CHANGED.values()], ids=[*_FORGED, *_CHANGED])
def test_a_damaged_run_is_set_aside_and_trained_again(ledger: Ledger, tmp_path: Path, harm: Harm) -> None:
    ledger.add(OTHER_KEY, DIVERGED)
    harm(tmp_path / "cells" / KEY.fingerprint)
    (line,) = ledger.set_aside_damaged([KEY.fingerprint, OTHER_KEY.fingerprint, "0" * 24], _LABELS)
    assert line.startswith(f"{tmp_path / 'cells' / KEY.fingerprint}: ")
    assert len(line.splitlines()) == 1
    assert not ledger.has(KEY.fingerprint)
    assert ledger.has(OTHER_KEY.fingerprint)
    assert list(ledger.run_keys()) == [OTHER_KEY]
    assert (tmp_path / "cells/set-aside" / f"{KEY.fingerprint}-0").is_dir()
    ledger.add(KEY, _RESULT)
    assert ledger.set_aside_damaged([KEY.fingerprint, OTHER_KEY.fingerprint], _LABELS) == []


@pytest.mark.parametrize("harm", _FORGED.values(), ids=list(_FORGED))
@pytest.mark.parametrize("checksums", [True, False], ids=["checksums", "none"])
def test_a_damaged_run_of_another_machine_is_refused(
    ledger: Ledger, tmp_path: Path, harm: Harm, checksums: bool
) -> None:
    entry = tmp_path / "cells" / KEY.fingerprint
    if not checksums:
        (entry / CHECKSUMS).unlink()
    harm(entry)
    ours = Ledger(tmp_path / "ours")
    with pytest.raises(InputError) as raised:
        import_all(ours, ledger)
    assert Path(raised.value.key).is_relative_to(entry)
    assert not ours.has(KEY.fingerprint)


def test_refusals(tmp_path: Path) -> None:
    theirs, entry = tmp_path / "theirs", tmp_path / "theirs" / KEY.fingerprint

    def import_forged(harm: Harm) -> None:
        shutil.rmtree(theirs, ignore_errors=True)
        Ledger(theirs).add(KEY, _RESULT)
        (entry / CHECKSUMS).unlink()
        harm(entry)
        import_all(Ledger(tmp_path / "ours"), Ledger(theirs))

    # Its line ends in NumPy's own words.
    cases = {name: partial(import_forged, harm) for name, harm in _FORGED.items() if name != "a terabyte"}
    check_golden("refused_runs.txt", refusals(cases, hidden={str(entry): "FOLDER"}))


def test_weights_that_change_after_the_check_are_not_imported(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"sound")
    ledger.add(KEY, _RESULT, weights)
    theirs, ours = ledger.weights(KEY.fingerprint), Ledger(tmp_path / "ours")

    def check(path: Path) -> None:
        assert path.read_bytes() == b"sound"
        theirs.write_bytes(b"hostile")

    monkeypatch.setattr("pipeline.runs.ledger.load_trained", check)
    assert ours.import_run(ledger, KEY, KEY)
    assert ours.weights(KEY.fingerprint).read_bytes() == b"sound"
    assert not list((tmp_path / "ours").glob(".*"))


@pytest.fixture
def with_weights(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger whose run has weights; whether they are a network is not asked."""
    (tmp_path / WEIGHTS).write_bytes(b"weights")
    ledger.add(KEY, _RESULT, tmp_path / WEIGHTS)
    monkeypatch.setattr("pipeline.runs.ledger.load_trained", lambda _: None)
    return ledger


def test_a_run_whose_weights_were_left_out_is_imported(with_weights: Ledger, tmp_path: Path) -> None:
    """As `runs pack --ledger` leaves them out."""
    ours, weights = Ledger(tmp_path / "ours"), with_weights.weights(KEY.fingerprint)
    whole = weights.read_bytes()
    assert not lacks_weights(with_weights.folder(KEY.fingerprint))
    weights.unlink()
    assert lacks_weights(with_weights.folder(KEY.fingerprint))
    assert ours.import_run(with_weights, KEY, KEY)
    assert ours.get(KEY.fingerprint).top1 == _RESULT.top1
    assert ours.has(KEY.fingerprint)
    assert not ours.has(KEY.fingerprint, with_weights=True)
    assert ours.set_aside_damaged([KEY.fingerprint], _LABELS) == []
    # Whoever has them brings them later.
    weights.write_bytes(whole)
    assert ours.import_run(with_weights, KEY, KEY)
    assert ours.weights(KEY.fingerprint).read_bytes() == whole


@pytest.mark.parametrize("name", [name for name in CHECKED_FILES if name != WEIGHTS])
@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_without_weights_all_other_files_are_checked(
    with_weights: Ledger, tmp_path: Path, name: str, harm: str
) -> None:
    entry = with_weights.folder(KEY.fingerprint)
    with_weights.weights(KEY.fingerprint).unlink()
    if harm == "missing":
        (entry / name).unlink()
    else:
        (entry / name).write_bytes((entry / name).read_bytes() + b"\n")
    ours = Ledger(tmp_path / "ours")
    with pytest.raises(InputError):
        ours.import_run(with_weights, KEY, KEY)
    assert not ours.has(KEY.fingerprint)


def test_weights_that_differ_from_their_checksum_are_refused(with_weights: Ledger, tmp_path: Path) -> None:
    with_weights.weights(KEY.fingerprint).write_bytes(b"others")
    with pytest.raises(InputError):
        Ledger(tmp_path / "ours").import_run(with_weights, KEY, KEY)


def test_a_run_without_weights_is_missing_where_they_are_needed(with_weights: Ledger) -> None:
    """Not damaged: an archive of results has none."""
    with_weights.weights(KEY.fingerprint).unlink()
    assert with_weights.set_aside_damaged([KEY.fingerprint], _LABELS) == []
    assert with_weights.has(KEY.fingerprint)
    assert not with_weights.has(KEY.fingerprint, with_weights=True)


def test_a_plan_that_changes_after_it_was_checked_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    register_plan(theirs / "digits", {"seeds": [0]}, datetime(2026, 1, 1, tzinfo=UTC))
    (file,) = (theirs / "digits").iterdir()
    sound = file.read_bytes()

    def read(folder: Path) -> list[RegisteredPlan]:
        found = read_registered_plans(folder)
        file.write_bytes(b"hostile")
        return found

    monkeypatch.setattr(plans, "read_registered_plans", read)
    assert copy_registered_plans(theirs, ours) == 1
    assert (ours / "digits" / file.name).read_bytes() == sound


@pytest.mark.parametrize("labels", [np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 1])], ids=["number", "classes"])
def test_a_run_on_other_test_images_is_set_aside(ledger: Ledger, labels: Any) -> None:
    assert len(ledger.set_aside_damaged([KEY.fingerprint], labels)) == 1


def test_a_balanced_accuracy_of_other_labels_is_not_imported(ledger: Ledger, tmp_path: Path) -> None:
    ledger.add(KEY, FINISHED)  # that of _LABELS is .75
    ours = Ledger(tmp_path / "ours")
    with pytest.raises(InputError, match=r"balanced_accuracy is 0\.3, and correct\.npy has 0\.75"):
        ours.import_run(ledger, KEY, KEY, labels=_LABELS)
    assert not ours.has(KEY.fingerprint)
    for key, result in ((KEY, _RESULT), (OTHER_KEY, DIVERGED)):
        ledger.add(key, result)
        assert ours.import_run(ledger, key, key, labels=_LABELS)


def test_a_change_of_any_bit_is_found(ledger: Ledger, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "cells" / KEY.fingerprint, whole)
    rng = np.random.default_rng(0)
    for name in ("result.json", "correct.npy", "identity.json", "timing.json"):
        for position in rng.integers(0, 8 * (whole / name).stat().st_size, 20):
            content = bytearray((whole / name).read_bytes())
            content[position // 8] ^= 1 << position % 8
            entry = tmp_path / "cells" / KEY.fingerprint
            shutil.copytree(whole, entry, dirs_exist_ok=True)
            (entry / name).write_bytes(content)
            assert len(ledger.set_aside_damaged([KEY.fingerprint], _LABELS)) == 1, (name, position)


@pytest.mark.parametrize(
    "job",
    [
        *("[]", "3", '{"settings": []}', '{"settings": {"threads": [1]}}', '{"settings": {"precision": ["fp32"]}}'),
        f'{{"a": {_NESTED}}}',
    ],
    ids=["list", "number", "list of settings", "list of threads", "list of precisions", "600 levels"],
)
def test_an_identity_of_another_shape_is_refused(ledger: Ledger, tmp_path: Path, job: str) -> None:
    text = f'{{"job": {job}, "machine": {{}}}}'
    entry = tmp_path / "cells" / KEY.fingerprint
    (entry / "identity.json").write_text(text)
    entry.rename(entry.with_name(RunKey(**read_json(entry / "identity.json")).fingerprint))
    with pytest.raises(InputError):
        list(ledger.run_keys())


@pytest.mark.parametrize(
    "harm", [_fifo("2.json"), _link("2.json"), _written("2.json", _DEEP)], ids=["fifo", "link", "deep"]
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, harm: Harm) -> None:
    folder = tmp_path / "plans" / "digits"
    folder.mkdir(parents=True)
    harm(folder)
    with pytest.raises(InputError) as raised:
        copy_registered_plans(tmp_path / "plans", tmp_path / "ours")
    assert raised.value.key == str(folder / "2.json")
