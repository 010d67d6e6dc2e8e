"""Tables and sentences of a study's comparisons: accuracies, ratios, best batch sizes, and steps to a stated target."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.reporting.warmup import number_interval
from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import (
    CONDITIONAL,
    MISSING,
    count,
    number,
    p_equals,
    percent,
    percent_interval,
    plain_number,
    plural,
    points,
    points_interval,
    replicates,
    spread,
)
from pipeline.stats.replicates import TREATED
from pipeline.stats.tables import Table, make_table, setting_cells, setting_headers

FEW = 2
"""Up to this many studies each have a sentence at the top of the report; more have a table row each."""

_SPEED_WORDS = {"lower": "sooner", "higher": "later"}


def ratio_sentence(
    ratio: Mapping[str, Any], alpha: float, *, what: str, unit: str, words: Mapping[str, str], left_out: str
) -> str:
    """Return a ratio of the treated arm to another as a sentence, with its basis.

    Args:
        ratio: as `pipeline.stats.ratios.Ratio`, in plain values.
        alpha: level of its tests.
        what: the compared quantity, e.g. `in the top eigenvalue`.
        unit: text after the number, e.g. `times as many steps`.
        words: text of the outcomes lower and higher.
        left_out: text that names the missing settings; shown if there are any.
    """
    head = f"{TREATED} against {ratio['control'].replace('_', ' ')} {what}"
    if ratio["mean"] is None:
        return f"{head}: nothing to compare ({left_out})."
    parts = [*_parts(ratio, alpha, unit), *([left_out] if ratio["left_out"] else [])]
    return f"{head}: {words.get(ratio['outcome'], ratio['outcome'])} ({'; '.join(parts)})."


def unadjusted_sentence(ratios: Iterable[Mapping[str, Any]]) -> str:
    """Return the sentence that several ratios are tested without adjustment; empty for at most one."""
    tests = sum(ratio["p"] is not None for ratio in ratios)
    return f"These {plural(tests, 'test')} are not adjusted for their number." if tests > 1 else ""


def _parts(ratio: Mapping[str, Any], alpha: float, unit: str) -> Iterator[str]:
    yield f"{ratio['mean']:.2f} {unit}"
    if ratio["low"] is None:
        yield "no interval"
    else:
        yield f"{100 * (1 - alpha):g} % interval {ratio['low']:.2f} to {ratio['high']:.2f}"
    yield replicates(ratio["n"], ratio["unit"], seeds=ratio["seeds"], settings=len(ratio["settings"]))
    if ratio["p"] is not None:
        yield p_equals(ratio["p"])
        if ratio["least_p"] > alpha:
            yield f"too few to claim a difference: the sign-flip test gives {number(ratio['least_p'])} at best"
    if ratio["draws"] == 1:
        yield CONDITIONAL


def best_batch_table(study: Mapping[str, Any], confidence: float) -> Table:
    """Build the table of the best batch size of each arm at each learning rate."""
    rows = [
        (
            row["arm"],
            *_setting_cells(row, study),
            ", ".join(count(round(size)) for size in row["of_seeds"]),
            plain_number(row["by_seed"]["mean"]),
            number_interval(Estimate(**row["by_seed"]), plain_number),
            count(row["by_seed"]["n"]),
            count(row["seeds_at_end"]),
        )
        for row in study["best_batch"]
    ]
    headers = setting_headers(study["varying"]).replace("batch size", "best batch size by mean top-1")
    return make_table(
        f"arm; {headers}; each seed's best; geometric mean of the seeds' best; {100 * confidence:g} % interval; "
        "n (seeds); seeds at an end of the sizes tried",
        rows,
        text="arm; model; each seed's best",
    )


def _setting_cells(row: Mapping[str, Any], study: Mapping[str, Any]) -> list[str]:
    *cells, size = setting_cells(row["setting"], study["varying"])
    if not row["at_end"]:
        return [*cells, size]
    end = "smallest" if row["of_means"] == row["batch_sizes"][0] else "largest"
    return [*cells, f"{size}, the {end} tried"]


def verdict_table(studies: Sequence[Mapping[str, Any]], confidence: float) -> Table:
    """Build a table of every pooled comparison of all studies, primary ones first; empty for FEW studies or fewer."""
    compared = [(study, row) for study in studies for row in study["pooled"] if row["verdict"]]
    rows = [
        (
            study["name"],
            f"{TREATED} − {row['control']}{', primary' if row['primary'] else ''}",
            study["plan"]["matched"],
            row["verdict"]["outcome"],
            points(row["estimate"]["mean"]),
            points_interval(Estimate(**row["estimate"])),
            count(row["estimate"]["n"]),
            count(row["needed"]["n"]) if row["needed"] else MISSING,
        )
        for study, row in sorted(compared, key=lambda pair: not pair[1]["primary"])
    ]
    return make_table(
        f"study; difference; equal; verdict; mean (points); {100 * confidence:g} % interval (points); "
        "seeds, or replicates; needed for the margin",
        rows if len(_with_primary(studies)) > FEW else [],
        text="study; difference; equal; verdict",
    )


def verdict_counts(studies: Sequence[Mapping[str, Any]]) -> str:
    """Count the outcomes of the studies' primary comparisons; empty for FEW studies or fewer."""
    outcomes = Counter(row["verdict"]["outcome"] for row in _with_primary(studies))
    if outcomes.total() <= FEW:
        return ""
    counts = [f"{n} {outcome}" for outcome, n in outcomes.most_common()]
    return f"Of the primary comparisons of {outcomes.total()} studies: {', '.join(counts)}."


