import itertools
import json
import re
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.files import open_array, write_array, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.projects import NETWORK
from tests.fixtures.report import write_evidence, write_network, write_prepared
from viz import cache
from viz import data as viz_data
from viz.cache import StampedCache, deep_nbytes, read_consistently
from viz.data import Points, Source
from viz.state import make_map_state


def test_points_are_read_once_until_a_stage_replaces_them(data: DataPaths, source: Source, points: Points) -> None:
    assert source.points(NETWORK) is points
    write_network(data, NETWORK, seed=1)
    after = source.points(NETWORK)
    assert after is not points
    assert after.stamp != points.stamp
    assert after.images_stamp == points.images_stamp


@pytest.mark.parametrize("network", ["../resnet18", "/etc/passwd", "", "a/b", "resnet18\n", "x" * 99])
def test_invalid_network_names_are_rejected(source: Source, network: str) -> None:
    with pytest.raises(InputError) as refused:
        source.points(network)
    assert refused.value.key == "network"


def test_classes_of_another_run_of_prepare_are_noticed(data: DataPaths, source: Source) -> None:
    data.prepare_metrics.write_text('{"class_names": ["a", "b"]}')
    with pytest.raises(InputError) as refused:
        source.points(NETWORK)
    assert refused.value.key == str(data.points(NETWORK))
    assert str(data.prepare_metrics) in str(refused.value)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"eps": 1.5}, "settings"),
        ({"eps": 1.5, "settings": {"scorer": {}}}, "settings.scorer.name"),
        ({"eps": "1.5", "settings": {"scorer": {"name": "margin"}}}, "eps.float"),
        ([1, 2], "(top level)"),
        (None, "(top level)"),
    ],
)
def test_metrics_with_wrong_keys_are_rejected_in_one_line(
    data: DataPaths, source: Source, content: Any, key: str
) -> None:
    data.filter_metrics(NETWORK).write_text(json.dumps(content))
    with pytest.raises(InputError) as refused:
        source.points(NETWORK)
    assert str(refused.value).startswith(f"{data.filter_metrics(NETWORK)}: {key}: ")


def test_metrics_of_another_run_of_the_filter_are_rejected(data: DataPaths, source: Source) -> None:
    file = data.filter_metrics(NETWORK)
    file.write_text(json.dumps({"eps": 1.25, "settings": {"scorer": {"name": "dbscan"}}}))
    with pytest.raises(InputError) as refused:
        source.points(NETWORK)
    assert str(file) in str(refused.value)
    assert refused.value.key == str(data.points(NETWORK))


@pytest.mark.parametrize("content", ["[1]", "{}", "null", '{"class_names": "abcd"}', '{"class_names": [1]}'])
def test_prepare_metrics_with_wrong_keys_are_rejected_in_one_line(
    data: DataPaths, source: Source, content: str
) -> None:
    data.prepare_metrics.write_text(content)
    with pytest.raises(InputError) as refused:
        source.points(NETWORK)
    assert refused.value.key == str(data.prepare_metrics)
    assert source.classes() == []


@pytest.mark.parametrize(
    ("column", "value"),
    [("x", float("nan")), ("y", float("inf")), ("score", float("nan")), ("score", 0.75), ("is_noise", True)],
)
def test_invalid_points_are_rejected(data: DataPaths, source: Source, column: str, value: Any) -> None:
    table = read_parquet(data.points(NETWORK))
    place, field = table.schema.get_field_index(column), table.schema.field(column)
    changed = [value, *table[column].to_pylist()[1:]]
    write_parquet(data.points(NETWORK), table.set_column(place, field, pa.array(changed, field.type)))
    with pytest.raises(InputError) as refused:
        source.points(NETWORK)
    assert refused.value.key == str(data.points(NETWORK))
    assert column in re.findall(r"\w+", str(refused.value).removeprefix(refused.value.key))


