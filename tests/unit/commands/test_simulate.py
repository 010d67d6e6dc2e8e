"""The simulator as a command: its table, files and figure, the origins of its constants, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.models import get_model

from pipeline.__main__ import main
from pipeline.simulator import ALL_REDUCE, NetworkLink, ring_seconds, tree_seconds
from pipeline.simulator.grid import gpu_counts
from pipeline.simulator.job import _model, assumed_job, measured_job, with_local_batch
from pipeline.simulator.machine import load_machine
from tests.fixtures.golden import check_golden
from tests.fixtures.printed_errors import key_within, printed_error
from tests.fixtures.slow import quick_first

_SUMMIT = ["simulate", "--machine", str(Path(__file__).parents[3] / "machines" / "summit.yaml")]
_SMALL = [
    *_SUMMIT,
    "--network",
    "resnet18",
    "--images-per-second",
    "380",
    "--gpus",
    "1",
    "6",
    "1536",
    "27600",
    "--global-batch-sizes",
    "3072",
]


_TWO_POINTS = """{"algorithm": "ring", "points": [
    {"n_bytes": 1, "workers": 2, "seconds": 1}, {"n_bytes": 9, "workers": 2, "seconds": 1}
]}"""


def _points(path: Path, workers: tuple[int, ...] = (2, 4, 8), algorithm: str = "ring") -> Path:
    """All-reduces over a link of 10 microseconds and 5 GB/s, as a ring or a tree takes them."""
    seconds = {"ring": ring_seconds, "tree": tree_seconds}[algorithm]
    link = NetworkLink(latency_seconds=1e-5, bytes_per_second=5e9)
    points = [
        {"n_bytes": n_bytes, "workers": count, "seconds": seconds(n_bytes, count, link)}
        for count in workers
        for n_bytes in (1_000, 100_000, 10_000_000)
    ]
    path.write_text(json.dumps({"algorithm": algorithm, "points": points}))
    return path


_TOY = """\
nodes: 8
gpus_per_node: 4
intra_node: {latency_seconds: 1e-6, bytes_per_second: 50e9}
inter_node: {latency_seconds: 1e-5, bytes_per_second: 12.5e9, adapters_per_node: 2}
assumed: [intra_node.latency_seconds]
measured: [intra_node.bytes_per_second]
"""


def _tree(folder: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((folder / "summit.resnet18.json").read_text())
    return tree


# What it says


def test_simulate_prints_fit_table_and_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine, a speed and times of all-reduces that are made up."""
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(_TOY)
    points = _points(Path("points.json"))
    sizes = ["--network", "resnet18", "--image-size", "32", "--gpus", "4", "32", "--global-batch-sizes", "102", "3072"]
    ways = ["--algorithms", "ring", "tree", "--negotiation", "1", "5", "--compression", "2"]
    fitted = ["--fit", str(points), "--link", "inter_node", "--hold-out", "n_bytes"]
    speed = ["--images-per-second", "400", "--price-per-gpu-hour", "2", "--out", "out"]
    assert main(["simulate", "--fit", str(points)]) == 0
    print()
    assert main(["simulate", "--machine", "toy.yaml", *sizes, *ways, *fitted, *speed]) == 0
    check_golden("simulate.txt", capsys.readouterr().out)


def test_one_table_one_json_and_one_figure_all_called_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_SMALL, "--price-per-gpu-hour", "2", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("SIMULATED, not measured: resnet18 on summit\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summit.resnet18.json", "summit.resnet18.svg"]
    tree = _tree(tmp_path)
    assert tree["simulated"] is True
    assert tree["title"] == shown.partition("\n")[0]
    assert {row["gpus"] for row in tree["rows"] if row["scaling"] == "weak"} == {1, 6, 1536, 27600}
    for row in tree["rows"]:
        assert row["global_batch"] == row["gpus"] * row["local_batch"]
        assert row["cost"] == pytest.approx(2 * row["gpus"] * row["hours"])
        assert row["hours"] * 3600 * row["images_per_second"] == pytest.approx(90 * 1_281_167)
        assert 0 < row["efficiency"] <= 1 + 1e-12


