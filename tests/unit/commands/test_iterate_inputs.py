"""`iterate`: what restarts the rounds, and rejected inputs."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.overrides import read_overrides, write_overrides
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.commands.iterate.rounds import RoundResult, read_first_round, read_round, round_inputs
from pipeline.commands.iterate.running import RoundsDir
from pipeline.config.params import load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from tests.fixtures.iteration import (
    CLASSES,
    by_hand,
    iterate_arguments,
    pretend_first_round,
    round_folder,
    write_project,
)
from tests.fixtures.params import PRESET
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK
from tests.fixtures.records import record
from tests.fixtures.slow import quick_first
from tests.unit.artifacts.test_resources import DAMAGED


def _begun(folder: Path) -> tuple[Callable[[], list[str]], Path]:
    """Begin the rounds; return the log and a file of an earlier round."""
    data = DataPaths(root=folder / "data")
    finetune = load_params(folder / "params.yaml").finetune
    place = RoundsDir(data=data, work=WorkPaths(root=folder / "work"), network=NETWORK, finetune=finetune)

    def begin() -> list[str]:
        file, printed = folder / "params.yaml", io.StringIO()
        params = load_params(file)
        first = read_first_round(params, data, NETWORK)
        copy = place.begin(file, round_inputs(params, data, NETWORK, first.result), RunLog(None, printed))
        assert copy.read_bytes() == file.read_bytes()
        return printed.getvalue().splitlines()

    assert begin() == []
    made = round_folder(folder, 1) / "kept" / "made"
    made.parent.mkdir(parents=True)
    made.touch()
    data.recursive_rounds(NETWORK).parent.mkdir(parents=True)
    data.recursive_rounds(NETWORK).touch()
    return begin, made


def test_equal_inputs_resume(tmp_path: Path) -> None:
    write_project(tmp_path)
    pretend_first_round(tmp_path)
    begin, made = _begun(tmp_path)
    assert begin() == []
    assert made.exists()


@pytest.mark.parametrize("text", ["[]", "3", '"x"', '[["seed", 0]]'])
def test_a_damaged_record_of_inputs_starts_again(tmp_path: Path, text: str) -> None:
    write_project(tmp_path)
    pretend_first_round(tmp_path)
    begin, made = _begun(tmp_path)
    (record_file,) = (tmp_path / "work").rglob("inputs.json")
    recorded = record_file.read_bytes()
    record_file.write_text(text)
    (line,) = begin()
    assert line.startswith("starting over: ")
    assert not made.exists()
    assert record_file.read_bytes() == recorded


@pytest.mark.parametrize("text", ["[]", "null", '["top1"]', "{}", '{"top1": "x"}', '{"top1": 2.0}'])
def test_damaged_metrics_of_the_extractor_are_refused(tmp_path: Path, text: str) -> None:
    data = write_project(tmp_path)
    pretend_first_round(tmp_path)
    data.finetune_metrics(NETWORK).write_text(text)
    with pytest.raises(InputError) as refused:
        read_round(data, NETWORK)
    assert refused.value.key == str(data.finetune_metrics(NETWORK))


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_of_a_stage_takes_no_time(tmp_path: Path, text: str) -> None:
    work = WorkPaths(root=tmp_path)
    finetune = load_params(PRESET).finetune
    place = RoundsDir(data=DataPaths(root=tmp_path), work=work, network=NETWORK, finetune=finetune)
    write_json(work.resources(f"finetune@{NETWORK}"), {"wall_s": 2})
    damaged, notes = work.resources(f"reduce@{NETWORK}"), list[str]()
    damaged.write_text(text)
    assert place.seconds(0, notes.append) == 2
    assert [note.startswith(f"{damaged}: ") for note in notes] == [True]


@pytest.mark.parametrize(
    ("section", "keys"),
    quick_first(
        1,
        [
            ("reduce", {"n_neighbors": 6}),
            ("finetune", {"seed": 1}),
            ("extract", {"batch_size": 7}),
            ("filter", {"drop_fraction": 0.2}),
        ],
    ),
)
def test_a_changed_section_starts_again_and_is_named(tmp_path: Path, section: str, keys: dict[str, float]) -> None:
    data = write_project(tmp_path)
    pretend_first_round(tmp_path)
    begin, made = _begun(tmp_path)
    write_project(tmp_path, **{section: keys})
    pretend_first_round(tmp_path)
    (line,) = begin()
    assert f" {section} " in line
    assert not made.exists()
    assert not data.recursive_rounds(NETWORK).exists()


def test_a_kill_in_a_restart_leaves_no_round_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    write_project(tmp_path)
    pretend_first_round(tmp_path)
    begin, made = _begun(tmp_path)
    write_project(tmp_path, filter={"drop_fraction": 0.2})
    pretend_first_round(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            begin()
    write_project(tmp_path)
    pretend_first_round(tmp_path)
    begin()
    assert not made.exists()


def test_round_0_may_have_dropped_near_duplicates(tmp_path: Path) -> None:
    data = write_project(tmp_path)
    pretend_first_round(tmp_path, overrides=[by_hand(data, 3, "keep")])
    points = read_parquet(data.points(NETWORK))
    duplicates = np.isin(np.arange(len(points)), [0, 7])
    keep = points["keep"].to_numpy() & ~duplicates
    columns = {**{name: points[name] for name in points.column_names}, "keep": keep, "near_duplicate": duplicates}
    write_parquet(data.points(NETWORK), pa.table(columns))
    record(data, "filter", NETWORK)
    first = read_first_round(load_params(tmp_path / "params.yaml"), data, NETWORK)
    np.testing.assert_array_equal(first.result.keep, keep)


def test_changed_overrides_start_again_and_are_named(tmp_path: Path) -> None:
    data = write_project(tmp_path)
    pretend_first_round(tmp_path)
    begin, made = _begun(tmp_path)
    pretend_first_round(tmp_path, overrides=[by_hand(data, 3, "drop")])
    (line,) = begin()
    assert " data/filter, data/overrides.csv " in line
    assert not made.exists()


@pytest.mark.slow
def test_rounds_have_the_more_folds_of_command_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path)
    pretend_first_round(tmp_path)
    given: list[int] = []

    def run_round(place: RoundsDir, _: int, keep: NDArray[np.bool_], *, params: Path, **__: object) -> RoundResult:
        written, original = load_params(params), load_params(tmp_path / "params.yaml")
        assert written == original.model_copy(update={"finetune": written.finetune})
        assert place.finetune == written.finetune
        given.append(written.finetune.folds)
        return RoundResult(is_noise=~keep, keep=keep, top1=0.75)

    monkeypatch.setattr(RoundsDir, "run_round", run_round)
    command = iterate_arguments(tmp_path)
    assert main(command) == 0
    assert main([*command, "--folds", "3"]) == 0
    assert main([*command, "--folds", "2"]) == 0
    write_project(tmp_path, finetune={"folds": 4})
    pretend_first_round(tmp_path)
    assert main(command) == 0
    assert given == [1, 3, 2, 4]


def test_a_score_that_dropped_images_lack_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_project(tmp_path, filter={"scorer": {"name": "mean_confidence"}})
    pretend_first_round(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*iterate_arguments(tmp_path), "--folds", "2"])
    assert ended.value.code == 2
    assert printed_error(capsys.readouterr().err).key == "filter.scorer"


def _nothing_filtered(folder: Path) -> list[str]:
    DataPaths(root=folder / "data").points(NETWORK).unlink()
    return []


def _other_parameters(folder: Path) -> list[str]:
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("drop_fraction: 0.1", "drop_fraction: 0.2"))
    return []


def _other_overrides(folder: Path) -> list[str]:
    data = DataPaths(root=folder / "data")
    override = by_hand(data, 0, "drop")
    with data.overrides.open("a") as file:
        file.write(f"{override.path},{override.sha256},drop,,,\n")
    return []


def _other_labels(folder: Path) -> list[str]:
    data = DataPaths(root=folder / "data")
    write_overrides(data.overrides, [by_hand(data, 0, "relabel", CLASSES[1])])
    return []


def _other_images(folder: Path) -> list[str]:
    data = DataPaths(root=folder / "data")
    points = read_parquet(data.points(NETWORK))
    write_parquet(data.points(NETWORK), points.slice(1))
    return []


@pytest.mark.parametrize(
    ("harm", "key"),
    quick_first(
        3,
        [
            (lambda _: ["--rounds", "0"], "--rounds 0"),
            (_nothing_filtered, "data/filter/resnet18/points.parquet"),
            (_other_parameters, "data/filter/resnet18/provenance.json"),
            (lambda _: ["--folds", "0"], "--folds 0"),
            (lambda _: ["--min-jaccard", "0"], "--min-jaccard 0"),
            (lambda _: ["--min-jaccard", "nan"], "--min-jaccard nan"),
            (lambda _: ["--network", "resnet34"], "--network resnet34"),
            (_other_overrides, "data/filter/resnet18/points.parquet"),
            (_other_labels, "data/filter/resnet18/points.parquet"),
            (_other_images, "data/filter/resnet18/points.parquet"),
        ],
    ),
)
def test_bad_input_is_one_line_and_nothing_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], list[str]], key: str
) -> None:
    write_project(tmp_path)
    pretend_first_round(tmp_path)
    options = harm(tmp_path)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*iterate_arguments(tmp_path), *options])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert printed_error(shown).key == (key if key.startswith("--") else str(tmp_path / key))
    assert not WorkPaths(root=tmp_path / "work").iteration(NETWORK).exists()


def _play(
    monkeypatch: pytest.MonkeyPatch, folder: Path, meanwhile: Callable[[], object] = lambda: None
) -> list[list[bool]]:
    """Rounds that agree with round 0 but for its first suspect; returns what each is given to train on."""
    given: list[list[bool]] = []

    def run_round(place: RoundsDir, number: int, keep: NDArray[np.bool_], **_: object) -> RoundResult:
        given.append(keep.tolist())
        meanwhile()
        noise = read_round(place.data, NETWORK).is_noise.copy()
        noise[noise.argmax()] = False
        return RoundResult(is_noise=noise, keep=~noise, top1=0.75)

    monkeypatch.setattr(RoundsDir, "run_round", run_round)
    return given


def test_rounds_are_printed_and_their_overrides_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_project(tmp_path)
    pretend_first_round(tmp_path)
    given = _play(monkeypatch, tmp_path)
    assert main(iterate_arguments(tmp_path)) == 0
    assert [sum(keep) for keep in given] == [108, 109]
    rounds = read_json(data.recursive_rounds(NETWORK))
    assert [row["n_kept"] for row in rounds["rounds"]] == [108, 109, 109]
    assert (rounds["settled"], rounds["overrides_added"]) == (True, 1)
    (decided,) = read_overrides(data.recursive_overrides(NETWORK))
    assert (decided.decision, decided.note, decided.timestamp) == ("keep", "recursive filter, round 2", "")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        *("round", "kept", "suspect", "dropped", "Jaccard", "came", "back"),
        *("newly", "dropped", "test", "top-1", "seconds"),
    ]
    assert lines[2].split() == ["1", "109", "11", "11", "0.917", "1", "0", "0.7500", "0"]
    assert lines[4:] == [
        "converged in round 2",
        f"to use round 2: cp {data.recursive_overrides(NETWORK)} {data.overrides} && dvc repro",
    ]


def test_results_of_inputs_that_changed_are_not_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_project(tmp_path)
    pretend_first_round(tmp_path)
    decided = [by_hand(data, 3, "drop")]
    _play(monkeypatch, tmp_path, lambda: pretend_first_round(tmp_path, overrides=decided))
    with pytest.raises(SystemExit) as ended:
        main(iterate_arguments(tmp_path))
    assert ended.value.code == 2
    assert printed_error(capsys.readouterr().err).key == "data/filter, data/overrides.csv"
    assert not data.recursive_rounds(NETWORK).exists()