def test_scorer_inputs_belong_to_the_points(data: DataPaths, source: Source, points: Points) -> None:
    scorer_inputs = source.scorer_inputs(points)
    np.testing.assert_array_equal(scorer_inputs.points("embedding"), points.coordinates)
    assert source.scorer_inputs(points) is scorer_inputs
    # `reduce` has run again, `filter` not yet.
    maps = np.load(data.embeddings(NETWORK))
    write_array(data.embeddings(NETWORK), maps + 1)
    for ask in (
        lambda: source.scorer_inputs(points),
        lambda: make_map_state(source, NETWORK, {"scorer_choice": "dbscan-components"}),
    ):
        with pytest.raises(InputError) as refused:
            ask()
        assert refused.value.key == str(data.points(NETWORK))
    write_array(data.embeddings(NETWORK), maps)
    np.testing.assert_array_equal(source.scorer_inputs(points).points("embedding"), points.coordinates)


@pytest.mark.slow
def test_files_replaced_while_they_are_read_are_never_mixed(
    tmp_path: Path, data: DataPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last `dropped` images are noise in the points, and the first components are the coordinates."""
    monkeypatch.setattr(cache, "_RETRY_INTERVAL_S", 0.01)
    stop = threading.Event()
    writer = threading.Thread(target=_run_stages, args=(data, DataPaths(root=tmp_path / "made"), stop))
    writer.start()
    source = Source(data)
    seen: set[str] = set()
    refused: set[str] = set()
    # A deadline, not a number of attempts: on a busy machine the writer may pause for many of them.
    deadline = time.monotonic() + 120
    try:
        while len(seen) < 8 and time.monotonic() < deadline:
            try:
                points = source.points(NETWORK)
                scorer_inputs = source.scorer_inputs(points)
            except InputError as error:
                refused.add(str(error))
                # Let the writer continue.
                time.sleep(0.001)
                continue
            dropped = int(points.is_noise.sum())
            np.testing.assert_array_equal(points.is_noise, np.arange(80) >= 80 - dropped)
            np.testing.assert_array_equal(scorer_inputs.points("embedding"), points.coordinates)
            np.testing.assert_array_equal(np.asarray(scorer_inputs.components)[:, :2], points.coordinates)
            seen.add(points.stamp)
    finally:
        stop.set()
        writer.join(60)
    assert len(seen) == 8, refused
    expected = ("was replaced while", "is older than", "missing; run")
    assert [error for error in refused if not any(part in error for part in expected)] == []


def _run_stages(data: DataPaths, made: DataPaths, stop: threading.Event) -> None:
    """Run `reduce` and `filter` repeatedly. DVC removes the outputs of a stage before it runs."""
    write_prepared(made)
    # A stage writes its record last.
    reduced, filtered = (data.provenance(stage, NETWORK) for stage in ("reduce", "filter"))
    stages = (
        [data.embeddings(NETWORK), data.components(NETWORK), data.embedding(NETWORK), reduced],
        [data.points(NETWORK), data.filter_metrics(NETWORK), filtered],
    )
    for generation in itertools.count(1):
        if stop.is_set():
            return
        write_network(made, NETWORK, dropped=1 + generation % 20, seed=generation)
        write_evidence(made, NETWORK)
        for outputs in stages:
            for file in outputs:
                file.unlink()
            for file in outputs:
                (made.root / file.relative_to(data.root)).replace(file)
        # A stage pauses between two runs.
        stop.wait(0.02 * (generation % 3))


@given(cuts=st.lists(st.sampled_from(["first", "second", "none"]), max_size=4))
def test_a_pair_of_files_is_read_as_one_generation(tmp_path_factory: Any, cuts: list[str]) -> None:
    """Between the two reads others replace one file, both one by one, or none."""
    folder: Path = tmp_path_factory.mktemp("pair")
    files = [folder / "a", folder / "b"]
    generation = iter(range(1000))

    def write(index: int, value: int) -> None:
        temporary = folder / "temporary"
        temporary.write_text(str(value))
        temporary.replace(files[index])

    for index in (0, 1):
        write(index, -1)
    pending = list(cuts)

    def read() -> tuple[str, str]:
        first = files[0].read_text()
        cut = pending.pop(0) if pending else "none"
        if cut != "none":
            value = next(generation)
            write(0, value)
            write(1, value)
        return first, files[1].read_text()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "_RETRY_INTERVAL_S", 0)
        _, (first, second) = read_consistently(files, read)
    assert first == second


def test_files_that_keep_changing_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_RETRY_INTERVAL_S", 0)
    file, rounds = tmp_path / "file", iter(range(100))

    def read() -> None:
        file.with_suffix(".new").write_text("x" * next(rounds))
        file.with_suffix(".new").replace(file)

    with pytest.raises(InputError) as refused:
        read_consistently([file], read)
    assert refused.value.key == str(file)


def test_an_error_about_unchanged_files_is_raised(tmp_path: Path) -> None:
    def read() -> None:
        raise InputError("a.npy: damaged")

    with pytest.raises(InputError) as refused:
        read_consistently([tmp_path / "none"], read)
    assert refused.value.key == "a.npy"


def test_a_slow_computation_does_not_block_another_key() -> None:
    results, begun, go_on = StampedCache(10**6), threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go_on.wait(30)
        return "slow"

    thread = threading.Thread(target=lambda: results.get("slow", "1", slow))
    thread.start()
    assert begun.wait(30)
    assert results.get("quick", "1", lambda: "quick") == "quick"
    go_on.set()
    thread.join(30)
    assert results.get("slow", "1", lambda: "again") == "slow"


def test_threads_compute_one_key_once() -> None:
    results, gate = StampedCache(10**6), threading.Barrier(6)
    made: list[int] = []

    def ask() -> None:
        gate.wait(30)
        results.get("key", "1", lambda: made.append(1))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert made == [1]


def test_a_failed_computation_is_not_cached() -> None:
    results = StampedCache(100)

    def fail() -> None:
        raise InputError("missing")

    for key in range(50):
        with pytest.raises(InputError):
            results.get(key, "1", fail)
    assert results.get(0, "1", lambda: "there now") == "there now"
    assert len(results._making) <= 2


@given(requests=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 300)), max_size=40))
def test_the_cache_keeps_last_keys_and_newest_stamps_to_its_size(
    requests: list[tuple[int, int, int]],
) -> None:
    results = StampedCache(300)
    held: dict[int, tuple[int, int]] = {}
    for key, stamp, size in requests:
        before = held.pop(key, None)
        known = before is not None and before[0] == stamp
        value = results.get(key, str(stamp), partial(np.zeros, size, np.uint8))
        held[key] = before if before is not None and known else (stamp, size)
        assert len(value) == held[key][1]
        while sum(size for _, size in held.values()) > 300:
            del held[next(iter(held))]
        assert {kept: (int(found[0]), len(found[1])) for kept, found in results._results.items()} == held


def test_a_result_larger_than_the_bound_is_cached_alone() -> None:
    results = StampedCache(10)
    for key in ("small", "large"):
        results.get(key, "1", lambda: np.zeros(11))
    assert list(results._results) == ["large"]
    results.get("large", "1", lambda: pytest.fail("is remembered"))


def test_the_size_of_cached_results_is_that_of_their_arrays(points: Points, data: DataPaths) -> None:
    mapped = open_array(data.images("train"), dtype=np.uint8, ndim=4)
    assert deep_nbytes(("stamp", mapped)) < 1000
    assert 0 <= deep_nbytes((np.zeros(1000), [np.zeros((3, 1000))])) - 32_000 < 1000
    arrays = [points.coordinates, points.labels, points.neighbors, points.paths, points.reasons]
    assert sum(array.nbytes for array in arrays) < deep_nbytes(points) < 50_000


def test_only_classes_with_images_are_offered(tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    assert Source(data).classes() == []
    write_json(data.prepare_metrics, {"class_names": ["a", "b", "c"]})
    write_parquet(data.manifest("train"), pa.table({"label": [2, 0, 2]}))
    assert Source(data).classes() == [(0, "a"), (2, "c")]


def test_an_image_is_of_the_requested_file_even_if_replaced(
    data: DataPaths, source: Source, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_RETRY_INTERVAL_S", 0.01)
    real, old = open_array, np.load(data.images("train"))

    def replaced_first(path: Path, **options: Any) -> Any:
        write_array(path, 255 - old)
        monkeypatch.setattr(viz_data, "open_array", real)
        return real(path, **options)

    monkeypatch.setattr(viz_data, "open_array", replaced_first)
    with pytest.raises(InputError) as refused:
        source.image(3, points.images_stamp)
    assert refused.value.key == str(data.images("train"))