def test_every_constant_has_its_value_and_origin(tmp_path: Path) -> None:
    main([*_SMALL, "--price-per-gpu-hour", "2", "--out", str(tmp_path)])
    constants = _tree(tmp_path)["constants"]
    assert {constant["origin"] for constant in constants.values()} == {"given", "assumed"}
    expected = {
        "images/s of one GPU": (380, "given"),
        "images over all epochs": (90 * 1_281_167, "given"),
        "price of a GPU for an hour": (2, "given"),
        "inter_node.bytes_per_second": (1.25e10, "given"),
        "inter_node.latency_seconds": (9.6e-6, "assumed"),
        "times at other local batches": ("in proportion", "assumed"),
    }
    assert {name: (constants[name]["value"], constants[name]["origin"]) for name in expected} == {
        name: (pytest.approx(value), origin) if isinstance(value, (int, float)) else (value, origin)
        for name, (value, origin) in expected.items()
    }


@pytest.mark.slow
def test_measure_on_a_cpu_names_it_and_keeps_the_links_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small = ["--network", "resnet18", "--image-size", "32", "--classes", "10", "--local-batch", "2", "--gpus", "1", "6"]
    assert main([*_SUMMIT, "--measure", *small, "--global-batch-sizes", "12", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    threads = torch.get_num_threads()
    cpu = f"the CPU ({threads} thread{'s' if threads > 1 else ''})"
    assert shown[0] == f"SIMULATED, not measured: resnet18 on summit, each GPU as fast as {cpu} here"
    tree = json.loads((tmp_path / "summit.resnet18.json").read_text())
    constants = tree["constants"]
    measured = {name for name, constant in constants.items() if constant["origin"] == "measured"}
    assert measured == {"images/s of one GPU", "times of forward and backward, and of each layer"}
    assert constants["times of forward and backward, and of each layer"]["value"] == f"those of {cpu}"
    assert constants["inter_node.bytes_per_second"] == {"value": 1.25e10, "origin": "given"}
    assert constants["inter_node.latency_seconds"] == {"value": 9.6e-6, "origin": "assumed"}
    alone = next(row for row in tree["rows"] if (row["scaling"], row["gpus"]) == ("weak", 1))
    assert alone["images_per_second"] == pytest.approx(tree["constants"]["images/s of one GPU"]["value"])


def test_a_batch_that_no_number_of_gpus_shares_has_no_row(tmp_path: Path) -> None:
    batches = ["--gpus", "6", "12", "--global-batch-sizes", "100", "600", "1200"]
    assert main([*_SMALL, *batches, "--out", str(tmp_path)]) == 0
    assert {row["global_batch"] for row in _tree(tmp_path)["rows"] if row["scaling"] == "strong"} == {600, 1200}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "fixed", "negotiated"),
    [
        ([], "25 MiB, the first 1", "128"),
        # The trainer gives torch no size where it is torch's own.
        pytest.param(["--bucket-mib", "25"], "25 MiB, the first 1", "25", marks=pytest.mark.slow),
        pytest.param(["--bucket-mib", "5"], "5 MiB", "5", marks=pytest.mark.slow),
        (["--no-overlap"], "one", "128"),
        pytest.param(["--no-overlap", "--bucket-mib", "5"], "5 MiB", "5", marks=pytest.mark.slow),
    ],
)
def test_messages_are_those_of_the_trainer_and_of_horovod(
    option: list[str], fixed: str, negotiated: str, tmp_path: Path
) -> None:
    assert main([*_SMALL, "--negotiation", "1", "1", *option, "--out", str(tmp_path)]) == 0
    tree = _tree(tmp_path)
    constants = tree["constants"]
    assert constants["messages, fixed"] == {"value": fixed, "origin": "given"}
    assert constants["messages, negotiated"]["value"] == f"ready gradients, at most {negotiated} MiB"
    assert {way["overlap"] for way in tree["ways"].values()} == {"--no-overlap" not in option}
    assert {way["compression"] for way in tree["ways"].values()} == {1.0}


def test_a_network_below_a_bucket_is_sent_in_two_as_by_ddp(tmp_path: Path) -> None:
    assert main([*_SMALL, "--network", "squeezenet1_1", "--out", str(tmp_path)]) == 0
    tree = json.loads((tmp_path / "summit.squeezenet1_1.json").read_text())
    assert tree["constants"]["messages, fixed"]["value"] == "25 MiB, the first 1"


