"""`verify --retrain K --segments`: a segment is trained from a kept checkpoint and held against the hash chain."""

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json, write_json
from pipeline.commands.verify import retraining, segments
from pipeline.commands.verify.retraining import AuditSample, choose_runs
from pipeline.paths import WorkPaths
from pipeline.runs.checkpoints import has_kept, kept_checkpoint, load_kept
from pipeline.runs.record import write_checksums
from pipeline.training import loop
from pipeline.training.hash_chain import HashChain
from tests.fixtures.forgeries import entries, make_up_chain, work_of
from tests.fixtures.verified import ONE_RUN, links_of_two_steps, run_verify, write_verified_project


@pytest.fixture(scope="module", autouse=True)
def _links_of_two_steps() -> Iterator[None]:
    with links_of_two_steps():
        yield


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_verified_project(tmp_path_factory.mktemp("honest"), **ONE_RUN)


def _audit(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[str]]:
    return run_verify(folder, capsys, "--retrain", "3", "--segments", "--seed", "1", *options)


def _starting(word: str, lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(word)]


def _kept(folder: Path) -> Path:
    (entry,) = entries(folder)
    return work_of(folder).kept_checkpoints(entry.name)


def test_all_segments_of_an_honest_run_are_equal(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in honest.rglob("*") if path.is_file()}
    code, lines = _audit(honest, capsys)
    assert (code, _starting("DIFFERS", lines)) == (0, [])
    equal = _starting("equal", lines)
    assert sorted(steps for line in equal for steps in ("0 to 2", "2 to 4", "4 to 6") if f"steps {steps})" in line) == [
        "0 to 2", "2 to 4", "4 to 6",
    ]  # fmt: skip
    assert all(": 1 link of the hash chain" in line for line in equal)
    assert any("all 3 segments are as recorded" in line for line in lines)
    assert {path: path.read_bytes() for path in honest.rglob("*") if path.is_file()} == before


def test_a_line_after_each_segment_says_how_many_are_left(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["verify", str(honest), "--retrain", "3", "--segments", "--seed", "1"]) == 0
    lines = _starting("verify: ", capsys.readouterr().err.splitlines())
    assert [line.split(",")[0] for line in lines] == [f"verify: {count} of 3 segments" for count in (1, 2, 3)]
    assert [line.endswith(" left") for line in lines] == [True, True, False]


