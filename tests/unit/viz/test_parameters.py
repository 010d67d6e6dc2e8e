"""A proposal changes its keys and no other byte. Written files are valid and were shown before."""

import difflib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline.config.params import load_params
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.printed_errors import key_within
from tests.fixtures.projects import ROOT
from tests.fixtures.slow import quick_first
from viz import parameters
from viz.parameters import changes_for, propose, write

_PRESETS = sorted((ROOT / "presets").glob("*.yaml"))
_CLUSTERING = [path for path in _PRESETS if load_params(path).filter.scorer.name == "dbscan"]
_DBSCAN = {"name": "dbscan", "space": "embedding", "min_samples": 5}
_DIGITS = (ROOT / "tests" / "params.yaml").read_text(encoding="utf-8")
_FILTER = _DIGITS[_DIGITS.index("filter:") : _DIGITS.index("train:")]


def _file(folder: Path, filter_section: str = _FILTER) -> Path:
    """Write the digits preset with another `filter` section."""
    path = folder / "params.yaml"
    path.write_bytes(_DIGITS.replace(_FILTER, filter_section).encode())
    return path


def _differing(old: str, new: str) -> list[str]:
    lines = difflib.ndiff(old.splitlines(keepends=True), new.splitlines(keepends=True))
    return [line for line in lines if line[0] in "+-"]


