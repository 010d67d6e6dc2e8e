"""`recurse`: when it ends, what it says of the rounds, what it begins anew, and what it refuses."""

import itertools
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import NETWORK
from made_up_recursion import (
    CLASSES,
    SIZE,
    N,
    by_hand,
    pretend_first_round,
    recurse_arguments,
    round_folder,
    write_project,
)
from numpy.typing import NDArray

from pipeline.__main__ import main
from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.overrides import Override
from pipeline.artifacts.prepared import load_prepared
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.commands.recurse import table
from pipeline.commands.recursion.first_round import FirstRound, inputs_of, read_first_round
from pipeline.commands.recursion.kept_images import write_kept_images
from pipeline.commands.recursion.results import decisions
from pipeline.commands.recursion.rounds import Verdict, compare, has_settled, iterate
from pipeline.commands.recursion.workplace import Workplace
from pipeline.config.params import load_params
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog

_IMAGES = 8
_NOISE = st.lists(st.booleans(), min_size=_IMAGES, max_size=_IMAGES).map(np.array)
_BY_HAND = st.dictionaries(st.integers(0, _IMAGES - 1), st.sampled_from(["keep", "drop"]))


def _verdict(noise: NDArray[np.bool_], by_hand: dict[int, str] | None = None) -> Verdict:
    keep = ~noise
    for row, decision in (by_hand or {}).items():
        keep[row] = decision == "keep"
    return Verdict(is_noise=noise, keep=keep, top1=0.5)


def _noise(*rows: int) -> NDArray[np.bool_]:
    return np.isin(np.arange(_IMAGES), rows)


def _played(noises: Sequence[NDArray[np.bool_]], rounds: int, settle_at: float) -> list[Verdict]:
    """The rounds of a recursion whose filters answer so."""
    verdicts = [_verdict(noise) for noise in noises]

    def answer(number: int, keep: NDArray[np.bool_]) -> Verdict:
        assert np.array_equal(keep, verdicts[number - 1].keep)
        return verdicts[number]

    return iterate(verdicts[0], answer, rounds=rounds, settle_at=settle_at)


def test_two_rounds_that_agree_are_the_last() -> None:
    noises = [_noise(0, 1), _noise(1, 2), _noise(1, 2), _noise(3)]
    assert len(_played(noises, rounds=3, settle_at=0.95)) == 3


def test_agreement_is_on_what_goes_and_just_enough_is_enough() -> None:
    noises = [_noise(0, 1, 2), _noise(0, 1, 2, 3), _noise(5)]
    assert len(_played(noises, rounds=2, settle_at=0.75)) == 2
    assert len(_played(noises, rounds=2, settle_at=0.76)) == 3


@given(noises=st.lists(_NOISE, min_size=5, max_size=5), rounds=st.integers(1, 4), settle_at=st.floats(0.01, 1))
def test_it_ends_at_the_first_agreement_or_after_the_rounds_asked_for(
    noises: list[NDArray[np.bool_]], rounds: int, settle_at: float
) -> None:
    verdicts = _played(noises, rounds, settle_at)
    ran = len(verdicts) - 1
    assert ran == rounds or has_settled(verdicts, settle_at)
    assert 1 <= ran <= rounds
    assert not any(has_settled(verdicts[: number + 1], settle_at) for number in range(1, ran))


@given(noises=st.lists(_NOISE, min_size=2, max_size=4), by_hand=_BY_HAND)
def test_counts_add_up(noises: list[NDArray[np.bool_]], by_hand: dict[int, str]) -> None:
    rows = compare([_verdict(noise, by_hand) for noise in noises])
    for before, now in itertools.pairwise(rows):
        assert now["n_kept"] == before["n_kept"] + now["n_back"] - now["n_newly_dropped"]
    assert all(row["n_kept"] + row["n_dropped"] == _IMAGES for row in rows)


