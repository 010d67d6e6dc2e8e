"""`same` finds the first step, the place and the settings in which two recorded runs differ."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.runs.ledger import Ledger
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.recorded import RECORDED, record_run


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_run(tmp_path_factory.mktemp("base") / "work")


def _same(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    code = main(["same", *map(str, arguments)])
    return code, capsys.readouterr().out.splitlines()


def _edit(folder: Path, **changes: Any) -> Path:
    """Change the result of a run, which then has no checksums, as of an earlier version."""
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | changes))
    (folder / "checksums.json").unlink()
    return folder


def test_equal_settings_give_the_same_bits(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = record_run(tmp_path)
    assert _same(capsys, base, again) == (0, ["same in every bit through step 4"])


def test_another_seed_shows_in_the_sample_order_of_the_first_step(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, (first, second) = _same(capsys, base, record_run(tmp_path, replace(RECORDED, seed=4)))
    assert (code, first) == (1, "differ first at step 1 in the sample order; their first step")
    assert second == "settings that differ: seed (3, 4)"


def test_another_sum_of_gradients_shows_in_the_first_layer(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = replace(RECORDED, reduction="exact", threads=1)
    code, (first, second) = _same(capsys, base, record_run(tmp_path, exact))
    assert (code, first) == (1, "differ first at step 1 in the model conv1; their first step")
    assert re.fullmatch(r"settings that differ: reduction \(ddp, exact\), images in a pass \(\d+, 10\)", second)


def test_another_number_of_threads_is_named(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it changes bits depends on the CPU."""
    code, lines = _same(capsys, base, record_run(tmp_path, threads=2))
    heading = "settings that differ" + ("" if code else ", without effect")
    assert lines[-1] == f"{heading}: threads (1, 2)"