def _load(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("preset", quick_first(2, _CLUSTERING), ids=lambda path: path.stem)
def test_a_radius_replaces_the_fraction_in_presets_with_dbscan(preset: Path) -> None:
    proposal = propose(preset, changes_for(_DBSCAN, eps=1.25))
    removed = [line for line in _differing(proposal.old_text, proposal.new_text) if line[0] == "-"]
    assert [line for line in _differing(proposal.old_text, proposal.new_text) if line[0] == "+"] == ["+   eps: 1.25\n"]
    share = load_params(preset).filter.drop_fraction
    network_shares = len(share) if isinstance(share, dict) else 0
    assert removed[0].startswith("-   drop_fraction:")
    assert len(removed) == 1 + network_shares
    assert proposal.difference[:2] == (f"--- {preset}", f"+++ {preset} (proposed)")
    assert [line for line in proposal.difference[2:] if line.startswith("+")] == ["+  eps: 1.25"]


@pytest.mark.parametrize("preset", quick_first(2, _PRESETS), ids=lambda path: path.stem)
def test_the_settings_of_a_preset_change_nothing(preset: Path) -> None:
    params = load_params(preset).filter
    written = params.model_dump(mode="json", exclude_unset=True)
    proposal = propose(preset, {f"filter.{key}": value for key, value in written.items()} | {"filter.eps": None})
    assert (proposal.new_text, proposal.difference) == (proposal.old_text, ())


_EDITS: list[tuple[Mapping[str, object], list[str]]] = [
    (
        {"filter.drop_fraction": 0.1},
        [
            "-   drop_fraction: 0.05 # or `eps: <radius on the map>`\n",
            "+   drop_fraction: 0.1 # or `eps: <radius on the map>`\n",
        ],
    ),
    (
        {"filter.scorer": {"name": "knn_agreement", "k": 10}},
        [
            "-   scorer: {name: dbscan, space: embedding, min_samples: 5}\n",
            "+   scorer: {name: knn_agreement, k: 10}\n",
        ],
    ),
    (
        {"filter.scorer.min_samples": 7, "prepare.val_size": 0.2},
        [
            "-   val_size: 0.1\n",
            "+   val_size: 0.2\n",
            "-   scorer: {name: dbscan, space: embedding, min_samples: 5}\n",
            "+   scorer: {name: dbscan, space: embedding, min_samples: 7}\n",
        ],
    ),
    ({"filter.allocation": "per_class"}, ["+   allocation: per_class\n"]),
    ({"reduce.tsne.n_jobs": 2.0, "finetune.weight_decay": 0.0005}, []),
    ({"reduce.landmarks": None, "nothing.there": None}, []),
    ({"dask.workers": None}, ["-   workers: 2 # of `local`\n"]),
    ({"train.stem": None, "train.augmentation.flip": True}, [
        "-   stem: imagenet\n",
        "-   augmentation: {crop_padding: 1}\n",
        "+   augmentation: {crop_padding: 1, flip: true}\n",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), _EDITS, ids=lambda value: ",".join(value)[:40])
def test_only_the_lines_that_must_change_do(tmp_path: Path, changes: Mapping[str, object], expected: list[str]) -> None:
    proposal = propose(_file(tmp_path), changes)
    assert [line for line in _differing(proposal.old_text, proposal.new_text) if line[0] != "?"] == expected


_STYLES = {
    "block": "filter: # f\n  # above\n  scorer: # s\n    # why dbscan\n    name: dbscan # n\n    min_samples: 5 # m\n"
    "  # of all\n  drop_fraction: 0.050 # d\n  # last\n\n",
    "flow": "filter: {scorer: {name: dbscan, min_samples: 5}, drop_fraction: 0.050} # f\n\n",
    "lines of flow": "filter: {\n  scorer: {name: 'dbscan', # n\n    min_samples: 5, # m\n  }, # s\n"
    "  drop_fraction: 0.050, # d\n}\n\n",
    "anchors": "filter: &f # f\n  scorer: &s {name: &n dbscan, min_samples: &m 5} # s\n"
    "  drop_fraction: &d 0.050 # d\n\n",
    "next line": "filter:\n  scorer:\n      {name: dbscan,\n       min_samples: 5}\n"
    "  drop_fraction:\n      0.050 # d\n\n",
}


@pytest.mark.parametrize("newline", quick_first(1, ["\n", "\r\n"]))
@pytest.mark.parametrize("style", _STYLES)
@pytest.mark.parametrize(
    "changes",
    quick_first(
        1,
        [
            changes_for({"name": "dbscan", "min_samples": 8}, drop_fraction=0.2),
            changes_for({"name": "dbscan", "min_samples": 5}, eps=1.25),
            changes_for({"name": "knn_distance", "k": 3}, threshold=2.5),
            changes_for(
                {"name": "ensemble", "scorers": ({"name": "margin"}, {"name": "knn_distance", "k": 3})},
                drop_fraction=0.05,
            ),
        ],
    ),
    ids=["share", "eps", "threshold", "ensemble"],
)
def test_every_way_to_write_the_section_is_kept(
    tmp_path: Path, style: str, newline: str, changes: dict[str, object]
) -> None:
    file = _file(tmp_path, _STYLES[style])
    text = file.read_text().replace("\n", newline)
    file.write_bytes(text.encode())
    proposal = propose(file, changes)
    write(proposal)
    new = file.read_bytes().decode()
    assert new == proposal.new_text
    wanted = {key.removeprefix("filter."): value for key, value in changes.items() if value is not None}
    scorer = wanted["scorer"]
    assert isinstance(scorer, dict)
    wanted["scorer"] = scorer | ({"scorers": list(scorer["scorers"])} if "scorers" in scorer else {})
    assert _load(new) == _load(text) | {"filter": wanted}
    assert new.count(newline) == new.count("\n")
    start, end = text.index("filter:"), text.index("train:")
    assert new.startswith(text[:start])
    assert new.endswith(text[end:])
    kept = ["# f", "# above", "# of all", "# last", "# s", "&f", "&s"]
    assert [mark for mark in kept if mark in text[start:end] and mark not in new] == []


def test_a_missing_last_newline_and_a_byte_order_mark_stay(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + _DIGITS.rstrip("\n").encode())
    write(propose(file, {"dask.scheduler": "local", "filter.drop_fraction": 0.1}))
    expected = _DIGITS.replace("drop_fraction: 0.05", "drop_fraction: 0.1").replace(
        "scheduler: none", "scheduler: local"
    )
    assert file.read_bytes() == b"\xef\xbb\xbf" + expected.rstrip("\n").encode()
    proposal = propose(file, {"dask.workers": 3, "report.gallery_images": None})
    assert not proposal.new_text.endswith("\n")
    assert propose(file, {"finetune.label_smoothing": 0.1}).new_text.count("label_smoothing: 0.1") == 1


def test_a_section_that_is_missing_is_added_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(_DIGITS[: _DIGITS.index("\ndask:")].rstrip())
    proposal = propose(file, {"dask.workers": 3})
    assert proposal.new_text == proposal.old_text + "\ndask: {workers: 3}"


def test_keys_that_an_anchor_shares_are_not_changed(tmp_path: Path) -> None:
    text = _DIGITS.replace("test_size: 0.2", "test_size: &share 0.2").replace(
        "drop_fraction: 0.05", "drop_fraction: *share"
    )
    file = tmp_path / "params.yaml"
    file.write_text(text)
    # The alias is replaced, the anchor stays.
    assert propose(file, {"filter.drop_fraction": 0.1}).new_text == text.replace("*share", "0.1")
    for changes in ({"prepare.test_size": 0.3}, {"prepare.test_size": None}):
        with pytest.raises(InputError) as refused:
            propose(file, changes)
        assert key_within(refused.value, file) == "prepare.test_size"
    file.write_text(_DIGITS.replace("  drop_fraction: 0.05", "  <<: {drop_fraction: 0.05}"))
    with pytest.raises(InputError) as refused:
        propose(file, changes_for(_DBSCAN, eps=1.0))
    assert key_within(refused.value, file) == "filter.drop_fraction"


_NOT_VALID: dict[str, Mapping[str, object]] = {
    "unknown key": {"filter.epz": 1.25},
    "unknown section": {"filtr.eps": 1.25},
    "two limits": {"filter.eps": 1.25},
    "limit of another scorer": changes_for({"name": "margin"}, eps=1.25),
    "one number for all": {"filter.drop_fraction.resnet18": 0.1},
    "no limit": {"filter.drop_fraction": None},
}


def test_invalid_changes_are_rejected_with_their_key(tmp_path: Path) -> None:
    file = _file(tmp_path)
    cases = {name: partial(propose, file, changes) for name, changes in _NOT_VALID.items()}
    check_golden("refused_changes.txt", refusals(cases, hidden={str(tmp_path): "FOLDER"}))
    with pytest.raises(InputError) as refused:
        propose(file, {"filter.drop_fraction": 1.5})
    assert str(refused.value).startswith(f"{file}: filter.drop_fraction: ")
    assert file.read_text() == _DIGITS


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"a: [", ""),
        (b"\xff", ""),
        (b"", "(top level)"),
        (b"- a", "(top level)"),
        (b"filter: {drop_fraction}", "filter.drop_fraction"),
        (b"filter: {drop_fraction: 0.1}", "prepare"),
    ],
)
def test_invalid_parameter_files_are_rejected(tmp_path: Path, content: bytes, key: str) -> None:
    file = tmp_path / "params.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError) as refused:
        propose(file, {"filter.drop_fraction": 0.1})
    assert str(refused.value).startswith(f"{file}: {key}")


