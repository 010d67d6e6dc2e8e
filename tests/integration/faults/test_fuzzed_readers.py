"""Any file of people or other programs, with any bytes changed, is read or refused in one line; no traceback.

FUZZ is the number of changes that each reader gets; `make campaign-fuzz` sets 5,000. YAML, archives, images and the
requests to the visualizer have their own in tests/unit, since any text or bytes are tried there, not only changed ones.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch
from hypothesis import strategies as st

from pipeline.artifacts.files import open_array, write_json
from pipeline.artifacts.metrics import read_dynamics, write_dynamics
from pipeline.artifacts.overrides import Override, locate_overrides, read_overrides, write_overrides
from pipeline.artifacts.plans import copy_registered_plans, read_run_dates, register_plan, write_run_dates
from pipeline.artifacts.provenance import read_provenance, write_provenance
from pipeline.artifacts.resources import read_costs, read_resources
from pipeline.artifacts.tables import write_parquet
from pipeline.commands.check_lock import parse_lock
from pipeline.commands.compare.run_table import read_runs
from pipeline.commands.filter_features.inputs import read_external_features
from pipeline.commands.repair import _is_usable_rwlock
from pipeline.commands.verify.recorded import read_rows
from pipeline.config.params import load_params
from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.labels import locate_labels, read_label_file
from pipeline.errors import InputError
from pipeline.reporting.render import render_costs
from pipeline.run_analysis.bit_comparison import read_recorded_run
from pipeline.runs.ledger import Ledger
from pipeline.runs.record import CHECKSUMS
from pipeline.simulator.fitting import load_all_reduce_times
from pipeline.simulator.machine import load_machine
from pipeline.training.pretrained import read_weights
from pipeline.training.weights import extract_state_dict
from pipeline.tuning.scheduler import TrialStep
from tests.fixtures.fuzzing import assert_read_or_refused, fuzz_file
from tests.fixtures.hub_folders import clone
from tests.fixtures.images import dataset_options, photo, write_folder
from tests.fixtures.params import PRESET
from tests.fixtures.projects import ROOT
from tests.unit.runs.test_ledger import FINISHED, KEY
from tests.unit.tuning.test_storage import search, take_up, write_search

_PATHS = ["train/cat/0.png", "train/dog/1.png"]


@dataclass(frozen=True)
class _Reader:
    """What writes a valid file, and anything that it needs, to a folder, and reads it; `changed` are names of files."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]
    changed: tuple[str, ...]


def _labels(folder: Path) -> None:
    (folder / "labels.csv").write_text('path,label\ntrain/cat/0.png,dog\n"train/dog/1.png",cat\n')


def _read_labels(folder: Path) -> object:
    file = read_label_file(folder / "labels.csv", key="prepare.label_file")
    return locate_labels(file, paths=_PATHS, class_names=["cat", "dog"], test_paths={"test/cat/2.png"})


def _overrides(folder: Path) -> None:
    decided = [
        Override(path=path, sha256="aa", decision=decision, label=label, note='=why, "so"', timestamp="2026", line=0)
        for path, decision, label in zip(_PATHS, ("drop", "relabel"), ("", "cat"), strict=True)
    ]
    write_overrides(folder / "overrides.csv", decided)


def _read_overrides(folder: Path) -> object:
    file = folder / "overrides.csv"
    return locate_overrides(
        read_overrides(file), file=file, paths=_PATHS, sha256=["aa", "aa"], class_names=["cat", "dog"]
    )


def _metadata(folder: Path) -> None:
    names = [f"{split}/{i}.png" for split in ("train", "test") for i in range(4)]
    table = "file_name,label\n" + "".join(f"{name},{i % 2}\n" for i, name in enumerate(names))
    write_folder(folder, {**{name: photo(0) for name in names}, "metadata.csv": table.encode()})


