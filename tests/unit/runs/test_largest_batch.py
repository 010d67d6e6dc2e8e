"""The largest batch that fits: found by powers of two and bisection, recorded, and then a number like any other."""

import json
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.prepared import load_prepared
from pipeline.config.batch_sizes import with_recorded_sizes
from pipeline.config.params import check_params, load_params
from pipeline.distributed import CommConfig, World
from pipeline.errors import DataError, InputError
from pipeline.host_memory import memory_limit
from pipeline.paths import DataPaths, WorkPaths
from pipeline.runs import execution, largest_batch
from pipeline.runs.largest_batch import find_largest, with_largest_batch
from pipeline.training.memory import pass_fits
from tests.fixtures.params import digits_tree
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.training import ALONE, TINY, runs_of, stage, write_project

_FITTING = 30
"""Images that fit in these tests, of 60."""


@given(room=st.integers(0, 3000), unit=st.integers(1, 12), shares=st.integers(2, 5), extra=st.integers(0, 2000))
def test_what_is_found_fits_and_a_sixteenth_more_does_not(room: int, unit: int, shares: int, extra: int) -> None:
    least, tried = unit * shares, list[int]()
    most = least + extra

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= room

    found = find_largest(fits, unit=unit, least=least, most=most)
    if room < least:
        assert found is None
        return
    assert found is not None
    assert least <= found <= min(room, most)
    assert found % unit == 0
    # Up to a sixteenth, or one image for each worker.
    assert found + max(unit, found // 16) > min(room, most)
    assert found in tried
    assert len(tried) == len(set(tried)) <= 20


def test_a_real_pass_out_of_memory_is_a_size_that_does_not_fit() -> None:
    def try_pass(images: int) -> None:
        torch.empty(images * 2**40, dtype=torch.uint8)[:1].fill_(0)

    def fits(images: int) -> bool:
        return pass_fits(lambda: try_pass(images if images > 6 else 0))

    assert find_largest(fits, unit=1, least=2, most=2**12) == 6


def test_the_limit_of_a_container_or_a_batch_job_is_known(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /group rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "group").mkdir()
    assert memory_limit(tmp_path) is None
    (tmp_path / "group/memory.max").write_text("max\n")
    assert memory_limit(tmp_path) is None
    for name, content in (("memory.max", "1024\n"), ("memory.current", "512\n"), ("memory.stat", "active_file 0\n")):
        (tmp_path / "group" / name).write_text(content)
    assert memory_limit(tmp_path) == 1024


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of memory that `_FITTING` images at once take."""
    monkeypatch.setattr(largest_batch, "memory_limit", lambda: 10**9)
    monkeypatch.setattr(largest_batch, "samples_that_fit", lambda *_: _FITTING)


_STUDY = {"models": ["small_cnn"], "arms": ["full"], "seeds": [0]}


@pytest.mark.slow
@pytest.mark.usefixtures("limited")
def test_a_study_with_it_gives_the_files_of_one_with_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for name, sizes in (("found", ["largest", 8]), ("stated", [_FITTING, 8])):
        (tmp_path / name).mkdir()
        data = write_project(tmp_path / name, study={**_STUDY, "batch_sizes": sizes})
        assert stage("train", tmp_path / name) == 0
        assert [row["batch_size"] for row in runs_of(data)] == [_FITTING, 8]
        files = (data.runs("tiny"), data.history("tiny"), data.correct("tiny"), data.provenance("train", "tiny"))
        written.append([path.read_bytes() for path in files])
    assert written[0] == written[1], "tables with the keys of the runs, and the provenance with the parameters"
    record = WorkPaths(root=tmp_path / "found/work").largest_batch("tiny")
    assert json.loads(record.read_text())["batch_size"] == _FITTING
    # Under the same conditions it is not searched again.
    monkeypatch.setattr(largest_batch, "find_largest", None)
    assert stage("train", tmp_path / "found") == 0
    found = with_recorded_sizes(load_params(tmp_path / "found/params.yaml"), DataPaths(root=tmp_path / "found/data"))
    assert found.studies["tiny"].batch_sizes == (_FITTING, 8)


@pytest.mark.parametrize("damage", ["{}", '{"parameters": {}}', "[1]", "{"])
def test_a_damaged_provenance_is_one_line(damage: str, tmp_path: Path) -> None:
    data = write_project(tmp_path, study={**_STUDY, "batch_sizes": ["largest", 8]})
    path = data.provenance("train", "tiny")
    path.parent.mkdir(parents=True)
    path.write_text(damage)
    with pytest.raises(DataError) as raised:
        with_recorded_sizes(load_params(tmp_path / "params.yaml"), data)
    assert str(path) in str(raised.value)


@pytest.mark.usefixtures("limited")
def test_it_is_a_multiple_of_the_workers_with_whole_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = {"simulated_workers": 4, "bn_group": 16}
    write_project(tmp_path, study={**_STUDY, "batch_sizes": ["largest"]}, train=shared)
    assert stage("train", tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == "batch_sizes"
    assert "at least 64 images" in str(error)
    assert "has 60" in str(error)


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(("share", "workers"), [(0.25, 1), (0.5, 2)])
def test_a_batch_schedule_must_fit_the_number(
    share: float, workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quarter of 30 is no number of images, and 15 do not split into two workers."""
    stages = [{"share": share, "until": {"steps": 1}}]
    recipe = {"batch_schedule": {"stages": stages}, "simulated_workers": workers}
    write_project(tmp_path, study={**_STUDY, "batch_sizes": ["largest"], "recipe": recipe})
    assert stage("train", tmp_path) == 2
    error = printed_error(capsys.readouterr().err.splitlines()[-1])
    assert error.key == "studies.tiny.recipe.batch_schedule.stages.0.share"
    assert f"{share} of batch {_FITTING}" in str(error)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_its_memory_is_free_for_the_runs(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in other processes use the same GPU, and evaluate on test images, which are loaded while it is measured."""
    events = list[str]()

    def loading(*_: object, training: bool, **__: object) -> MagicMock:
        events.append("training images" if training else "test images")
        return MagicMock()

    def measured(*_: object, **__: object) -> int:
        events.append("measured")
        return _FITTING

    monkeypatch.setattr(execution, "load_images", loading)
    monkeypatch.setattr(largest_batch, "largest_batch", measured)
    monkeypatch.setattr(largest_batch, "_limit", lambda _: 10**9)
    monkeypatch.setattr(largest_batch, "machine_info", lambda _: {})
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, _: tensor)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("freed"))
    data = write_project(tmp_path, study={**_STUDY, "batch_sizes": ["largest"]})
    found = with_largest_batch(
        load_params(tmp_path / "params.yaml"), "tiny", load_prepared(data, folder=None), paths=data,
        work=WorkPaths(root=tmp_path / "work"), world=World(rank=0, size=1, device=torch.device(device)),
        log=lambda _: None,
    )  # fmt: skip
    assert found.studies["tiny"].batch_sizes == (_FITTING,)
    assert events == ["training images", "test images", "measured", *["freed"] * (device == "cuda")]


def test_its_record_is_of_one_kind_of_exchange() -> None:
    """Without overlap the exchange needs one more copy of the parameters."""
    with_overlap, without = (
        largest_batch._digest([TINY], 60, 10**9, ALONE, CommConfig(overlap=overlap)) for overlap in (True, False)
    )
    assert with_overlap != without


def test_a_cpu_without_a_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(largest_batch, "memory_limit", lambda: None)
    write_project(tmp_path, study={**_STUDY, "batch_sizes": ["largest"]})
    assert stage("train", tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == "batch_sizes"
    assert "give a number" in str(error)


@pytest.mark.parametrize("key", ["budget_by_batch_size", "equivalent_batch"])
def test_keys_that_need_the_number_are_refused(key: str) -> None:
    tree = digits_tree()
    values = {"budget_by_batch_size": {"32": {"steps": 3}}, "equivalent_batch": {"gradient_scale": 0.5}}
    tree["studies"]["digits"] |= {"batch_sizes": [32, "largest"], key: values[key]}
    with pytest.raises(InputError) as raised:
        check_params(tree, source="p")
    # A rule of the whole study names its key after the study's.
    assert f"studies.digits: {key}: needs the batch size that largest stands for" in str(raised.value)
