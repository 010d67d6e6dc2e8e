"""`python -m pipeline same A B`: tell whether two runs are the same in every bit, or from which step they differ.

A and B are finished runs: their folders (.work/cells/FINGERPRINT), or fingerprints in --work, of which the first digits
suffice. Or both are experiments: their work folders (.work) or project folders. Of these, runs with equal settings,
images and seed are compared.

The evidence is the chain of hashes over weights, buffers, optimizer and sample order that each run records. The first
record that differs is reported, with the settings, versions and hardware that differ. It names a group of tensors, not
a tensor: a module such as backbone.layer1, no deeper than a stage of a ResNet. Records of all bits are 50,000 images
apart or a sixteenth of the run, whichever is longer, and a short run has one, at its end. Training losses are recorded
twenty times or more. So the cause may lie between the step that is named and the last one with equal bits.

The exit code is 0 if all are the same, 1 if one differs, and 2 for bad input.
docs/guides/why-do-my-two-runs-differ.md has the causes.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.commands import command_parser
from pipeline.errors import InputError, printable
from pipeline.paths import WorkPaths
from pipeline.run_analysis.bit_comparison import BitComparison, Difference, compare_bits, read_recorded_run
from pipeline.runs.ledger import Ledger, read_run_key
from pipeline.training.run_key import RunKey

_RESULT = "result.json"
_MIN_DIGITS = 4
# Parts of a job that may differ between runs that are worth comparing.
_MAY_DIFFER = ("code",)
_MAY_DIFFER_IN_SETTINGS = ("reduction", "threads")
_NO_CAUSE = (
    "no recorded setting, version or hardware differs: look for an operation without a fixed order, an edit of the "
    "records, or faulty memory"
)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("same", __doc__, "work")
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help="a run: folder or fingerprint; or an experiment: folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Compare the runs and print a line for each pair, and one for what differs.

    Returns:
        0 if all pairs are the same in every bit, else 1.

    Raises:
        InputError: A or B has no finished run, a run is damaged or has no hash chain, or the experiments have no run
            in common.
    """
    arguments = make_parser().parse_args(argv)
    named = [_named_run(name, arguments.work) for name in (arguments.a, arguments.b)]
    if None not in named:
        comparison = compare_bits(*(read_recorded_run(folder) for folder in named if folder))
        print("\n".join(map(printable, text_lines(comparison))))
        return int(comparison.differ_at is not None)
    sides = zip(named, (arguments.a, arguments.b), strict=True)
    pairs, n_alone = _pairs(*([run] if run else _runs_of_experiment(name, arguments.work) for run, name in sides))
    if not pairs:
        raise InputError(
            f"{arguments.a} and {arguments.b}: no run of equal settings, images and seed; give the folders of two runs"
        )
    n_same = 0
    for one, other in pairs:
        comparison = compare_bits(read_recorded_run(one), read_recorded_run(other))
        n_same += comparison.differ_at is None
        print("\n  ".join(map(printable, [f"{one.name} and {other.name}:", *text_lines(comparison)])))
    alone = f"; {n_alone[0]} runs only in A, {n_alone[1]} only in B" if any(n_alone) else ""
    counted = f"{len(pairs)} {'pair' if len(pairs) == 1 else 'pairs'}"
    print(f"{counted}: {n_same} the same in every bit, {len(pairs) - n_same} differ{alone}")
    return int(n_same < len(pairs))


def text_lines(comparison: BitComparison) -> Iterator[str]:
    """Yield the verdict, and what differs between the runs."""
    if comparison.differ_at is None:
        yield f"same in every bit through step {comparison.equal_through}"
        differ = (*comparison.settings, *comparison.without_effect)
        if differ:
            yield f"settings that differ, without effect: {_listed(differ)}"
        return
    yield f"differ first at step {comparison.differ_at} in {comparison.where}; {_bound(comparison)}"
    yield f"settings that differ: {_listed(comparison.settings)}" if comparison.settings else _NO_CAUSE
    if comparison.without_effect:
        yield f"differ, but change no bit with reduction exact: {_listed(comparison.without_effect)}"


def _bound(comparison: BitComparison) -> str:
    """Say between which steps the cause lies: records are steps apart."""
    equal, differ = comparison.equal_through, comparison.differ_at
    assert differ is not None
    if equal >= differ:
        return f"weights and optimizer are equal through step {equal}"
    if equal + 1 == differ:
        return f"equal through step {equal}" if equal else "their first step"
    return f"equal through step {equal}, no record between" if equal else "no earlier record of all bits"


def _listed(differences: Sequence[Difference]) -> str:
    return ", ".join(map(str, differences))


def _named_run(name: str, work: Path) -> Path | None:
    """Return the folder of the run that an argument names, by folder or fingerprint; None if it names none."""
    path = Path(name)
    if path.name == _RESULT and path.is_file():
        path = path.parent
    if (path / _RESULT).is_file():
        return path
    cells = WorkPaths(root=work).ledger
    if path.exists() or len(name) < _MIN_DIGITS or not set(name) <= set("0123456789abcdef"):
        return None
    found = sorted(cells.glob(f"{name}*/"))
    if len(found) > 1:
        raise InputError(f"{name}: {len(found)} runs in {cells} begin with it; give more digits")
    return found[0] if found else None


def _runs_of_experiment(name: str, work: Path) -> list[Path]:
    """Return the folders of the finished runs of the experiment that an argument names."""
    path = Path(name)
    for root in (WorkPaths(root=path).ledger, WorkPaths(root=path / ".work").ledger, path):
        # Names such as `cells` and `data` begin with a digit of a fingerprint.
        if any(root.glob("[0-9a-f]*/identity.json")):
            return [root / key.fingerprint for key in Ledger(root).run_keys()]
    raise InputError(
        f"{name}: no finished run; give the folder of a run, its fingerprint in {WorkPaths(root=work).ledger}, or the "
        "folder of an experiment"
    )


def _pairs(a: Sequence[Path], b: Sequence[Path]) -> tuple[list[tuple[Path, Path]], tuple[int, int]]:
    """Pair runs of equal jobs, equal keys first; also return how many of each side are left."""
    pairs = []
    others: dict[str, list[Path]] = defaultdict(list)
    for folder in b:
        others[_job_name(read_run_key(folder))].append(folder)
    # Of several runs of a job, as with other numbers of threads, one of the same key comes first.
    names = {folder.name for folder in b}
    for folder in sorted(a, key=lambda folder: (folder.name not in names, folder.name)):
        candidates = others[_job_name(read_run_key(folder))]
        if candidates:
            chosen = next((other for other in candidates if other.name == folder.name), candidates[0])
            candidates.remove(chosen)
            pairs.append((folder, chosen))
    return pairs, (len(a) - len(pairs), sum(map(len, others.values())))


def _job_name(key: RunKey) -> str:
    settings = dict(key.job.get("settings", {}))
    for name in _MAY_DIFFER_IN_SETTINGS:
        settings.pop(name, None)
    job = {name: value for name, value in key.job.items() if name not in _MAY_DIFFER}
    return json.dumps({**job, "settings": settings}, sort_keys=True)