def _json_lines(folder: Path) -> None:
    names = [f"{split}/{i}.png" for split in ("train", "test") for i in range(4)]
    lines = "".join(f'{{"file_name": "{name}", "label": {i % 2}}}\n' for i, name in enumerate(names))
    write_folder(folder, {**{name: photo(0) for name in names}, "metadata.jsonl": lines.encode()})


def _read_images(folder: Path) -> object:
    return list(open_image_folder(dataset_options(folder)).decode())


def _features(folder: Path) -> None:
    labels = np.arange(6) % 2
    np.save(folder / "f.npy", np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32))
    np.save(folder / "p.npy", np.where(labels[:, None] == np.arange(2), 0.75, 0.25))
    (folder / "y.csv").write_text(
        "label,path,sha256\n" + "".join(f"{k},{i}.png,{'a' * 64}\n" for i, k in enumerate(labels))
    )
    columns = {"label_name": [str(k) for k in labels], "path": [f"{i}.png" for i in range(6)], "sha256": ["a" * 64] * 6}
    write_parquet(folder / "y.parquet", pa.table(columns))


def _read_features(folder: Path, labels: str) -> object:
    return read_external_features(folder / "f.npy", folder / labels, folder / "p.npy")


def _runs(folder: Path) -> None:
    rows = [{"arm": arm, "seed": seed, "lr": 0.1, "top1": 0.9} for arm in ("a", "b") for seed in range(3)]
    pa.csv.write_csv(pa.Table.from_pylist(rows), folder / "runs.csv")
    write_parquet(folder / "runs.parquet", pa.Table.from_pylist(rows))


def _entry(folder: Path) -> None:
    """A finished run without checksums: an author of changes would write them again."""
    Ledger(folder / "cells").add(KEY, FINISHED)
    shutil.copytree(folder / "cells" / KEY.fingerprint, folder, dirs_exist_ok=True)
    (folder / CHECKSUMS).unlink()


def _plans(folder: Path) -> None:
    register_plan(folder / "theirs/digits", {"seeds": [0, 1], "margin": 0.5}, datetime(2026, 11, 23, tzinfo=UTC))
    (path,) = (folder / "theirs/digits").iterdir()
    path.rename(path.with_name("2.json"))
    write_run_dates(folder / "theirs/digits", {"0" * 24: "2026-11-24T01:45:00.000000Z", "1" * 24: None})


def _read_plans(folder: Path) -> object:
    shutil.rmtree(folder / "ours", ignore_errors=True)
    dates = read_run_dates(folder / "theirs/digits")
    assert all(isinstance(key, str) and isinstance(date, str | None) for key, date in dates.items())
    return copy_registered_plans(folder / "theirs", folder / "ours")


def _rwlock(folder: Path) -> None:
    holder = {"pid": os.getpid(), "cmd": "dvc repro"}
    write_json(folder / ".dvc/tmp/rwlock", {"write": {"/a": holder}, "read": {"/b": [holder, holder]}})


def _all_reduce(folder: Path) -> None:
    points = [{"n_bytes": 1000 * n, "workers": 2, "seconds": 0.1 * n} for n in (1, 2)]
    write_json(folder / "times.json", {"algorithm": "ring", "points": points})


def _weights(folder: Path) -> None:
    tensors = {"a": torch.arange(3.0), "b": torch.zeros(2, 2, dtype=torch.int64)}
    safetensors.torch.save_file(tensors, folder / "w.safetensors")
    torch.save({"state_dict": tensors}, folder / "w.pt")


def _read_weights(folder: Path, name: str) -> object:
    state = extract_state_dict(read_weights(folder / name), folder / name)
    return {key: torch.isfinite(tensor.float()).all() for key, tensor in state.items()}


def _provenance(folder: Path) -> None:
    (folder / "out.txt").write_text("x")
    write_provenance(folder / "p.json", stage="a", parameters={"b": 1.5}, inputs=[], outputs=[folder / "out.txt"])


_SCHEMA = pa.schema({"fingerprint": pa.string(), "top1": pa.float64(), "steps": pa.int64()})