@pytest.mark.slow
def test_the_seed_chooses_the_segments(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def chosen(seed: int) -> str:
        capsys.readouterr()
        assert main(["verify", str(honest), "--retrain", "1", "--segments", "--seed", str(seed)]) == 0
        (line,) = _starting("equal", capsys.readouterr().out.splitlines())
        return line

    assert chosen(3) == chosen(3)
    assert len({chosen(seed) for seed in range(8)}) > 1


@pytest.mark.parametrize(
    "recipe",
    [
        {"reduction": "exact", "simulated_workers": 2},
        {"ema_decay": 0.9, "optimizer": {"name": "adamw", "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}},
        {"batch_schedule": {"stages": [{"share": 0.5, "until": {"steps": 2}}]}, "noise_scale_steps": 1, "bn_group": 4},
    ],
    ids=["exact", "average", "batch schedule"],
)
@pytest.mark.slow
def test_segments_of_other_recipes_are_equal(
    recipe: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_verified_project(tmp_path, **ONE_RUN, accuracy_every={"steps": 1}, recipe=recipe)
    code, lines = _audit(folder, capsys)
    assert (code, _starting("DIFFERS", lines)) == (0, [])
    assert any("segments are as recorded" in line for line in lines), lines


def test_kept_checkpoints_change_no_key_and_no_bit(honest: Path, tmp_path: Path) -> None:
    plain = write_verified_project(tmp_path, **{**ONE_RUN, "keep_checkpoints": False})
    assert not WorkPaths(root=plain / ".work").kept_checkpoints("").exists()
    (with_them,), (without,) = entries(honest), entries(plain)
    assert with_them.name == without.name
    for name in ("result.json", "correct.npy", "weights.pt"):
        assert (with_them / name).read_bytes() == (without / name).read_bytes()
    assert [has_kept(_kept(honest), step) for step in range(7)] == [False, False, True, False, True, False, False]


def test_a_run_without_kept_checkpoints_has_no_segments(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(_kept(project) / f"{4:09d}")
    code, lines = _audit(project, capsys)
    assert (code, _starting("DIFFERS", lines)) == (0, [])
    assert any("1 runs cannot be decided: no checkpoint is kept" in line for line in lines)


def test_a_made_up_chain_is_found_where_it_begins(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Canonical runs take half a minute.
    monkeypatch.setattr(retraining, "_listed_hashes", lambda _: None)
    make_up_chain(project)
    code, lines = _audit(project, capsys)
    assert code == 1
    (equal,) = _starting("equal", lines)
    assert "steps 0 to 2" in equal
    first, second = sorted(_starting("DIFFERS", lines), key=lambda line: "steps 4 to 6" in line)
    assert "steps 2 to 4" in first
    assert "first differs between step 2 and step 4 (hash of the state)" in first
    assert "the checkpoint of step 4 is not the state of the recorded link" in second
    assert any("2 of 3 audited segments are other than recorded" in line for line in lines)


def test_a_chain_cut_in_the_middle_is_found_at_no_cost(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = entries(project)
    record = read_json(entry / "result.json")
    write_json(entry / "result.json", {**record, "links": [record["links"][0], record["links"][2]]})
    write_checksums(entry)
    capsys.readouterr()
    assert main(["verify", str(project)]) == 1
    (line,) = _starting("DIFFERS", capsys.readouterr().out.splitlines())
    assert "steps of the hash chain: [2, 6], expected [2, 4, 6]" in line


def _other_state(folder: Path) -> None:
    """The state after step 4 in the place of that after step 2."""
    state = load_kept(_kept(folder), 4)
    kept_checkpoint(_kept(folder), 2).save(2, {**state, "step": 2})


def _flipped_byte(folder: Path) -> None:
    (path,) = (_kept(folder) / f"{2:09d}").glob("step-*.pt")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _no_state(folder: Path) -> None:
    kept_checkpoint(_kept(folder), 2).save(2, {"model": [1, 2], "ranks": None})


def _changed_weight(folder: Path) -> None:
    state: Any = load_kept(_kept(folder), 2)
    next(iter(state["model"].values()))[0] += 1e-3
    kept_checkpoint(_kept(folder), 2).save(2, state)


def _link(folder: Path) -> None:
    (path,) = (_kept(folder) / f"{2:09d}").glob("step-*.pt")
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_other_state, "is not the state of the recorded link"),
        (_flipped_byte, "restore it from a copy, or verify without --segments"),
        (_no_state, "holds no state of this run"),
        (_changed_weight, "is not the state of the recorded link"),
        (_link, "not a regular file"),
    ],
)
def test_a_checkpoint_that_is_not_that_of_its_link_is_named(
    harm: Callable[[Path], None], words: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(project)
    code, lines = _audit(project, capsys)
    assert code == 1
    (line,) = _starting("DIFFERS", lines)
    assert words in line
    assert "steps 2 to 4" in line
    assert len(_starting("equal", lines)) == 2


def test_options_of_a_kept_optimizer_are_not_taken(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No link hashes them, so a checkpoint with others reaches its link; the settings decide them."""
    state: Any = load_kept(_kept(project), 2)
    for group in state["optimizer"]["param_groups"]:
        group["weight_decay"], group["momentum"], group["maximize"] = 0.5, 0.1, True
    kept_checkpoint(_kept(project), 2).save(2, state)
    code, lines = _audit(project, capsys)
    assert (code, _starting("DIFFERS", lines)) == (0, [])
    assert len(_starting("equal", lines)) == 3


def test_kept_grids_cannot_round_gradients_to_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = {"reduction": "exact", "simulated_workers": 2}
    folder = write_verified_project(tmp_path, **ONE_RUN, recipe=recipe)
    state: Any = load_kept(_kept(folder), 2)
    state["grids"]["sum_bits"] = 60
    kept_checkpoint(_kept(folder), 2).save(2, state)
    code, lines = _audit(folder, capsys)
    assert (code, _starting("DIFFERS", lines)) == (0, [])
    state["grids"]["exponents"] = (10**9, *state["grids"]["exponents"][1:])
    kept_checkpoint(_kept(folder), 2).save(2, state)
    code, lines = _audit(folder, capsys)
    assert code == 1
    (line,) = _starting("DIFFERS", lines)
    assert "holds no state of this run" in line


def test_segments_of_runs_with_error_feedback_are_left_out(
    honest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compressed(*arguments: Any, **options: Any) -> AuditSample:
        sample = choose_runs(*arguments, **options)
        runs = {
            name: replace(run, spec=replace(run.spec, settings=replace(run.spec.settings, compression="powersgd")))
            for name, run in sample.decidable.items()
        }
        return replace(sample, decidable=runs)

    monkeypatch.setattr(segments, "choose_runs", compressed)
    code, lines = _audit(honest, capsys)
    assert (code, _starting("equal", lines)) == (0, [])
    assert any("1 runs cannot be decided: trained with PowerSGD" in line for line in lines), lines


class _SlowChain(HashChain):
    """Hashes by a thread, as on a GPU, after the training has gone on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._thread = ThreadPoolExecutor(1)

    def _append(self, *arguments: Any) -> None:
        time.sleep(0.05)
        super()._append(*arguments)


def test_segments_wait_for_links_that_a_thread_hashes(
    honest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, lines = _audit(honest, capsys)
    for module in (loop, segments):
        monkeypatch.setattr(module, "HashChain", _SlowChain)
    assert (code, lines) == (0, _audit(honest, capsys)[1])
