"""params.yaml from a preset, without losing edits."""

import json
import re
import stat
from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main
from pipeline.config.params import load_params
from tests.fixtures.params import digits_tree
from tests.fixtures.printed_errors import key_within, printed_error

_PRESETS = Path(__file__).parents[3] / "presets"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a copy of the presets."""
    (tmp_path / "presets").mkdir()
    for path in _PRESETS.iterdir():
        (tmp_path / "presets" / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_committed_params_are_the_digits_preset(folder: Path) -> None:
    assert main(["preset", "digits"]) == 0
    assert (folder / "params.yaml").read_bytes() == (_PRESETS.parent / "params.yaml").read_bytes()


def test_only_the_editors_line_differs_from_the_preset(folder: Path) -> None:
    main(["preset", "cifar10"])
    written = (folder / "params.yaml").read_text().splitlines()
    preset = (folder / "presets" / "cifar10.yaml").read_text().splitlines()
    assert written[0] == "# yaml-language-server: $schema=presets/params.schema.json"
    assert written[1:] == preset[1:]


def test_one_preset_may_replace_another(folder: Path) -> None:
    for name in ("digits", "paper", "digits"):
        assert main(["preset", name]) == 0


def test_a_linked_file_is_written_with_its_mode(folder: Path) -> None:
    (folder / "shared").mkdir()
    file = folder / "shared/params.yaml"
    (folder / "params.yaml").symlink_to(file)
    assert main(["preset", "digits"]) == 0
    file.chmod(0o660)
    assert main(["preset", "cifar10"]) == 0
    assert (folder / "params.yaml").is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o660
    assert load_params(file) == load_params(folder / "presets/cifar10.yaml")


def test_edits_are_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["preset", "digits"])
    edited = (folder / "params.yaml").read_text().replace("seed: 0", "seed: 1")
    (folder / "params.yaml").write_text(edited)
    assert main(["preset", "cifar10"]) == 2
    assert (folder / "params.yaml").read_text() == edited
    error = printed_error(capsys.readouterr().err)
    assert error.key == "params.yaml"
    assert re.findall("`(cp .*?)`", str(error)) == ["cp params.yaml presets/mine.yaml"]
    # Both ways out work.
    (folder / "presets" / "mine.yaml").write_text(edited)
    assert main(["preset", "cifar10"]) == 0
    (folder / "params.yaml").write_text(edited + "# a note\n")
    assert main(["preset", "--force", "cifar10"]) == 0


def test_invalid_preset_leaves_params_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["preset", "digits"])
    before = (folder / "params.yaml").read_bytes()
    (folder / "presets" / "mine.yaml").write_text("prepare: {}\n")
    assert main(["preset", "mine"]) == 2
    assert (folder / "params.yaml").read_bytes() == before
    assert key_within(printed_error(capsys.readouterr().err), "presets/mine.yaml") == "prepare.dataset"


def test_unknown_name_is_answered_with_the_known_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preset", "cifar"]) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == "preset cifar"
    assert "'cifar10'" in str(error)
    assert not (folder / "params.yaml").exists()


def test_without_a_name_they_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preset"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    presets = sorted(path.stem for path in (Path(__file__).parents[3] / "presets").glob("*.yaml"))
    assert sorted(listed) == presets
    assert "1,797" in listed["digits"]


def _pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


# Those of the papers state theirs.
_WITHOUT_PRECISION = sorted(path.stem for path in _PRESETS.glob("*.yaml") if "precision:" not in path.read_text())


@pytest.mark.parametrize("name", _WITHOUT_PRECISION)
def test_a_precision_is_written_where_the_gpu_computes_it(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is stated in the file, and in no other way part of it; the next preset may replace it."""
    _pretend_gpu(monkeypatch, (9, 0))
    assert main(["preset", name, "--precision", "bf16"]) == 0
    assert "precision: bf16 in finetune and train" in capsys.readouterr().out
    params, plain = load_params(folder / "params.yaml"), load_params(folder / "presets" / f"{name}.yaml")
    assert (params.finetune.precision, params.train.precision) == ("bf16", "bf16")
    without = {"finetune": {"precision"}, "train": {"precision"}}
    assert params.model_dump(exclude=without) == plain.model_dump(exclude=without)
    assert main(["preset", "digits"]) == 0
    assert (folder / "params.yaml").read_bytes() == (_PRESETS.parent / "params.yaml").read_bytes()


@pytest.mark.parametrize("capability", [None, (7, 5)])
def test_a_precision_that_the_machine_lacks_is_refused(
    capability: tuple[int, int] | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _pretend_gpu(monkeypatch, capability)
    assert main(["preset", "digits", "--precision", "bf16"]) == 2
    assert printed_error(capsys.readouterr().err).key == "--precision"
    assert not (folder / "params.yaml").exists()


def test_a_preset_that_states_its_precision_keeps_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend_gpu(monkeypatch, (8, 0))
    text = (folder / "presets/digits.yaml").read_text().replace("\ntrain:\n", "\ntrain:\n  precision: tf32\n")
    (folder / "presets/mine.yaml").write_text(text)
    assert main(["preset", "mine", "--precision", "bf16"]) == 2
    assert key_within(printed_error(capsys.readouterr().err), "presets/mine.yaml") == "train.precision"


@pytest.mark.parametrize("head", ["train:  # of all studies\n", "train: \n", "train:\r\n"])
def test_a_precision_is_written_below_any_head_of_a_section(
    head: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_gpu(monkeypatch, (9, 0))
    text = (folder / "presets/digits.yaml").read_text()
    (folder / "presets/mine.yaml").write_bytes(text.replace("\ntrain:\n", f"\n{head}").encode())
    assert main(["preset", "mine", "--precision", "bf16"]) == 0
    params = load_params(folder / "params.yaml")
    assert (params.finetune.precision, params.train.precision) == ("bf16", "bf16")


def test_a_precision_that_cannot_be_written_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend_gpu(monkeypatch, (9, 0))
    on_one_line = [f"{section}: {json.dumps(keys)}\n" for section, keys in digits_tree().items()]
    (folder / "presets/mine.yaml").write_text("".join(on_one_line))
    assert main(["preset", "mine", "--precision", "bf16"]) == 2
    assert key_within(printed_error(capsys.readouterr().err), "presets/mine.yaml") == "finetune"
    assert not (folder / "params.yaml").exists()


def test_a_folder_without_presets_hides_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other programs have presets, too."""
    (tmp_path / "presets").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["preset"]) == 0
    assert "digits" in capsys.readouterr().out
    assert main(["preset", "--presets", "presets"]) == 2
    assert printed_error(capsys.readouterr().err).key == "--presets presets"


def test_a_preset_of_an_editor_of_windows_is_a_valid_file(folder: Path) -> None:
    text = (folder / "presets/digits.yaml").read_text()
    (folder / "presets/mine.yaml").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert main(["preset", "mine"]) == 0
    assert load_params(folder / "params.yaml") == load_params(folder / "presets/digits.yaml")
