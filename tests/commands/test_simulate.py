"""The simulator as a command: its table, files and figure, where its constants come from, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch
from torchvision.models import get_model

from pipeline.__main__ import main
from pipeline.commands.simulating.network_job import _model, assumed_job, measured_job, of_local_batch
from pipeline.commands.simulating.rows import gpu_counts
from pipeline.config.machine import load_machine
from pipeline.costmodel import ALL_REDUCE, Link, machine, ring_seconds, tree_seconds

_SUMMIT = ["simulate", "--machine", str(Path(__file__).parents[2] / "machines" / "summit.yaml")]
_SMALL = [*_SUMMIT, "--images-per-second", "380", "--gpus", "1", "6", "1536", "27600", "--batch-sizes", "3072"]


_TWO_POINTS = """{"algorithm": "ring", "points": [
    {"n_bytes": 1, "workers": 2, "seconds": 1}, {"n_bytes": 9, "workers": 2, "seconds": 1}
]}"""


def _points(path: Path, workers: tuple[int, ...] = (2, 4, 8), algorithm: str = "ring") -> Path:
    """All-reduces over a link of 10 microseconds and 5 GB/s, as a ring or a tree takes them."""
    seconds = {"ring": ring_seconds, "tree": tree_seconds}[algorithm]
    link = Link(latency_seconds=1e-5, bytes_per_second=5e9)
    points = [
        {"n_bytes": n_bytes, "workers": count, "seconds": seconds(n_bytes, count, link)}
        for count in workers
        for n_bytes in (1_000, 100_000, 10_000_000)
    ]
    path.write_text(json.dumps({"algorithm": algorithm, "points": points}))
    return path


# What it says


def test_one_table_one_json_and_one_figure_all_called_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_SMALL, "--price-per-gpu-hour", "2", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("SIMULATED, not measured: resnet50 on summit\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summit.resnet50.json", "summit.resnet50.svg"]
    tree = json.loads((tmp_path / "summit.resnet50.json").read_text())
    assert tree["simulated"] is True
    assert tree["title"] == shown.partition("\n")[0]
    assert {row["gpus"] for row in tree["rows"] if row["scaling"] == "weak"} == {1, 6, 1536, 27600}
    for row in tree["rows"]:
        assert row["global_batch"] == row["gpus"] * row["local_batch"]
        assert row["cost"] == pytest.approx(2 * row["gpus"] * row["hours"])
        assert row["hours"] * 3600 * row["images_per_second"] == pytest.approx(90 * 1_281_167)
        assert 0 < row["efficiency"] <= 1 + 1e-12


def test_every_constant_is_said_to_be_measured_given_or_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*_SMALL, "--price-per-gpu-hour", "2", "--out", str(tmp_path)])
    measured, given, guessed = capsys.readouterr().out.splitlines()[-4:-1]
    assert measured == "measured: nothing"
    assert "images/s of one GPU 380" in given
    assert "images over all epochs 1.153e+08; price of a GPU for an hour 2" in given
    assert "between.bytes_per_second 1.25e+10" in given
    assert "between.latency_seconds 9.6e-06" in guessed
    assert "times at other local batches in proportion" in guessed


def test_a_step_timed_on_the_cpu_is_labelled_so_and_the_links_stay_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small = ["--network", "resnet18", "--image-size", "32", "--classes", "10", "--local-batch", "2", "--gpus", "1", "6"]
    assert main([*_SUMMIT, "--measure", *small, "--batch-sizes", "12", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    threads = torch.get_num_threads()
    cpu = f"the CPU ({threads} thread{'s' if threads > 1 else ''})"
    assert shown[0] == f"SIMULATED, not measured: resnet18 on summit, each GPU as fast as {cpu} here"
    measured, given, guessed = shown[-4:-1]
    assert measured.startswith("measured: images/s of one GPU ")
    assert f"times of forward and backward, and of each layer those of {cpu}" in measured
    assert "between.bytes_per_second 1.25e+10" in given
    assert "between.latency_seconds 9.6e-06" in guessed
    tree = json.loads((tmp_path / "summit.resnet18.json").read_text())
    alone = next(row for row in tree["rows"] if (row["scaling"], row["gpus"]) == ("weak", 1))
    assert alone["images_per_second"] == pytest.approx(tree["constants"]["images/s of one GPU"]["value"])


def test_a_batch_that_no_number_of_gpus_shares_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = ["--gpus", "6", "12", "--batch-sizes", "100", "600", "1200"]
    assert main([*_SUMMIT, "--images-per-second", "380", *batches, "--out", str(tmp_path)]) == 0
    named = [line for line in capsys.readouterr().out.splitlines() if line.startswith("no strong")]
    assert named == ["no strong scaling of batch 100: it divides among none of these numbers of GPUs"]


@pytest.mark.parametrize(
    ("option", "fixed", "negotiated"),
    [
        ([], "25 MiB, the first 1", "128"),
        # The trainer gives torch no size where it is torch's own.
        (["--bucket-mib", "25"], "25 MiB, the first 1", "25"),
        (["--bucket-mib", "5"], "5 MiB", "5"),
        (["--no-overlap"], "one", "128"),
        (["--no-overlap", "--bucket-mib", "5"], "5 MiB", "5"),
    ],
)
def test_messages_are_those_of_the_trainer_and_of_horovod_and_are_said(
    option: list[str], fixed: str, negotiated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_SMALL, "--negotiation", "1", "1", *option, "--out", str(tmp_path)]) == 0
    given = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("given: "))
    assert f"; messages, fixed {fixed}; messages, negotiated what is ready, at most {negotiated} MiB" in given
    assert f"; sent {'after' if '--no-overlap' in option else 'beside'} the backward pass; compression 1;" in given


def test_a_network_of_less_than_a_bucket_is_sent_in_two_as_ddp_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_SMALL, "--network", "squeezenet1_1", "--out", str(tmp_path)]) == 0
    assert "; messages, fixed 25 MiB, the first 1\n" in capsys.readouterr().out


@pytest.mark.parametrize("compression", [1, 2])
def test_without_overlap_a_step_ends_with_one_all_reduce_of_what_is_left_by_compression(
    compression: int, tmp_path: Path
) -> None:
    options = ["--algorithms", "ring", "--no-overlap", "--compression", str(compression)]
    assert main([*_SMALL, *options, "--out", str(tmp_path)]) == 0
    tree = json.loads((tmp_path / "summit.resnet50.json").read_text())
    step = {row["gpus"]: row["step_seconds"] for row in tree["rows"] if row["scaling"] == "weak"}
    n_bytes = tree["constants"]["bytes of the gradients"]["value"] / compression
    described = machine(**load_machine(Path(_SUMMIT[2])).model_dump(exclude={"guessed", "measured"}))
    for gpus in (6, 1536):
        assert step[gpus] - step[1] == pytest.approx(ALL_REDUCE["ring"](n_bytes, gpus, described))


def test_a_local_batch_that_cannot_be_timed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--network", "resnet18", "--image-size", "32", "--local-batch", "1", "--out", str(tmp_path)]
    assert main([*_SUMMIT, "--measure", *small]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: --local-batch 1: resnet18 does not train on as many images here (")
    assert shown.endswith("); give another\n")


def test_negotiation_is_simulated_beside_fixed_buckets_and_grows_with_the_workers(tmp_path: Path) -> None:
    assert main([*_SMALL, "--negotiation", "1", "1", "--algorithms", "tree", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "summit.resnet50.json").read_text())["rows"]
    step = {(row["way"], row["gpus"]): row["step_seconds"] for row in rows if row["scaling"] == "weak"}
    assert {way for way, _ in step} == {"tree", "tree, negotiated"}
    losses = [step["tree, negotiated", n] - step["tree", n] for n in (6, 1536, 27600)]
    assert losses == sorted(losses)
    assert losses[-1] > 0.01


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


def test_a_step_timed_here_has_every_byte_and_ends_with_its_pieces() -> None:
    job = measured_job("resnet18", image_size=32, n_classes=10, local_batch=4, device=torch.device("cpu"))
    parameters = sum(p.numel() for p in get_model("resnet18", weights=None, num_classes=10).parameters())
    assert sum(job.layer_bytes) == 4 * parameters
    # fc comes first: its bias or its weight.
    assert job.layer_bytes[0] in (40, 40 * 512)
    assert min(job.forward_seconds, job.optimizer_seconds, *job.backward_seconds) >= 0
    assert of_local_batch(job, 8).ready_seconds[-1] == pytest.approx(2 * job.ready_seconds[-1])


@pytest.mark.parametrize("network", ["vit_b_16", "swin_t", "googlenet", "maxvit_t"])
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


def test_auxiliary_classifiers_are_timed_too() -> None:
    job = measured_job("googlenet", image_size=32, n_classes=10, local_batch=2, device=torch.device("cpu"))
    assert sum(job.layer_bytes) == 4 * sum(p.numel() for p in _model("googlenet", n_classes=10).parameters())


def test_gpus_double_by_whole_nodes_up_to_the_machine() -> None:
    described = load_machine(Path(_SUMMIT[2])).model_dump(exclude={"guessed", "measured"})
    counts = gpu_counts(machine(**described))
    assert counts[:5] == [1, 6, 12, 24, 48]
    assert 1536 in counts
    assert counts[-1] == 27_648


# Fitting


def test_constants_are_fitted_and_the_held_out_error_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = _points(tmp_path / "points.json")
    assert main(["simulate", "--fit", str(points)]) == 0
    shown = capsys.readouterr().out
    assert "latency_seconds, of a hop of a ring: 1e-05" in shown
    assert "bytes_per_second: 5e+09" in shown
    assert "  held out, each number of workers from the others: 0.0%" in shown


@pytest.mark.parametrize(("algorithm", "latency"), [("ring", "latency_seconds"), ("tree", "tree_latency_seconds")])
def test_fitted_constants_replace_those_of_the_link_and_count_as_measured(
    algorithm: str, latency: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The latency of a tree's hop is none of a ring's."""
    points = _points(tmp_path / "points.json", workers=(2,), algorithm=algorithm)
    fitted = ["--fit", str(points), "--hold-out", "n_bytes", "--link", "between", "--out", str(tmp_path)]
    assert main([*_SMALL, *fitted]) == 0
    measured = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("measured: "))
    # Two adapters of a node share what was measured.
    assert sorted(measured.removeprefix("measured: ").split("; ")) == sorted(
        ["between.bytes_per_second 2.5e+09", f"between.{latency} 1e-05"]
    )


