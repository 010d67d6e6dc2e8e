"""Derive the report again, from tables that were derived from the recorded runs, and compare every number and line."""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.artifacts.files import read_json, write_array, write_json
from pipeline.artifacts.prepared import PLANTED_COLUMN
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_csv, read_parquet, write_parquet
from pipeline.artifacts.untrusted import MAX_ARRAY_BYTES, read_untrusted_json
from pipeline.commands.verify.findings import Findings, shown
from pipeline.commands.verify.page import compare_pages, parting
from pipeline.commands.verify.recorded import Project, check_rows
from pipeline.commands.verify.studies import VerifiedStudy, same_value
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_plans, load_report_inputs, stage_names
from pipeline.reporting.landscape import load_landscapes
from pipeline.reporting.render import render_document, render_page
from pipeline.reporting.summary import Summary, build_summary
from pipeline.runs.arm_rows import KEPT_COLUMNS
from pipeline.stages.report import page_figures

_MISSING = "missing"


def check_digests(project: Project, findings: Findings) -> None:
    """Compare the files of each stage, and of each landscape, with the SHA-256 that its provenance has of them."""
    n_files = 0
    equal = {path.resolve(): digests for path, digests in project.equal_files.items()}
    for name in [*stage_names(project.params), "report", *_landscape_names(project)]:
        stage, _, item = name.partition("@")
        path = project.data.provenance(stage, item or None)
        if not path.exists():
            findings.notes.append(f"{path}: missing; the files of stage {name} are not compared with it")
            continue
        with findings.collecting_errors(path):
            record = read_untrusted_json(path, may_be_link=True)
            # The record of another network would have right digests of that network's files.
            if record["stage"] != name:
                findings.differs(path, "stage", record["stage"], name)
            for part in ("inputs", "outputs"):
                if (name, part) == ("report", "outputs"):
                    _check_figures(project, path, record[part], findings)
                for file, digest in record[part].items():
                    role = f"{part[:-1]} of {name}"
                    if _is_within(path.parent / file, project.data.root):
                        n_files += _compare_digest(path, file, digest, role, equal, findings)
                    else:
                        findings.wrong(path, f"{role} {shown(file)}: is not in {project.data.root}, and is not read")
    findings.checked.append(f"{n_files} digests of files in the provenance of the stages")


def _check_figures(project: Project, record: Path, outputs: Mapping[str, str], findings: Findings) -> None:
    """Check that the report's record names each figure next to it: its stage removes all others."""
    named = {os.path.normpath(record.parent / file) for file in outputs}
    for path in sorted(_files(project.data.figures)):
        # Desktops write hidden files.
        if os.path.normpath(path) not in named and not path.name.startswith("."):
            findings.wrong(path, f"no output of the report, as {record} has them")


def _is_within(file: Path, folder: Path) -> bool:
    """Return whether a path is in a folder, wherever links in it lead: DVC may link files to its cache."""
    return Path(os.path.normpath(file)).is_relative_to(os.path.normpath(folder))


def _compare_digest(
    record: Path, file: str, digest: str, role: str, equal: Mapping[Path, frozenset[str]], findings: Findings
) -> bool:
    """Compare a file with the digest in a record; returns False if there is no such file.

    Args:
        equal: prepared file -> digests of files with equal images and labels, which a stage may have read.
    """
    target = record.parent / file
    if not target.is_file():
        if role.startswith("output of landscape"):
            findings.notes.append(f"{target}: missing; {record} names it")
        return False
    if (size := target.stat().st_size) > MAX_ARRAY_BYTES:
        findings.wrong(target, f"{size:,} bytes, more than {MAX_ARRAY_BYTES:,}; it is not read")
        return False
    if role.startswith("input") and digest in equal.get(target.resolve(), ()):
        return True
    if (found := sha256_of_file(target)) != digest:
        # No stage measures a landscape again when its runs change, and the report leaves it out.
        if role.startswith("input of landscape"):
            findings.notes.append(f"{record}: was measured with another {target}; measure it again")
        else:
            findings.differs(target, f"SHA-256 as {role}", found, digest)
    return True


def _landscape_names(project: Project) -> list[str]:
    """Return the measured landscapes, as their records name them."""
    data = project.data
    return [
        f"landscape@{study}"
        for study in project.params.studies
        if any(path.exists() for path in (data.landscape(study), data.landscape_figure(study)))
    ]


def check_filters(project: Project, findings: Findings) -> None:
    """Compare the tables of each filter with each other; the filter itself is not computed again."""
    for network in project.params.networks:
        with findings.collecting_errors(project.data.points(network)):
            points = read_parquet(
                project.data.points(network), {"sample_id": pa.int64(), "keep": pa.bool_()},
                optional=["is_noise"], max_rows=len(project.prepared.train.labels),
            )  # fmt: skip
            keep = points["keep"].to_numpy()
            kept = read_csv(project.data.kept(network), KEPT_COLUMNS, optional=[PLANTED_COLUMN])["sample_id"].to_numpy()
            if not np.array_equal(np.sort(kept), points["sample_id"].to_numpy()[keep]):
                findings.differs(
                    project.data.kept(network), "images", len(kept), f"the {int(keep.sum())} of points.parquet"
                )
            metrics = read_untrusted_json(project.data.filter_metrics(network), may_be_link=True)
            counts = {"n_total": len(keep), "n_kept": int(keep.sum()), "kept_share": float(keep.mean())}
            if "is_noise" in points.column_names:
                noise = points["is_noise"].to_numpy()
                counts |= {"n_noise": int(noise.sum()), "achieved_share": float(noise.mean())}
            for key, value in counts.items():
                if not same_value(metrics.get(key, value), value):
                    findings.differs(project.data.filter_metrics(network), key, metrics[key], value)