def _table(folder: Path) -> None:
    rows = [{"fingerprint": "é0", "top1": 0.5, "steps": 3}, {"fingerprint": "1", "top1": None, "steps": 4}]
    write_parquet(folder / "rows.parquet", pa.Table.from_pylist(rows, schema=_SCHEMA))


def _dynamics(folder: Path) -> None:
    write_dynamics(folder / "d.parquet", np.zeros(3, np.float32), np.ones(3, np.float32))


def _resources(folder: Path) -> None:
    joules = {"cpu": None, "gpu": 1.5}
    record = {"wall_s": 1.5, "images": 3, "images_per_s": 2.0, "peak_memory_mb": 9, "joules": joules, "python": "3"}
    study = record | {"arms_wall_s": {"full": 1.0}, "arms_joules": {"full": joules}, "peak_gpu_memory_mb": 1.0}
    write_json(folder / "train.json", study)
    write_json(folder / "all.json", {"prepare": record})


def _read_resources(folder: Path) -> object:
    """Read both files, and make the page of the costs."""
    records = read_resources({"train@digits": folder / "train.json"}, str)
    return render_costs("digits", {**read_costs(folder / "all.json"), **records}, [])


def _search(folder: Path) -> None:
    write_search(folder / "journal.log", search())


def _read_search(folder: Path) -> object:
    journal = take_up(folder / "journal.log", search())
    return sum(map(sum, journal.epoch_times)), [journal.result(TrialStep(trial, 1)) for trial in range(2)]


def _copied(source: Path, name: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copy(source, folder / name)


_READERS = {
    "params.yaml": _Reader(_copied(PRESET, "p.yaml"), lambda at: load_params(at / "p.yaml"), ("p.yaml",)),
    "machine": _Reader(
        _copied(ROOT / "machines/summit.yaml", "m.yaml"), lambda at: load_machine(at / "m.yaml"), ("m.yaml",)
    ),
    "dvc.lock": _Reader(
        _copied(ROOT / "dvc.lock", "dvc.lock"),
        lambda at: parse_lock((at / "dvc.lock").read_bytes()[:3000], source="dvc.lock"),
        ("dvc.lock",),
    ),
    "label file": _Reader(_labels, _read_labels, ("labels.csv",)),
    "overrides": _Reader(_overrides, _read_overrides, ("overrides.csv",)),
    "metadata.csv": _Reader(_metadata, _read_images, ("metadata.csv",)),
    "metadata.jsonl": _Reader(_json_lines, _read_images, ("metadata.jsonl",)),
    "DVC's locks": _Reader(_rwlock, lambda at: _is_usable_rwlock(at / ".dvc/tmp/rwlock"), (".dvc/tmp/rwlock",)),
    "shard of Parquet": _Reader(clone, _read_images, ("data/train-00001-of-00002.parquet", "README.md")),
    "features": _Reader(_features, partial(_read_features, labels="y.csv"), ("f.npy", "p.npy", "y.csv")),
    "manifest": _Reader(_features, partial(_read_features, labels="y.parquet"), ("y.parquet",)),
    "runs.csv": _Reader(_runs, lambda at: read_runs(at / "runs.csv", ("a", "b"), metric="top1"), ("runs.csv",)),
    "runs.parquet": _Reader(
        _runs, lambda at: read_runs(at / "runs.parquet", ("a", "b"), metric="top1"), ("runs.parquet",)
    ),
    "finished run": _Reader(_entry, read_recorded_run, ("result.json", "timing.json", "identity.json", "correct.npy")),
    "plans": _Reader(_plans, _read_plans, ("theirs/digits/2.json", "theirs/digits/runs.json")),
    "all-reduce times": _Reader(_all_reduce, lambda at: load_all_reduce_times(at / "times.json"), ("times.json",)),
    "safetensors": _Reader(_weights, partial(_read_weights, name="w.safetensors"), ("w.safetensors",)),
    "torch.save": _Reader(_weights, partial(_read_weights, name="w.pt"), ("w.pt",)),
    "provenance": _Reader(_provenance, lambda at: read_provenance(at / "p.json"), ("p.json",)),
    "table of a study": _Reader(_table, lambda at: read_rows(at / "rows.parquet", _SCHEMA), ("rows.parquet",)),
    "resources": _Reader(_resources, _read_resources, ("train.json", "all.json")),
    "journal of a search": _Reader(_search, _read_search, ("journal.log",)),
    "training dynamics": _Reader(_dynamics, lambda at: read_dynamics(at / "d.parquet", 3), ("d.parquet",)),
}

_DIGITS = b"9" * 5000
_PIECES = st.sampled_from(
    [
        b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"'", b"\n", b"\r", b",", b"(", b")", b"{", b"}",
        b":", b"-", b"-1", b"1e999", b"nan", b"NaN", b"Infinity", b"null", b"[]", b"0x", b"\\ud800", _DIGITS, b"9" * 30,
        b"[" * 5000, b"(" * 300, b'{"a":' * 3000,
    ]
)  # fmt: skip
_EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 1, 2, 8, 1 << 20]), _PIECES | st.binary(max_size=6)),
    min_size=1,
    max_size=4,
)


