"""Provenance names versions and contents, and neither date nor machine."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pipeline.artifacts.files import read_json
from pipeline.artifacts.provenance import sha256_of_file, write_provenance


def test_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    assert sha256_of_file(tmp_path / "file") == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_what_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text("1")
    Path("out").write_text("2")
    write_provenance(
        Path("provenance.json"), stage="reduce@x", parameters={"seed": 3}, inputs=[Path("in")], outputs=[Path("out")]
    )
    record = read_json(Path("provenance.json"))
    assert record["stage"] == "reduce@x"
    assert record["parameters"] == {"seed": 3}
    assert record["inputs"] == {"in": hashlib.sha256(b"1").hexdigest()}
    assert record["outputs"] == {"out": hashlib.sha256(b"2").hexdigest()}
    assert "python" not in record["versions"], "equal results of another Python are equal files"
    assert record["versions"]["numpy"] == np.__version__


def test_equal_runs_are_equal_bytes_wherever_the_data_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = []
    for root in (Path("data"), tmp_path / "two" / "data"):
        (root / "prepare").mkdir(parents=True)
        (root / "prepare" / "train.npy").write_text("1")
        path = root / "filter" / "resnet18" / "provenance.json"
        write_provenance(path, stage="s", parameters={}, inputs=[root / "prepare" / "train.npy"], outputs=[])
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert list(read_json(path)["inputs"]) == ["../../prepare/train.npy"]
    assert str(tmp_path).encode() not in written[0]


def test_an_output_may_be_renamed_after_its_record_is_there(tmp_path: Path) -> None:
    (tmp_path / "unnamed").write_text("2")
    for name, outputs, later in (("now", ["out"], {}), ("later", [], {"out": "unnamed"})):
        (tmp_path / "out").write_text("2")
        write_provenance(
            tmp_path / name, stage="s", parameters={}, inputs=[], outputs=[tmp_path / output for output in outputs],
            renamed_later={tmp_path / output: tmp_path / file for output, file in later.items()},
        )  # fmt: skip
        (tmp_path / "out").unlink()
    assert (tmp_path / "now").read_bytes() == (tmp_path / "later").read_bytes()