def _with_primary(studies: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for study in studies for row in study["pooled"] if row["primary"] and row["verdict"]]


def pooled_table(study: Mapping[str, Any]) -> Table:
    """Build the table of pooled comparisons with their intervals, the primary one first."""
    confidence = 1 - study["plan"]["alpha"]
    looks = any(row["verdict"] and row["verdict"]["looks"] for row in study["pooled"])
    # With looks each test has a smaller level, and its interval another confidence.
    equivalence = "interval" if looks else f"{100 * (2 * confidence - 1):g} % interval"
    rows = [
        (
            f"{TREATED} − {row['control']}{', primary' if row['primary'] else ''}",
            *_pooled_cells(row),
            row["verdict"]["outcome"],
        )
        for row in study["pooled"]
        if row["verdict"]
    ]
    return make_table(
        f"difference; mean (points); sd (points); {100 * confidence:g} % t interval (points); "
        f"{100 * confidence:g} % bootstrap interval, also over test images (points); "
        f"{equivalence} of the equivalence test (points); replicates; seeds; settings; "
        "needed for the margin (seeds, or replicates); verdict",
        rows,
        text="difference; verdict",
    )


def class_difference_table(comparison: Mapping[str, Any], confidence: float) -> Table:
    """Build the table of accuracies by class, and of each run's worst class, in both arms of one comparison."""
    images = comparison["images"]
    rows = [(row["class"], *_class_cells(row)) for row in images["classes"]]
    rows.append(("worst class of each run", *_class_cells(images["worst"])))
    return make_table(
        f"class; {TREATED} (%); {comparison['control']} (%); difference (points); sd (points); "
        f"{100 * confidence:g} % interval (points)",
        rows,
        text="class",
    )


def published_table(published: Mapping[str, Any], confidence: float) -> Table:
    """Build the table of published accuracies next to those measured at their setting, or what the study lacks.

    Args:
        published: result of `compare_with_published`.
    """
    rows = [
        (
            point["arm"],
            count(point["batch_size"]),
            " or ".join(map(str, point["weight_decays"])),
            percent(point["top1"]),
            point["place"],
            *cells,
        )
        for point in published["points"]
        for cells in _measured_cells(point)
    ]
    return make_table(
        "arm; batch size; weight decay; published (%); place; "
        f"measured, mean (%); {100 * confidence:g} % interval (%); n (seeds, or replicates of the filter); "
        "measured − published (points); measured as",
        rows,
        text="arm; place; measured as",
    )