@pytest.mark.parametrize("compression", [1, 2])
def test_without_overlap_a_step_ends_with_one_all_reduce(compression: int, tmp_path: Path) -> None:
    options = ["--algorithms", "ring", "--no-overlap", "--compression", str(compression)]
    assert main([*_SMALL, *options, "--out", str(tmp_path)]) == 0
    tree = _tree(tmp_path)
    step = {row["gpus"]: row["step_seconds"] for row in tree["rows"] if row["scaling"] == "weak"}
    n_bytes = tree["constants"]["bytes of the gradients"]["value"] / compression
    described = load_machine(Path(_SUMMIT[2])).machine
    for gpus in (6, 1536):
        assert step[gpus] - step[1] == pytest.approx(ALL_REDUCE["ring"](n_bytes, gpus, described))


def test_a_local_batch_that_cannot_be_timed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--network", "resnet18", "--image-size", "32", "--local-batch", "1", "--out", str(tmp_path)]
    assert main([*_SUMMIT, "--measure", *small]) == 2
    assert printed_error(capsys.readouterr().err).key == "--local-batch 1"


def test_negotiation_takes_longer_the_more_workers_there_are(tmp_path: Path) -> None:
    assert main([*_SMALL, "--negotiation", "1", "1", "--algorithms", "tree", "--out", str(tmp_path)]) == 0
    rows = _tree(tmp_path)["rows"]
    step = {(row["way"], row["gpus"]): row["step_seconds"] for row in rows if row["scaling"] == "weak"}
    assert {way for way, _ in step} == {"tree", "tree, negotiated"}
    losses = [step["tree, negotiated", n] - step["tree", n] for n in (6, 1536, 27600)]
    assert losses == sorted(losses)
    assert losses[-1] > 0.01


@pytest.mark.slow
def test_vgg16_sends_more_than_resnet50_for_less_arithmetic_a_byte(tmp_path: Path) -> None:
    jobs = {
        network: assumed_job(network, image_size=224, n_classes=1000, local_batch=64, images_per_second=100)
        for network in ("resnet50", "vgg16")
    }
    for network, job in jobs.items():
        parameters = sum(p.numel() for p in get_model(network, weights=None).parameters())
        assert sum(job.layer_bytes) == 4 * parameters
        assert job.ready_seconds[-1] == pytest.approx(0.64)
        assert job.forward_seconds == pytest.approx(0.64 / 3)
    # The classifier comes first in the backward pass: with VGG-16 it is most of the bytes.
    assert jobs["vgg16"].layer_bytes[0] == 4 * (4096 * 1000 + 1000)
    assert sum(jobs["vgg16"].layer_bytes) > 5 * sum(jobs["resnet50"].layer_bytes)


@pytest.mark.slow
def test_a_step_timed_here_has_every_byte_and_ends_with_its_pieces() -> None:
    job = measured_job("resnet18", image_size=32, n_classes=10, local_batch=4, device=torch.device("cpu"))
    parameters = sum(p.numel() for p in get_model("resnet18", weights=None, num_classes=10).parameters())
    assert sum(job.layer_bytes) == 4 * parameters
    # fc comes first: its bias or its weight.
    assert job.layer_bytes[0] in (40, 40 * 512)
    assert min(job.forward_seconds, job.optimizer_seconds, *job.backward_seconds) >= 0
    assert with_local_batch(job, 8).ready_seconds[-1] == pytest.approx(2 * job.ready_seconds[-1])


@pytest.mark.parametrize("network", quick_first(1, ["googlenet", "vit_b_16", "swin_t", "maxvit_t"]))
def test_every_parameter_of_any_network_is_sent(network: str) -> None:
    job = assumed_job(network, image_size=224, n_classes=1000, local_batch=64, images_per_second=100)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in _model(network, n_classes=1000).parameters())
    assert sum(job.layer_bytes) == 4 * parameters
    assert job.ready_seconds[-1] == pytest.approx(0.64)
    assert min(job.backward_seconds) >= 0


def test_attention_takes_time() -> None:
    """The layers that multiply nothing by themselves are under a fifth of a vision transformer's bytes."""
    job = assumed_job("vit_b_16", image_size=224, n_classes=1000, local_batch=64, images_per_second=100)
    timeless = [size for size, seconds in zip(job.layer_bytes, job.backward_seconds, strict=True) if not seconds]
    assert sum(timeless) < 0.2 * sum(job.layer_bytes)