def test_rows_of_rounds_by_hand() -> None:
    first, second = compare([_verdict(_noise(0, 1, 2)), _verdict(_noise(2, 3))])
    assert first == {
        "round": 0, "n_kept": 5, "n_noise": 3, "n_dropped": 3, "top1": 0.5,
        "jaccard": None, "n_back": None, "n_newly_dropped": None,
    }  # fmt: skip
    assert (second["jaccard"], second["n_back"], second["n_newly_dropped"]) == (0.25, 2, 1)
    lines = list(table([{**row, "seconds": 1234.5} for row in (first, second)]))
    assert [line.split() for line in lines[1:]] == [
        ["0", "5", "3", "3", "0.5000", "1,234"],
        ["1", "6", "2", "2", "0.250", "2", "1", "0.5000", "1,234"],
    ]
    assert len({len(line) for line in lines}) == 1


@given(noises=st.lists(_NOISE, min_size=2, max_size=4), people=_BY_HAND)
def test_decisions_turn_round_0_into_the_last_and_never_contradict_people(
    noises: list[NDArray[np.bool_]], people: dict[int, str]
) -> None:
    paths = [f"{row}.png" for row in range(_IMAGES)]
    own = [
        Override(path=paths[row], sha256="aa", decision=decision, note="seen", timestamp="2026-01-01", line=row)
        for row, decision in people.items()
    ]
    verdicts = [_verdict(noise, people) for noise in noises]
    first = FirstRound(verdict=verdicts[0], paths=paths, sha256=["aa"] * _IMAGES, overrides=own)
    decided = decisions(first, verdicts)
    assert decided[: len(own)] == own
    assert len({override.path for override in decided}) == len(decided)
    assert {override.note for override in decided[len(own) :]} <= {f"recursive filter, round {len(noises) - 1}"}
    rows = {paths.index(override.path): override.decision for override in decided}
    assert np.array_equal(_verdict(noises[0], rows).keep, verdicts[-1].keep)


@pytest.mark.parametrize("storage", ["array", "files"])
def test_the_images_kept_are_a_prepared_data_set_of_their_own(tmp_path: Path, storage: str) -> None:
    whole = write_project(tmp_path, prepare={"storage": storage})
    part, keep = DataPaths(root=tmp_path / "kept"), np.arange(N) % 3 > 0
    keep[: N // len(CLASSES)] = False  # filter.allow_empty lets a class go
    write_kept_images(whole, part, keep)
    manifest, before = (read_parquet(data.manifest("train")) for data in (part, whole))
    assert manifest.drop_columns("sample_id").equals(before.filter(keep).drop_columns("sample_id"))
    assert manifest["sample_id"].to_pylist() == list(range(keep.sum()))
    for name in ("test.npy", "test.parquet"):
        (part.root / "prepare" / name).symlink_to(whole.root / "prepare" / name)
    all_images, kept = (load_prepared(data, folder=tmp_path / "images") for data in (whole, part))
    assert np.array_equal(kept.train.images, all_images.train.images[keep])
    assert (kept.class_names, kept.image_size) == (CLASSES, SIZE)
    assert kept.mean == pytest.approx(kept.train.images.mean((0, 1, 2)) / 255)
    assert kept.std == pytest.approx(kept.train.images.std((0, 1, 2)) / 255)
    if storage == "files":
        assert kept.train.files is not None
        assert all_images.train.files is not None
        assert kept.train.files.read(5) == all_images.train.files.read(int(np.flatnonzero(keep)[5]))
    metrics = read_json(part.prepare_metrics)
    assert metrics["n_train"] == sum(metrics["class_counts"]["train"].values()) == keep.sum()
    assert (metrics["n_test"], metrics["n_val"]) == (24, sum(manifest["val"].to_pylist()))


def _begun(folder: Path) -> tuple[Callable[[], list[str]], Path]:
    """Begins a recursion and returns what it says, and a file of a round that was made before."""
    data = DataPaths(root=folder / "data")
    place = Workplace(data=data, work=WorkPaths(root=folder / "work"), network=NETWORK)

    def begin() -> list[str]:
        params = load_params(folder / "params.yaml")
        said = io.StringIO()
        first = read_first_round(params, data, NETWORK)
        place.begin(inputs_of(params, data, NETWORK, first.verdict), RunLog(None, said))
        return said.getvalue().splitlines()

    assert begin() == []
    made = round_folder(folder, 1) / "kept" / "made"
    made.parent.mkdir(parents=True)
    made.touch()
    data.recursive_rounds(NETWORK).parent.mkdir(parents=True)
    data.recursive_rounds(NETWORK).touch()
    return begin, made


def test_the_same_inputs_go_on(tmp_path: Path) -> None:
    write_project(tmp_path)
    pretend_first_round(tmp_path)
    begin, made = _begun(tmp_path)
    assert begin() == []
    assert made.exists()


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("finetune", {"seed": 1}),
        ("extract", {"batch_size": 7}),
        ("reduce", {"neighbors": 6}),
        ("filter", {"drop_share": 0.2}),
    ],
)
def test_a_changed_section_starts_anew_and_is_named(tmp_path: Path, section: str, keys: dict[str, float]) -> None:
    data = write_project(tmp_path)
    pretend_first_round(tmp_path)
    begin, made = _begun(tmp_path)
    write_project(tmp_path, **{section: keys})
    pretend_first_round(tmp_path)
    assert begin() == [f"starting anew: {section} changed since these rounds were begun"]
    assert not made.exists()
    assert not data.recursive_rounds(NETWORK).exists()