def _measured_cells(point: Mapping[str, Any]) -> list[tuple[str, ...]]:
    if point["missing"]:
        return [(*[MISSING] * 4, point["missing"])]
    cells: list[tuple[str, ...]] = []
    for row in point["measured"]:
        estimate = Estimate(**row["top1"])
        cells.append(
            (
                percent(estimate.mean),
                percent_interval(estimate),
                count(estimate.n),
                points(row["difference"]),
                f"{row['label']}, weight decay {row['weight_decay']}" if not row["variant"] else row["label"],
            )
        )
    return cells


def _pooled_cells(row: Mapping[str, Any]) -> list[str]:
    estimate, verdict, images = Estimate(**row["estimate"]), row["verdict"], row["images"]
    return [
        points(estimate.mean),
        spread(estimate.sd),
        points_interval(estimate),
        _ends(images["bootstrap"]["low"], images["bootstrap"]["high"]),
        _ends(verdict["equivalence_low"], verdict["equivalence_high"]),
        count(verdict["draws"]),
        count(verdict["seeds"]),
        count(row["settings"]),
        count(row["needed"]["n"]) if row["needed"] else MISSING,
    ]


def _class_cells(row: Mapping[str, Any]) -> list[str]:
    estimate = Estimate(**row["estimate"])
    arms = [percent(row["treated"]), percent(row["control"])]
    return [*arms, points(estimate.mean), spread(estimate.sd), points_interval(estimate)]


def _ends(low: float | None, high: float | None) -> str:
    return MISSING if low is None or high is None else f"{points(low)} to {points(high)}"


def convergence_sections(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each stated target `quantity`, `target` in words, `table`, and a sentence for each comparison."""
    return [
        {
            "quantity": result["quantity"],
            "target": target_in_words(result),
            "table": _convergence_table(result, study["varying"]),
            "sentences": _convergence_sentences(result, study["plan"]["alpha"]),
        }
        for result in study["convergence"]
    ]


def target_in_words(result: Mapping[str, Any]) -> str:
    """Return e.g. `a training loss of 1 nats`."""
    if result["quantity"] == "top1":
        return f"a test accuracy of {100 * result['target']:g} %"
    return f"a training loss of {result['target']:g} nats"


def _convergence_table(result: Mapping[str, Any], varying: tuple[str, ...]) -> Table:
    """Build the table of each arm at each setting."""
    rows = [
        (
            *setting_cells(row["setting"], varying),
            row["arm"],
            plain_number(row["steps"]),
            MISSING if row["images"] is None else count(round(row["images"])),
            _reached(row),
        )
        for row in result["arms"]
    ]
    headers = f"{setting_headers(varying)}; arm; steps; images; runs that reached it"
    return make_table(headers, rows, text="model; arm")


def _reached(row: Mapping[str, Any]) -> str:
    text = f"{row['reached']} of {row['n']}"
    return f"{text}, {row['at_once']} before the first record" if row["at_once"] else text


def _convergence_sentences(result: Mapping[str, Any], alpha: float) -> list[str]:
    """Return a sentence for each comparison, and one for all of them."""
    sentences = [_sentence(ratio, result, alpha) for ratio in result["ratios"]]
    return [sentence for sentence in (*sentences, unadjusted_sentence(result["ratios"])) if sentence]


def _sentence(ratio: Mapping[str, Any], result: Mapping[str, Any], alpha: float) -> str:
    left_out = (
        f"{plural(ratio['left_out'], 'setting')} left out, in which a run never reached it, or before its first record"
    )
    return ratio_sentence(
        ratio,
        alpha,
        what=f"to {target_in_words(result)}",
        unit="times as many images" if result["batch_grew"] else "times as many steps and images",
        words=_SPEED_WORDS,
        left_out=left_out,
    )
