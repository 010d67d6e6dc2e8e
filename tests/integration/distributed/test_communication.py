"""Every way to exchange gradients gives the same step, or one that differs by its compression: real torchrun, gloo."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import InputError
from tests.fixtures.loopback import free_port
from tests.fixtures.training import kill, run, start
from tests.integration.distributed.launches import TORCHRUN, assert_equal_bits
from tests.integration.distributed.run_communication import TRANSPORTS, WITH_RESNET
from tests.integration.distributed.test_equivalence import Results, beyond_rounding, distance, update

SCRIPT = Path(__file__).with_name("run_communication.py")
_TIMEOUT_S = 400.0
_ENVIRON = {"PYTHONPATH": str(SCRIPT.parents[3])}

WAYS = [f"{network} {way}" for way in TRANSPORTS for network in ("small_cnn", "resnet18")]
WAYS = [way for way in WAYS if way.startswith("small_cnn") or way.removeprefix("resnet18 ") in WITH_RESNET]
WAY = pytest.mark.parametrize("way", WAYS)
# Three launches, one of four ranks, take a minute.
pytestmark = pytest.mark.slow
SHARED = pytest.mark.parametrize("ranks", [2, 4])


def _loaded(output: Path) -> Mapping[str, Any]:
    saved: Mapping[str, Any] = torch.load(output, weights_only=True)
    return saved


def _launch(ranks: int, folder: Path, *groups: str) -> Mapping[str, Any]:
    """Run ranks on one node, and return what the last one saved."""
    output = folder / f"{ranks} {groups[0]}.pt"
    launcher = () if ranks == 1 else (*TORCHRUN, f"--nproc-per-node={ranks}")
    done = run([sys.executable, *launcher, str(SCRIPT), str(output), *groups], timeout=_TIMEOUT_S, environ=_ENVIRON)
    assert done.returncode == 0, done.stderr
    return _loaded(output)


def _launch_nodes(folder: Path, sizes: tuple[int, ...], *groups: str) -> Mapping[str, Any]:
    """Run nodes with these numbers of ranks, one agent each, over loopback; return what the last rank saved."""
    output, log = folder / "nodes.pt", folder / "nodes.txt"
    endpoint = f"127.0.0.1:{free_port()}"
    job = [f"--nnodes={len(sizes)}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=nodes"]
    commands = [
        [sys.executable, "-m", "torch.distributed.run", *job, f"--nproc-per-node={size}", str(SCRIPT), str(output)]
        for size in sizes
    ]
    agents = [start([*command, *groups], environ=_ENVIRON, output=log) for command in commands]
    try:
        assert [agent.wait(_TIMEOUT_S) for agent in agents] == [0] * len(sizes), log.read_text()
    finally:
        for agent in agents:
            kill(agent)
    return _loaded(output)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results of 1 and 2 ranks on one node, and of 4 ranks on two nodes."""
    folder = tmp_path_factory.mktemp("ways")
    alone, two = _launch(1, folder, "alone"), _launch(2, folder, "pair", "exchanges")
    return {1: alone, 2: two, 4: _launch_nodes(folder, (2, 2), "nodes", "exchanges")}


def _same_step(one: Mapping[str, Any], other: Mapping[str, Any], first: Mapping[str, Any], case: str) -> bool:
    return beyond_rounding(one, other, first[case.split()[0]]) == {}


def _moved_by(results: Results, ranks: int, way: str) -> float:
    """Return the relative distance between the updates of a way and those of the default."""
    first = results[1]["first weights"]["small_cnn"]
    plain, other = (update(results[ranks][name], first) for name in ("small_cnn default", way))
    return distance(plain, other)


def test_ranks_are_grouped_by_node(results: Results) -> None:
    assert results[1]["nodes"] == [[0]]
    assert results[2]["nodes"] == [[0, 1]]
    assert results[4]["nodes"] == [[0, 1], [2, 3]]


@SHARED
def test_all_ranks_end_with_the_same_weights(results: Results, ranks: int) -> None:
    trained = {name: case for name, case in results[ranks].items() if isinstance(case, Mapping) and "losses" in case}
    assert len(trained) >= 20
    assert [name for name, case in trained.items() if not case["same on all ranks"]] == []


@SHARED
@WAY
def test_a_way_to_communicate_changes_only_rounding(results: Results, ranks: int, way: str) -> None:
    first, plain = results[1]["first weights"], results[ranks][f"{way.split()[0]} default"]
    assert _same_step(plain, results[ranks][way], first, way)


@SHARED
@WAY
def test_a_way_to_communicate_gives_the_step_of_one_process(results: Results, ranks: int, way: str) -> None:
    default = f"{way.split()[0]} default"
    alone = results[1][default if ranks == 2 else f"{default} of four"]
    assert _same_step(alone, results[ranks][way], results[1]["first weights"], way)