@pytest.mark.slow
@settings(max_examples=8)
@given(value=st.floats(1e-12, 1e12), share=st.floats(0, 0.99))
def test_numbers_of_six_digits_come_back(tmp_path_factory: pytest.TempPathFactory, value: float, share: float) -> None:
    file = _file(tmp_path_factory.mktemp("p"))
    for changes in (changes_for(_DBSCAN, eps=value), changes_for(_DBSCAN, drop_fraction=share)):
        write(propose(file, changes))
        loaded = load_params(file).filter
        assert loaded.eps == changes["filter.eps"]
        assert loaded.drop_fraction == changes["filter.drop_fraction"]
    assert changes["filter.drop_fraction"] == pytest.approx(share, rel=5e-6)


def test_the_allocation_is_removed_with_one_threshold_for_all(tmp_path: Path) -> None:
    file = _file(tmp_path, _FILTER.rstrip() + "\n  allocation: balanced\n\n")
    assert load_params(file).filter.allocation == "balanced"
    assert "allocation" not in propose(file, changes_for(_DBSCAN, eps=2.0)).new_text
    assert "allocation" not in propose(file, changes_for(_DBSCAN, drop_fraction=0.2)).new_text


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path)
    first, second = (propose(file, {"filter.drop_fraction": share}) for share in (0.1, 0.2))
    write(first)
    with pytest.raises(InputError) as refused:
        write(second)
    assert refused.value.key == str(file)
    third = propose(file, {"filter.drop_fraction": 0.3})
    edited = file.read_text() + "# mine\n"

    def read_before_an_editor_saves(path: Path) -> str:
        path.write_text(edited)
        return third.old_text

    monkeypatch.setattr(parameters, "read_yaml_text", read_before_an_editor_saves)
    with pytest.raises(InputError):
        write(third)
    assert file.read_text() == edited


def test_of_several_concurrent_writers_one_writes(tmp_path: Path) -> None:
    file = _file(tmp_path)
    proposals = [propose(file, {"filter.drop_fraction": 0.1 + number / 100}) for number in range(6)]
    refused: list[str] = []

    def attempt(number: int) -> None:
        try:
            write(proposals[number])
        except InputError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=attempt, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 5
    assert file.read_text() in [proposal.new_text for proposal in proposals]


def test_mode_stays_and_a_read_only_file_too(tmp_path: Path) -> None:
    file = _file(tmp_path)
    file.chmod(0o640)
    proposal = propose(file, {"filter.drop_fraction": 0.1})
    write(proposal)
    assert file.stat().st_mode & 0o777 == 0o640
    file.chmod(0o444)
    with pytest.raises(InputError) as refused:
        write(propose(file, {"filter.drop_fraction": 0.2}))
    assert refused.value.key == str(file)
    assert file.read_text() == proposal.new_text


_WRITER = """
import itertools, sys
from pathlib import Path
from viz.parameters import propose, write

file = Path(sys.argv[1])
for fraction in itertools.cycle((0.125, 0.25)):
    write(propose(file, {"filter.drop_fraction": fraction}))
    print(fraction, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_the_old_text_or_the_new_one(sent: signal.Signals, tmp_path: Path) -> None:
    file, rng = _file(tmp_path), random.Random(0)
    texts = {propose(file, {"filter.drop_fraction": fraction}).new_text for fraction in (0.125, 0.25)}
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", _WRITER, str(file)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            writer.send_signal(sent)
        assert writer.returncode == -sent
        assert file.read_text() in texts
    write(propose(file, {"filter.drop_fraction": 0.5}))
    assert load_params(file).filter.drop_fraction == 0.5