@pytest.mark.parametrize("step", [1, 3])
def test_one_bit_of_one_weight_is_found(
    step: int, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = record_run(tmp_path, one_bit_after=step)
    code, (first, second) = _same(capsys, base, changed)
    before = f"equal through step {step - 1}" if step > 1 else "their first step"
    assert (code, first) == (1, f"differ first at step {step} in the model fc1; {before}")
    assert second.startswith("no recorded setting, version or hardware differs")


def test_a_difference_between_distant_links_is_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With links at the steps 3 and 4 alone, the learning rate of step 2 is the first record that differs."""
    constant = replace(RECORDED, schedule="constant")
    lower = replace(constant, schedule="step", schedule_options={"milestones": [1], "factor": 0.1})
    runs = [record_run(tmp_path / run.schedule, run, link_images=60) for run in (constant, lower)]
    code, (first, second) = _same(capsys, *runs)
    assert (code, first) == (1, "differ first at step 2 in the learning rate; no earlier record of all bits")
    assert second == (
        "settings that differ: schedule (constant, step), schedule_options.factor (None, 0.1), "
        "schedule_options.milestones (None, [1])"
    )


def test_a_longer_run_differs_where_the_shorter_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    constant = replace(RECORDED, schedule="constant")
    runs = [record_run(tmp_path / str(steps), replace(constant, steps=steps)) for steps in (2, 4)]
    code, (first, second) = _same(capsys, *runs)
    assert (code, first) == (1, "differ first at step 3 in the number of steps; equal through step 2")
    assert second == "settings that differ: steps (2, 4)"


def test_another_evaluation_of_equal_weights_differs(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = json.loads((base / "result.json").read_text())["loss"]
    changed = _edit(record_run(tmp_path), loss=loss * (1 + 2**-52))
    code, (first, _) = _same(capsys, base, changed)
    equal = "weights and optimizer are equal through step 4"
    assert (code, first) == (1, f"differ first at step 4 in the evaluation of the test images; {equal}")


def test_the_number_of_processes_is_no_cause_with_exact_sums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = replace(RECORDED, reduction="exact", threads=1)
    one = record_run(tmp_path / "one", exact)
    other = _edit(record_run(tmp_path / "other", exact), workers=3)
    assert _same(capsys, one, other) == (
        0, ["same in every bit through step 4", "settings that differ, without effect: processes (1, 3)"],
    )  # fmt: skip


def test_the_machine_of_an_imported_run_is_that_which_trained_it(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = json.loads((base / "identity.json").read_text())["machine"]
    imported = _edit(record_run(tmp_path), imported_from=machine | {"device": "NEON"})
    code, lines = _same(capsys, base, imported)
    assert code == 0
    assert lines[1] == f"settings that differ, without effect: device ({machine['device']}, NEON)"


def test_values_of_others_are_printed_without_escapes(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = json.loads((base / "identity.json").read_text())["machine"]
    hidden = "AVX\n\x1b[1A\x1b[2Ksame in every bit\x1b[8m"
    imported = _edit(record_run(tmp_path), imported_from=machine | {"device": hidden})
    for others in ((base, imported), (base.parents[1], tmp_path)):
        code = main(["same", *map(str, others)])
        printed = capsys.readouterr().out
        assert code == 0
        assert "AVX\\n\\x1b[1A" in printed
        assert all(line.isprintable() for line in printed.split("\n"))


def test_experiments_are_compared_run_by_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By work folder or project folder; a run of another seed has no counterpart."""
    ours, theirs = tmp_path / "ours" / ".work", tmp_path / "theirs"
    for seed in (3, 4):
        record_run(ours, replace(RECORDED, seed=seed))
    record_run(theirs, replace(RECORDED, seed=3), one_bit_after=4)
    record_run(theirs, replace(RECORDED, seed=4, reduction="exact", threads=1))
    record_run(theirs, replace(RECORDED, seed=5))
    code, lines = _same(capsys, ours.parent, theirs)
    assert code == 1
    assert lines[-1] == "2 pairs: 0 the same in every bit, 2 differ; 0 runs only in A, 1 only in B"
    assert sum("differ first at step 4 in the model fc1" in line for line in lines) == 1
    assert sum("differ first at step 1 in the model conv1" in line for line in lines) == 1
    assert _same(capsys, ours, ours)[0] == 0


def test_experiments_of_one_run_each_are_paired_by_job_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of another seed they have no run in common. Two runs that are named are compared whatever their jobs."""
    for name, seed in (("a", 3), ("b", 4), ("c", 3)):
        record_run(tmp_path / name / ".work", replace(RECORDED, seed=seed))
    a, b, c = (tmp_path / name for name in "abc")
    assert main(["same", str(a), str(b)]) == 2
    assert "no run of equal settings, images and seed" in printed_error(capsys.readouterr().err).args[0]
    code, lines = _same(capsys, a, c)
    assert (code, lines[-1]) == (0, "1 pair: 1 the same in every bit, 0 differ")
    (run,) = (b / ".work" / "cells").iterdir()
    assert main(["same", str(a), str(run)]) == 2
    (own,) = (a / ".work" / "cells").iterdir()
    assert "settings that differ: seed (3, 4)" in _same(capsys, own, run)[1]


def test_runs_are_named_by_the_first_digits(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = base.parents[1]
    assert _same(capsys, base.name[:8], base / "result.json", "--work", work)[0] == 0
    shutil.copytree(work / "cells", tmp_path / "cells")
    shutil.copytree(base, tmp_path / "cells" / f"{base.name[:8]}{'0' * 16}")
    assert main(["same", base.name[:8], str(base), "--work", str(tmp_path)]) == 2
    assert "2 runs" in printed_error(capsys.readouterr().err).args[0]


def test_what_is_no_run_is_one_line(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = _edit(record_run(tmp_path / "old"), links=[])
    empty = tmp_path / "empty"
    empty.mkdir()
    torn = record_run(tmp_path / "torn", replace(RECORDED, seed=5))
    (torn / "result.json").write_text("{")
    other = tmp_path / "other"
    for seed in (8, 9):
        record_run(other, replace(RECORDED, seed=seed))
    for a, b in ((base, empty), (base, "no-such"), (old, base), (base, torn), (base.parents[1], other)):
        assert main(["same", str(a), str(b)]) == 2, (a, b)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1


def test_chains_of_earlier_versions_have_no_groups(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = record_run(tmp_path, one_bit_after=2)
    links = json.loads((changed / "result.json").read_text())["links"]
    for link in links:
        del link["groups"]
    code, (first, _) = _same(capsys, base, _edit(changed, links=links))
    assert code == 1
    assert "at step 2 in the state, without groups" in first


def test_groups_come_back_from_the_ledger(base: Path) -> None:
    names = [name for name, _ in Ledger(base.parent).get(base.name).links[0].groups]
    layers = ["conv1", "conv2", "fc1", "fc2"]
    assert names == ["sample order", *(f"{part} {layer}" for part in ("model", "optimizer") for layer in layers)]