def test_changed_overrides_start_anew_and_are_named(tmp_path: Path) -> None:
    data = write_project(tmp_path)
    pretend_first_round(tmp_path)
    begin, made = _begun(tmp_path)
    pretend_first_round(tmp_path, overrides=[by_hand(data, 3, "drop")])
    assert begin() == ["starting anew: data/filter, data/overrides.csv changed since these rounds were begun"]
    assert not made.exists()


def _nothing_filtered(folder: Path) -> list[str]:
    DataPaths(root=folder / "data").points(NETWORK).unlink()
    return []


def _other_parameters(folder: Path) -> list[str]:
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("drop_share: 0.1", "drop_share: 0.2"))
    return []


def _other_overrides(folder: Path) -> list[str]:
    data = DataPaths(root=folder / "data")
    override = by_hand(data, 0, "drop")
    with data.overrides.open("a") as file:
        file.write(f"{override.path},{override.sha256},drop,,\n")
    return []


def _other_images(folder: Path) -> list[str]:
    data = DataPaths(root=folder / "data")
    points = read_parquet(data.points(NETWORK))
    write_parquet(data.points(NETWORK), points.slice(1))
    return []


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda _: ["--rounds", "0"], r"--rounds 0: nothing would be trained; give 1 or more"),
        (lambda _: ["--settled", "0"], r"--settled 0: a Jaccard index is above 0 and at most 1; .*"),
        (lambda _: ["--settled", "nan"], r"--settled nan: a Jaccard index is above 0 and at most 1; .*"),
        (lambda _: ["--network", "resnet34"], r"--network resnet34: not in \S+params.yaml; it has \['resnet18'\]"),
        (_nothing_filtered, r"\S+points.parquet: missing; run `dvc repro`"),
        (_other_parameters, r"\S+: made with another section `filter` than there is now; run `dvc repro`"),
        (_other_overrides, r"\S+points.parquet: made with another \S+overrides.csv; run `dvc repro`"),
        (_other_images, r"\S+points.parquet: its images are not those of data/prepare; run `dvc repro`"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], list[str]], said: str
) -> None:
    write_project(tmp_path)
    pretend_first_round(tmp_path)
    options = harm(tmp_path)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*recurse_arguments(tmp_path), *options])
    assert ended.value.code == 2
    assert re.fullmatch(f"error: {said}\n", capsys.readouterr().err)
    assert not WorkPaths(root=tmp_path / "work").recursion(NETWORK).exists()


def test_what_it_writes_is_ignored_by_git_as_all_data() -> None:
    root = Path(__file__).parents[2]
    ignored = (root / "data" / ".gitignore").read_text().splitlines()
    assert "*" in ignored
    assert not any("recursive" in line for line in ignored)
