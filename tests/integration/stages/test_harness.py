"""The harness of the stages: arguments, locks, logs, energy, errors and signals."""

import errno
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.config.params import load_params
from pipeline.config.renamed_keys import with_old_keys
from pipeline.energy import UNKNOWN_ENERGY, Energy, total_energy
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.stages import harness
from pipeline.stages.harness import StageContext, run_stage
from tests.fixtures.params import digits_tree
from tests.fixtures.printed_errors import key_within, printed_error

_ROOT = Path(__file__).parents[3]


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    """Arguments of a stage that works in a separate folder."""
    return [
        *("--params", str(_ROOT / "tests" / "params.yaml")),
        *("--data", str(tmp_path / "data")),
        *("--work", str(tmp_path / "work")),
    ]


def _raise(error: BaseException) -> Callable[[StageContext], None]:
    def body(context: StageContext) -> None:
        raise error

    return body


@pytest.fixture
def without_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stage run although no earlier one has."""
    monkeypatch.setattr("pipeline.stages.harness.check_inputs", lambda _: [])


@pytest.mark.usefixtures("without_inputs")
def test_body_gets_its_item_parameters_and_paths(tmp_path: Path, argv: list[str]) -> None:
    seen: list[StageContext] = []
    run_stage("extract", seen.append, item="network", argv=["--network", "resnet18", *argv])
    (context,) = seen
    assert (context.name, context.stage, context.item) == ("extract@resnet18", "extract", "resnet18")
    assert context.params.extract.batch_size == 256
    assert context.data.root == tmp_path / "data"
    assert context.work.root == tmp_path / "work"


@pytest.fixture
def old_keys(tmp_path: Path) -> list[str]:
    """The arguments, with parameters that have the old names of their keys."""
    params = tmp_path / "params.yaml"
    params.write_text(json.dumps(with_old_keys(digits_tree())))
    return [f"--params={params}", f"--data={tmp_path / 'data'}", f"--work={tmp_path / 'work'}"]


def _unpack_results(folder: Path) -> DataPaths:
    """Make the file of an unpacked archive by which `prepare` recognizes it."""
    data = DataPaths(root=folder / "data")
    data.provenance("train", "digits").parent.mkdir(parents=True)
    data.provenance("train", "digits").write_text("{}")
    return data


@pytest.mark.usefixtures("without_inputs")
@pytest.mark.parametrize("stage", ["prepare", "report"])
def test_unpacked_results_open_with_old_keys(tmp_path: Path, old_keys: list[str], stage: str) -> None:
    _unpack_results(tmp_path)
    seen: list[StageContext] = []
    run_stage(stage, seen.append, argv=old_keys)
    assert seen[0].params.prepare.val_size == digits_tree()["prepare"]["val_size"]


@pytest.mark.parametrize("stage", ["prepare", "finetune", "filter"])
def test_old_keys_of_a_project_are_an_error(
    tmp_path: Path, old_keys: list[str], stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    item = None if stage == "prepare" else "network"
    argv = old_keys if item is None else ["--network=resnet18", *old_keys]
    if stage == "prepare":
        # A project has prepared images; an unpacked archive has none.
        data = _unpack_results(tmp_path)
        data.provenance("prepare").parent.mkdir(parents=True)
        data.provenance("prepare").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        run_stage(stage, _raise(AssertionError()), item=item, argv=argv)
    assert ended.value.code == 2
    error = printed_error(capsys.readouterr().err)
    assert key_within(error, str(tmp_path / "params.yaml")).startswith("prepare.")


def test_resources_and_log_are_left_in_the_work_folder(tmp_path: Path, argv: list[str]) -> None:
    def body(context: StageContext) -> None:
        context.images.extend([10, 20])
        context.log.info("done")

    run_stage("prepare", body, argv=argv)
    record = json.loads((tmp_path / "work" / "resources" / "prepare.json").read_text())
    assert {"wall_s", "peak_memory_mb", "joules", "images", "images_per_s", "python"} == set(record)
    assert record["images"] == 30
    assert "done" in (tmp_path / "work" / "logs" / "prepare.log").read_text()


class _Meter:
    """A meter by which every stage draws what its body says."""

    def __init__(self) -> None:
        self.used = Energy(gpu=0.0, cpu=0.0)

    def read(self) -> Energy:
        return self.used


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> _Meter:
    made = _Meter()
    monkeypatch.setattr(harness, "measure_energy", lambda: nullcontext(made))
    return made


@pytest.mark.parametrize("other", [None, Energy(gpu=0.0, cpu=8.0), UNKNOWN_ENERGY])
def test_the_record_tells_the_energy_here_and_elsewhere(
    tmp_path: Path, argv: list[str], meter: _Meter, other: Energy | None
) -> None:
    def body(context: StageContext) -> None:
        meter.used = Energy(gpu=0.0, cpu=2.5)
        context.extra_joules.extend([other] if other else [])

    run_stage("prepare", body, argv=argv)
    record = json.loads((tmp_path / "work" / "resources" / "prepare.json").read_text())
    assert record["joules"] == vars(total_energy([Energy(gpu=0.0, cpu=2.5), other or total_energy([])])) | {
        "memory": None
    }
    assert "arms_joules" not in record


@pytest.mark.usefixtures("without_inputs")
@pytest.mark.parametrize(
    ("stage", "scheduler", "cpu"),
    [
        ("reduce", "local", 2.5),
        ("reduce", "tcp://elsewhere:8786", None),
        ("filter", "tcp://elsewhere:8786", None),
        ("prepare", "tcp://elsewhere:8786", 2.5),
    ],
)
def test_energy_of_dask_workers_on_other_machines_is_unknown(
    tmp_path: Path, argv: list[str], meter: _Meter, stage: str, scheduler: str, cpu: float | None
) -> None:
    meter.used = Energy(gpu=0.0, cpu=2.5)
    written = (_ROOT / "tests" / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(written.replace("scheduler: none", f"scheduler: {scheduler}"))
    assert load_params(tmp_path / "params.yaml").dask.scheduler == scheduler
    run_stage(stage, lambda context: None, argv=[*argv, "--params", str(tmp_path / "params.yaml")])
    record = json.loads((tmp_path / "work" / "resources" / f"{stage}.json").read_text())
    assert record["joules"] == {"gpu": 0.0, "cpu": cpu, "memory": None}


def test_stages_that_may_use_other_machines_read_dask() -> None:
    files = {path for path in (_ROOT / "pipeline/stages").glob("*.py") if "context.dask" in path.read_text()}
    assert {path.stem for path in files} - {"harness"} == set(harness._STAGES_WITH_TASKS)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            MemoryError("no"),
            2,
            "error: out of memory (MemoryError: no); end other programs, or use a machine with more\n",
        ),
        (InputError("a.npy: has\n3 rows; run it again"), 2, "error: a.npy: has 3 rows; run it again\n"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to resume\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "x.npy"),
            2,
            "error: x.npy: No space left on device; free some space and run the same command again\n",
        ),
        (
            OSError(errno.EACCES, "Permission denied", "data"),
            2,
            "error: data: Permission denied; correct its permissions, or those of its folder\n",
        ),
    ],
)
def test_errors_that_the_user_can_fix_are_one_line(
    argv: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: BaseException,
    code: int,
    line: str,
) -> None:
    with pytest.raises(SystemExit) as raised:
        run_stage("prepare", _raise(error), argv=argv)
    assert raised.value.code == code
    assert capsys.readouterr().err == line
    assert not (tmp_path / "work" / "resources" / "prepare.json").exists()
    assert type(error).__name__ in (tmp_path / "work" / "logs" / "prepare.log").read_text()


def test_an_error_is_printed_where_its_log_cannot_be_written(
    argv: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = WorkPaths(root=tmp_path / "work").log("prepare")
    log.parent.mkdir(parents=True)
    log.symlink_to("/dev/full")
    with pytest.raises(SystemExit) as raised:
        run_stage("prepare", _raise(InputError("a.npy: has 3 rows; run it again")), argv=argv)
    assert raised.value.code == 2
    assert capsys.readouterr().err == "error: a.npy: has 3 rows; run it again\n"


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError(errno.EINVAL, "no")])
def test_bugs_keep_their_traceback(argv: list[str], error: Exception) -> None:
    with pytest.raises(type(error)):
        run_stage("prepare", _raise(error), argv=argv)


@pytest.mark.parametrize(
    ("item", "value", "valid"), [("network", "resnet50", "['resnet18']"), ("study", "fig5", "['digits']")]
)
def test_the_error_of_an_unknown_item_lists_the_valid_ones(
    argv: list[str], capsys: pytest.CaptureFixture[str], item: str, value: str, valid: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        run_stage("train", _raise(AssertionError()), item=item, argv=[f"--{item}", value, *argv])
    assert raised.value.code == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == f"--{item} {value}"
    assert valid in str(error)


def test_bad_parameters_stop_the_stage_before_its_body(
    tmp_path: Path, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.yaml").write_text("prepare: {}\n")
    with pytest.raises(SystemExit) as raised:
        run_stage("prepare", _raise(AssertionError()), argv=[*argv, "--params", str(tmp_path / "params.yaml")])
    assert raised.value.code == 2
    error = printed_error(capsys.readouterr().err)
    assert key_within(error, tmp_path / "params.yaml") == "prepare.dataset"


# A stage as a process: it prints a line when it works, then waits.