def check_report(project: Project, studies: Mapping[str, VerifiedStudy], findings: Findings) -> None:
    """Compare summary.json, report.md and the text of report.html with those of the derived tables.

    Raises:
        InputError: a file that the report reads is missing or damaged.
    """
    paths = project.data
    has_summary = paths.summary.exists()
    if not has_summary:
        shown_to = [path for path in (paths.report_document, paths.report_page) if path.exists()]
        compared = "only the text of the report is compared" if shown_to else "there is no report to compare"
        findings.notes.append(f"{paths.summary}: missing; {compared}")
        if not shown_to:
            return
    with TemporaryDirectory() as folder:
        derived = _with_derived_tables(project, studies, Path(folder))
        written = read_untrusted_json(paths.summary, may_be_link=True) if has_summary else _shown_digests(project)
        inputs = load_report_inputs(project.params, derived)
        inputs = replace(inputs, digests={**inputs.digests, **_equal_digests(project, written)})
        summary = _as_written(build_summary(inputs), Path(folder))
        leaves = list(_tree_differences(written, summary)) if has_summary else []
        for place, value, expected in leaves:
            if not same_value(value, expected):
                findings.differs(paths.summary, place or "content", value, expected)
        landscapes, plans = load_landscapes(inputs.studies, derived), load_plans(project.params, project.work)
        n_lines = 0
        if paths.report_document.exists():
            figures = sorted(file.relative_to(paths.figures).as_posix() for file in _files(paths.figures))
            document = render_document(project.params, summary, figures, landscapes, plans)
            n_lines += _compare_lines(paths.report_document, document, findings)
        if paths.report_page.exists():
            page = render_page(project.params, summary, page_figures(inputs, summary), landscapes, plans)
            n_lines += compare_pages(paths.report_page, page, findings)
    findings.checked.append(f"the report: {len(leaves)} values of summary.json, {n_lines} lines of text and tables")


def _shown_digests(project: Project) -> dict[str, Any]:
    """Return the digests of prepared files that the text of a report shows, as a summary has them."""
    paths, root = project.data, project.data.root
    text = "".join(_read(path) for path in (paths.report_document, paths.report_page) if path.exists())
    named = [
        (path.relative_to(root).as_posix(), digest) for path, known in project.equal_files.items() for digest in known
    ]
    return {"digests": [{"file": file, "sha256": digest} for file, digest in named if digest[:12] in text]}


def _equal_digests(project: Project, written: Any) -> dict[str, str]:
    """Return the digests in a summary of prepared files that have other bytes here, with equal images and labels."""
    rows = written.get("digests") if isinstance(written, dict) else None
    listed = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    reported = [(str(row.get("file")), row.get("sha256")) for row in listed]
    equal = {path.relative_to(project.data.root).as_posix(): known for path, known in project.equal_files.items()}
    return {file: digest for file, digest in reported if isinstance(digest, str) and digest in equal.get(file, ())}


def _with_derived_tables(project: Project, studies: Mapping[str, VerifiedStudy], folder: Path) -> DataPaths:
    """Return a data folder with the derived tables of all studies that have them, and links to all other files."""
    source, target = project.data, DataPaths(root=folder / "data")
    target.root.mkdir()
    for path in source.root.iterdir():
        if path.is_dir() and path.name != "train":
            (target.root / path.name).symlink_to(path.resolve(), target_is_directory=True)
    for name in project.params.studies:
        study = studies.get(name)
        if study is not None and study.tables is not None:
            write_parquet(target.runs(name), study.tables.runs)
            write_parquet(target.history(name), study.tables.history)
            write_array(target.correct(name), study.tables.correct)
        else:
            for table in (source.runs(name), source.history(name)):
                if table.exists():
                    check_rows(table)
        files = [source.provenance("train", name), source.runs(name), source.history(name), source.correct(name)]
        for file in files:
            copy = target.root / file.relative_to(source.root)
            if file.exists() and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
    return target


def _as_written(summary: Summary, folder: Path) -> Summary:
    """Return the values as summary.json has them: NaN is null, and a tuple a list."""
    write_json(folder / "summary.json", summary)
    written: Summary = read_json(folder / "summary.json")
    return written


def _tree_differences(value: Any, expected: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield place, value and expected value of every leaf of either tree."""
    if isinstance(value, dict) and isinstance(expected, dict):
        for key in dict.fromkeys([*expected, *value]):
            inner = f"{place}.{key}" if place else str(key)
            yield from _tree_differences(value.get(key, _MISSING), expected.get(key, _MISSING), inner)
    elif isinstance(value, list) and isinstance(expected, list) and len(value) == len(expected):
        for index, (one, other) in enumerate(zip(value, expected, strict=True)):
            name = other.get("name", index) if isinstance(other, dict) else index
            yield from _tree_differences(one, other, f"{place}[{name}]")
    else:
        yield place, value, expected


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _compare_lines(path: Path, document: str, findings: Findings) -> int:
    """Compare line by line; returns the number of lines."""
    lines, expected = _read(path).splitlines(), document.splitlines()
    if len(lines) != len(expected):
        findings.differs(path, "lines", len(lines), len(expected))
    for number, (line, other) in enumerate(zip(lines, expected, strict=False), start=1):
        if line != other:
            findings.differs(path, f"line {number}", *parting(line, other))
    return len(expected)