def test_exact_sums_over_two_nodes_have_the_bits_of_one_process(results: Results) -> None:
    """First inside each node, then between the first ranks of the nodes."""
    assert_equal_bits(results[1]["exact"], results[4]["exact by node"])


@SHARED
def test_gradients_of_several_passes_are_sent_in_one_message(results: Results, ranks: int) -> None:
    first, cases = results[1]["first weights"], results[ranks]
    for name in ("small_cnn passes", *(["small_cnn horovod passes"] if "horovod" in TRANSPORTS else [])):
        assert _same_step(cases["small_cnn default"], cases[name], first, "small_cnn"), name


@SHARED
def test_the_explicit_default_changes_no_bit(results: Results, ranks: int) -> None:
    assert_equal_bits(results[ranks]["small_cnn default"], results[ranks]["small_cnn explicit"])


@SHARED
@pytest.mark.parametrize(("kind", "bits"), [("bf16", 8), ("fp16", 11)])
@pytest.mark.parametrize("way", ["{}", "{} one message"])
def test_half_precision_differs_by_its_rounding(results: Results, ranks: int, kind: str, bits: int, way: str) -> None:
    """A value is rounded once when it is sent, and once in each of the sums with the other ranks."""
    moved = _moved_by(results, ranks, way.format(kind))
    assert 1e-5 < moved < ranks * 2**-bits


@pytest.mark.parametrize("way", ["bf16 between nodes", "bf16 between nodes in one message"])
def test_half_precision_between_nodes_rounds_less_often(results: Results, way: str) -> None:
    """Once when it is sent, and once in the sum of two nodes."""
    assert 1e-5 < _moved_by(results, 4, way) < 2 * 2**-8
    assert distance(results[4]["bf16"]["state"], results[4][way]["state"]) > 1e-6


@SHARED
def test_powersgd_of_full_rank_is_exact(results: Results, ranks: int) -> None:
    first, plain = results[1]["first weights"], results[ranks]["small_cnn default"]
    assert _same_step(plain, results[ranks]["powersgd whole"], first, "small_cnn")


@pytest.mark.parametrize(
    ("ranks", "case"), [(2, "powersgd"), (4, "powersgd"), (4, "powersgd between nodes")]
)  # fmt: skip
def test_powersgd_of_rank_one_learns(results: Results, ranks: int, case: str) -> None:
    losses = results[ranks][case]["losses"]
    assert losses[-1] < 0.8 * losses[0]


@SHARED
def test_the_error_of_powersgd_does_not_accumulate(results: Results, ranks: int) -> None:
    """Error feedback: the missing part of a sum of gradients does not grow with their number."""
    errors = results[ranks]["constant"]
    assert errors[0] > 0.5  # one of 20 singular values of similar size
    assert errors[59] < 0.75 * errors[29]
    assert 60 * errors[59] < 1.5 * 30 * errors[29]


@SHARED
def test_powersgd_is_exact_on_gradients_of_low_rank(results: Results, ranks: int) -> None:
    """The gradient has rank 1 on each of at most four ranks, and PowerSGD sends rank 4."""
    assert max(results[ranks]["rank one in four"]) < 1e-12


@SHARED
@pytest.mark.parametrize("rank", [1, 4])
def test_powersgd_recovers_from_a_gradient_of_zeros(results: Results, ranks: int, rank: int) -> None:
    """Layers before a layer that starts at zero have such gradients."""
    errors = results[ranks][f"zero first, rank {rank}"]
    assert errors[0] == 0
    assert errors[60] < 0.75 * errors[30]


@pytest.mark.parametrize(
    ("ranks", "case"),
    [(2, "bf16"), (4, "bf16"), (2, "powersgd"), (4, "powersgd"), (4, "powersgd between nodes")],
)
def test_a_compressed_run_resumes_in_the_same_bits(results: Results, ranks: int, case: str) -> None:
    """The checkpoint keeps the error feedback, and the resumed run sends it."""
    assert_equal_bits(results[ranks][case], results[ranks][f"{case} interrupted"])


def test_compression_is_refused_where_workers_are_simulated(results: Results) -> None:
    assert results[1]["powersgd"]["refused"] == results[1]["bf16"]["refused"]
    assert InputError(results[1]["bf16"]["refused"]).key == "communication.compression"


def test_nodes_of_different_sizes_average_over_ranks(results: Results, tmp_path: Path) -> None:
    """Compression between nodes is refused, because its result would depend on their sizes."""
    uneven = _launch_nodes(tmp_path, (1, 3), "uneven")
    assert sorted(len(node) for node in uneven["nodes"]) == [1, 3]
    first, plain = results[1]["first weights"], results[4]["small_cnn default"]
    for way in TRANSPORTS:
        assert _same_step(plain, uneven[f"small_cnn {way}"], first, "small_cnn"), way
    assert_equal_bits(results[1]["exact"], uneven["exact by node"])
    assert InputError(uneven["bf16 between nodes"]["refused"]).key == "communication.workers_per_node"