@pytest.mark.slow
def test_auxiliary_classifiers_are_timed_too() -> None:
    job = measured_job("googlenet", image_size=32, n_classes=10, local_batch=2, device=torch.device("cpu"))
    assert sum(job.layer_bytes) == 4 * sum(p.numel() for p in _model("googlenet", n_classes=10).parameters())


def test_gpus_double_by_full_nodes_up_to_the_machine() -> None:
    counts = gpu_counts(load_machine(Path(_SUMMIT[2])).machine)
    assert counts[:5] == [1, 6, 12, 24, 48]
    assert 1536 in counts
    assert counts[-1] == 27_648


# Fitting


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "latency"), [("ring", "latency_seconds"), ("tree", "tree_latency_seconds")])
def test_fitted_constants_replace_the_links_and_count_as_measured(algorithm: str, latency: str, tmp_path: Path) -> None:
    """The latency of a tree's hop is none of a ring's."""
    points = _points(tmp_path / "points.json", workers=(2,), algorithm=algorithm)
    fitted = ["--fit", str(points), "--hold-out", "n_bytes", "--link", "inter_node", "--out", str(tmp_path)]
    assert main([*_SMALL, *fitted]) == 0
    tree = _tree(tmp_path)
    measured = {name: one["value"] for name, one in tree["constants"].items() if one["origin"] == "measured"}
    # Two adapters of a node share what was measured.
    assert measured == pytest.approx({"inter_node.bytes_per_second": 2.5e9, f"inter_node.{latency}": 1e-5})
    assert tree["fit"]["held_out_error"] == pytest.approx(0, abs=1e-6)


# What is refused


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ([], "simulate"),
        (_SUMMIT, "simulate"),
        (["simulate", "--machine", "nowhere", "--images-per-second", "1"], "machines/nowhere.yaml"),
        ([*_SMALL, "--network", "resnet5"], "--network resnet5"),
        ([*_SUMMIT, "--images-per-second", "1", "--gpus", "7"], "--gpus"),
        ([*_SUMMIT, "--images-per-second", "1", "--gpus", "30000"], "--gpus"),
        ([*_SMALL, "--network", "vgg16", "--image-size", "16"], "--image-size 16"),
        ([*_SMALL, "--network", "inception_v3", "--image-size", "32"], "--image-size 32"),
        ([*_SMALL, "--network", "vit_b_16", "--image-size", "100"], "--image-size 100"),
        ([*_SMALL, "--link", "inter_node"], "--link"),
        (["simulate", "--fit", "nowhere.json"], "nowhere.json"),
        ([*_SMALL, "--hold-out", "n_bytes"], "--hold-out"),
        (["simulate", "--fit", "p.json", "--network", "resnet50"], "--network"),
        (["simulate", "--fit", "p.json", "--gpus", "6"], "--gpus"),
        (["simulate", "--fit", "p.json", "--no-overlap"], "--no-overlap"),
    ],
)
def test_bad_arguments_end_with_one_line(
    arguments: list[str], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments or ["simulate"]) == 2
    shown = capsys.readouterr().err
    assert printed_error(shown).key == key
    assert shown.count("\n") == 1


@pytest.mark.parametrize("number", ["inf", "nan", "0", "1.5", "1e400", "six"])
def test_a_number_of_gpus_is_an_integer(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*_SUMMIT, "--gpus", number])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert printed_error(shown).key == "argument --gpus"
    assert f"{number} is not an integer of 1 or more" in shown


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("{", None),
        ('{"algorithm": "ring", "points": []}', "points"),
        ('{"algorithm": "star", "points": []}', "algorithm"),
        (_TWO_POINTS.replace('"workers": 2', '"workers": 1', 1), "points.0.workers"),
        (_TWO_POINTS, None),
    ],
)
def test_bad_points_end_with_one_line(
    content: str, key: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.json"
    path.write_text(content)
    assert main(["simulate", "--fit", str(path)]) == 2
    shown = capsys.readouterr().err
    error = printed_error(shown)
    assert error.key == str(path)
    assert key is None or key_within(error, path) == key
    assert shown.count("\n") == 1