def _edited(content: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    """Replace bytes: each edit is a place, 0 to 1, how many bytes go there, and what comes."""
    for place, removed, piece in edits:
        at = round(place * len(content))
        content = content[:at] + piece + content[at + removed :]
    return content


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    made = {}
    for number, (name, reader) in enumerate(_READERS.items()):
        made[name] = tmp_path_factory.mktemp(f"reader{number}")
        reader.write(made[name])
        reader.read(made[name])
    yield made
    for folder in made.values():
        shutil.rmtree(folder)


# Hypothesis repeats a failing example many times; the file is written again for each.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "file"), [(name, file) for name, one in _READERS.items() for file in one.changed])
def test_changed_bytes_are_read_or_refused_in_one_line(folders: dict[str, Path], name: str, file: str) -> None:
    path, read = folders[name] / file, _READERS[name].read
    whole = path.read_bytes()

    def check(edits: list[tuple[float, int, bytes]]) -> None:
        path.write_bytes(_edited(whole, edits))
        assert_read_or_refused(lambda: read(folders[name]))

    fuzz_file(path, _EDITS, check)


_DICT = "{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
_HEADERS = {
    "a string that does not end": _DICT.format(descr="'<f4'", shape='"""'),
    "a bracket that does not end": _DICT.format(descr="'<f4'", shape="(3,"),
    "more rows than a number of the machine": _DICT.format(descr="'<f4'", shape=f"({10**30}, 2)"),
    "a terabyte": _DICT.format(descr="'<f4'", shape=f"({1 << 38}, 2)"),
    "a negative shape": _DICT.format(descr="'<f4'", shape="(-1, 2)"),
    "keys of several types": "{1: 2, 'a': 3}",
    "deep": "[" * 5000,
    "objects": _DICT.format(descr="'|O'", shape="(3, 2)"),
    "no type": _DICT.format(descr="'<q77'", shape="(3, 2)"),
    "fields": _DICT.format(descr="[('a', '<f4', (2,) * 3)]", shape="(3, 2)"),
    "an expression": "().__class__",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("header", _HEADERS.values(), ids=list(_HEADERS))
def test_headers_of_arrays_are_refused_in_one_line(tmp_path: Path, header: str) -> None:
    text = f"{header}\n".encode()
    path = tmp_path / "f.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(24))
    for read in (
        partial(open_array, dtype=np.float32, ndim=2),
        partial(read_external_features, labels=None, probabilities=None),
    ):
        with pytest.raises(InputError) as refused:
            read(path)
        assert str(path) in refused.value.key


def test_edits_are_edits() -> None:
    assert _edited(b"abcdef", [(0.5, 1, b"XY"), (1, 0, b"!")]) == b"abcXYef!"
    assert _edited(b"abcdef", [(0.5, 1 << 20, b"")]) == b"abc"