# What is refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to do; give --machine"),
        (_SUMMIT, "how fast is one GPU alone? give --images-per-second"),
        (["simulate", "--machine", "nowhere", "--images-per-second", "1"], "machines/nowhere.yaml: no such file"),
        ([*_SMALL, "--network", "resnet5"], "--network resnet5: no classifier of torchvision"),
        ([*_SUMMIT, "--images-per-second", "1", "--gpus", "7"], "--gpus: 7 workers do not fill nodes of 6"),
        ([*_SUMMIT, "--images-per-second", "1", "--gpus", "30000"], "--gpus: 30000 workers, but the machine has"),
        ([*_SMALL, "--network", "vgg16", "--image-size", "16"], "--image-size 16: vgg16 does not take images of 16"),
        (
            [*_SMALL, "--network", "inception_v3", "--image-size", "32"],
            "inception_v3 does not take images of 32 pixels",
        ),
        ([*_SMALL, "--network", "vit_b_16", "--image-size", "100"], "vit_b_16 does not take images of 100 pixels"),
        ([*_SMALL, "--link", "between"], "--link: says which link"),
        (["simulate", "--fit", "nowhere.json"], "nowhere.json: no such file"),
        ([*_SMALL, "--hold-out", "n_bytes"], "--hold-out: says what --fit predicts"),
        (["simulate", "--fit", "p.json", "--network", "resnet50"], "--network: nothing is simulated without a machine"),
        (["simulate", "--fit", "p.json", "--gpus", "6"], "--gpus: nothing is simulated without a machine"),
        (["simulate", "--fit", "p.json", "--no-overlap"], "--no-overlap: nothing is simulated without a machine"),
    ],
)
def test_bad_arguments_end_with_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments or ["simulate"]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("number", ["inf", "nan", "0", "1.5", "1e400"])
def test_a_number_of_gpus_is_a_whole_one(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*_SUMMIT, "--gpus", number])
    assert ended.value.code == 2
    assert f"{number} is no whole number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ('{"algorithm": "ring", "points": []}', "points"),
        ('{"algorithm": "star", "points": []}', 'algorithm: "star" is not allowed'),
        (_TWO_POINTS.replace('"workers": 2', '"workers": 1', 1), "points.0.workers: 1 is not allowed"),
        (_TWO_POINTS, "measure at least two numbers of workers"),
    ],
)
def test_bad_points_end_with_one_line(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.json"
    path.write_text(content)
    assert main(["simulate", "--fit", str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {path}: ")
    assert said in shown
    assert shown.count("\n") == 1
