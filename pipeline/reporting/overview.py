"""Build the report's first screen: for each study its verdict, its effect and what its filter drops.

Up to `MAX_CARDS` studies are cards with a chart, more of them rows. A study's plan has its hash, when it was stated,
and what changed since.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pipeline.config.params import Params
from pipeline.config.study import Study
from pipeline.config.study_plan import build_plan, diff_plans, plan_hash
from pipeline.figures.palette import ARMS
from pipeline.figures.study_curves import study_styles
from pipeline.reporting.inputs import PlanHistory
from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import UNIT_NAMES, percent, plural, points, points_interval

_CONTROLS = {
    "full": "training on all images",
    "random": "dropping as many at random in each class",
    "random_uniform": "dropping as many at random",
}
_GLYPHS = {"circle": "●", "diamond": "◆", "square": "■", "triangle-up": "▲", "x": "✖", "star": "★"}
NOT_COMPARED = "not compared"
"""Outcome on the card of a study without a comparison."""

MAX_CARDS = 4
"""Number of studies that the first screen shows as cards with a chart."""


def equal_sentences(study: Study) -> list[str]:
    """Return what is equal between the runs of a study, if its plan says so: arms at one size, or all sizes."""
    if study.equal_across is None:
        return []
    arms = "steps" if study.match == "steps" else "epochs of their own images"
    of_arms = f"Equal at each batch size: the {arms} of all arms."
    if study.equal_across == "arms":
        return [f"{of_arms} Different batch sizes are not called equal."]
    (unit,) = (name for name in ("examples", "steps", "epochs") if getattr(study.budget, name) is not None)
    whose = " of the full data" if unit == "epochs" and study.match == "steps" else ""
    return [f"{of_arms} Equal at all batch sizes: {unit}{whose}."]


def plan_sentences(name: str, params: Params, history: PlanHistory | None) -> list[str]:
    """Return the plan's text, if any, then its hash with its `history`."""
    text, equal = params.studies[name].plan, equal_sentences(params.studies[name])
    plan = build_plan(name, params.studies[name], params.train, params.report)
    digest = f"SHA-256 of the plan: {plan_hash(plan)}"
    if text is None or history is None:
        return [*equal, f"{digest}."]
    words = [
        f"Question: {text.question}",
        f"Hypotheses: {' '.join(text.hypotheses)}",
        f"Choice of the rates: {text.rate_selection}",
        *equal,
    ]
    if not history.statements:
        return [*words, f"{digest}; no statement of it is recorded."]
    changes = list(_changes(history, plan))
    return [
        *words,
        f"{digest}; {_statement_sentence(history)}{'; changed since: ' if changes else ''}{'; '.join(changes)}.",
    ]


def _statement_sentence(history: PlanHistory) -> str:
    first = history.statements[0].date
    older, runs = history.recorded_before(first), len(history.run_dates)
    if older:
        return (
            f"stated {first[:10]}; {older} of {plural(runs, 'run')} {'is' if older == 1 else 'are'} older than the plan"
        )
    return f"stated {first[:10]} before the first run"


def _changes(history: PlanHistory, plan: Mapping[str, object]) -> Iterator[str]:
    """Compare each later statement with the previous one, then params.yaml with the last."""
    previous, *later = history.statements
    for statement in later:
        after = f"{history.recorded_before(statement.date)} of {len(history.run_dates)} runs"
        yield f"{', '.join(diff_plans(previous.plan, statement.plan))} ({statement.date[:10]}, after {after})"
        previous = statement
    if unstated := diff_plans(previous.plan, plan):
        yield f"{', '.join(unstated)} (in params.yaml, not stated)"


@dataclass(frozen=True, kw_only=True)
class EffectBar:
    """A mean difference with its interval on an axis that shows 0 and the margin; in percentage points of top-1.

    Attributes:
        low, high: ends of the interval; None with a single seed.
        margin: smaller differences do not matter, > 0.
        axis: ends of an axis that several bars share; None for one that fits this bar.
    """

    mean: float
    low: float | None
    high: float | None
    margin: float
    axis: tuple[float, float] | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the axis: a tenth wider than all that is plotted."""
        if self.axis is not None:
            return self.axis
        plotted = [self.mean, -self.margin, self.margin, *(end for end in (self.low, self.high) if end is not None)]
        room = 0.1 * (max(plotted) - min(plotted))
        return min(plotted) - room, max(plotted) + room

    def position(self, value: float) -> float:
        """Return where `value` is on the axis, 0 (left end) to 100."""
        left, right = self.ends
        return round(100 * (value - left) / (right - left), 2)

    def width(self, low: float, high: float) -> float:
        """Return the length of an interval on the axis, 0 to 100."""
        return round(self.position(high) - self.position(low), 2)


@dataclass(frozen=True, kw_only=True)
class StudyCard:
    """What the first screen says of one study.

    Attributes:
        outcome: helps, hurts, equivalent, undecided or `NOT_COMPARED`.
        sentence: the verdict in at most 20 words.
        effect: None if nothing was compared.
        effect_text: the effect with its interval; empty if nothing was compared.
        dropped: what the study's filter drops; empty if the study has no filtered arm.
    """

    name: str
    outcome: str
    sentence: str
    effect: EffectBar | None
    effect_text: str
    dropped: str

    @property
    def css_class(self) -> str:
        """The outcome as a class of the style sheet."""
        return self.outcome.replace(" ", "-")


class ArmMark(NamedTuple):
    """How the charts of the first screen show an arm."""

    arm: str
    color: str
    glyph: str


def arm_marks(studies: Sequence[Mapping[str, Any]]) -> list[ArmMark]:
    """Return the marks of all arms with a line on the first screen; one arm's variants are named by the chart alone."""
    lines = [line for study in studies for line in study_styles(study).items()]
    marks = [ArmMark(key.arm, style.color, _GLYPHS[style.marker[0]]) for key, style in lines]
    return list(dict.fromkeys(mark for mark in marks if mark.color == ARMS[mark.arm]))


def study_cards(summary: Mapping[str, Any], params: Params) -> list[StudyCard]:
    """Return the card of each study of the report's summary; on one axis if they are shown as rows."""
    cards = [
        study_card(study, params.studies[study["name"]], summary["networks"], summary["planted"])
        for study in summary["studies"]
    ]
    return on_one_axis(cards) if len(cards) > MAX_CARDS else cards


def on_one_axis(cards: Sequence[StudyCard]) -> list[StudyCard]:
    """Return the cards with one axis for all effects, so that their lengths compare."""
    ends = [end for card in cards if card.effect for end in card.effect.ends]
    return [
        replace(card, effect=replace(card.effect, axis=(min(ends), max(ends)))) if card.effect else card
        for card in cards
    ]


def studies_by_dropped(cards: Sequence[StudyCard]) -> dict[str, list[str]]:
    """Return what a filter drops -> names of the studies with this filter; without those that have none."""
    found: dict[str, list[str]] = {}
    for card in cards:
        if card.dropped:
            found.setdefault(card.dropped, []).append(card.name)
    return found


def study_card(
    study: Mapping[str, Any], config: Study, networks: Sequence[Mapping[str, Any]], planted: Sequence[Mapping[str, Any]]
) -> StudyCard:
    """Return the card of a study.

    Args:
        study, networks, planted: of the report's summary.
        config: of the study.
    """
    dropped = dropped_sentence(config, networks, planted)
    filtered = [row for row in study["accuracy"] if row["arm"] == "filtered"]
    n_relabeled = max((row["n_relabeled"][1] for row in filtered), default=0)
    # Of the runs: filter replicates drop other numbers than the network that `dropped_sentence` names.
    n_dropped = max((networks[0]["n"] - row["n_train"][0] for row in filtered), default=0)
    if n_relabeled and n_dropped:
        dropped += f" The effect includes {plural(n_relabeled, 'label')} changed by hand."
    row = next((row for row in study["pooled"] if row["primary"]), None)
    if row is None or not row["verdict"]:
        sentence = _without_comparison(study, has_primary=row is not None)
        return StudyCard(
            name=study["name"], outcome=NOT_COMPARED, sentence=sentence, effect=None, effect_text="", dropped=dropped
        )
    estimate, margin = Estimate(**row["estimate"]), study["plan"]["margin"]
    level = "" if estimate.low is None else f"{100 * (1 - study['plan']['alpha']):g} % interval "
    interval = f"{level}{points_interval(estimate)}; {plural(estimate.n, UNIT_NAMES[row['verdict']['unit']])}"
    return StudyCard(
        name=study["name"],
        outcome=row["verdict"]["outcome"],
        sentence=short_sentence(row, margin, n_dropped=n_dropped, n_relabeled=n_relabeled),
        effect=EffectBar(mean=estimate.mean, low=estimate.low, high=estimate.high, margin=margin),
        effect_text=f"{points(estimate.mean)} percentage points ({interval})",
        dropped=dropped,
    )


def short_sentence(row: Mapping[str, Any], margin: float, *, n_dropped: int, n_relabeled: int) -> str:
    """Return the verdict of one pooled comparison in at most 20 words.

    Args:
        margin: in percentage points.
        n_dropped: images that the arm `filtered` lacks, 0 or more.
        n_relabeled: its labels that were changed by hand, 0 or more.
    """
    if not n_dropped and not n_relabeled:
        return "The filter drops no image, so that both arms train on the same images."
    outcome, mean = row["verdict"]["outcome"], row["estimate"]["mean"]
    change, control = _change_and_control(row["control"], n_dropped, n_relabeled)
    if outcome == "undecided":
        seen = plural(row["estimate"]["n"], UNIT_NAMES[row["verdict"]["unit"]])
        verb = "does" if row["estimate"]["n"] == 1 else "do"
        return f"{seen} {verb} not show whether {change} beats {control}."
    if outcome == "equivalent":
        return f"{change.capitalize()} stays within {margin:g} points of the test accuracy of {control}."
    verb = {"helps": "gains", "hurts": "loses"}[outcome]
    return f"{change.capitalize()} {verb} {abs(mean):.2f} points of test accuracy against {control}."


def _change_and_control(control: str, n_dropped: int, n_relabeled: int) -> tuple[str, str]:
    """Return in words what the arm `filtered` changes, and what it is compared with."""
    if not n_dropped:
        # The random arms drop as many images, which is none, so each control is the complete data.
        return f"changing {plural(n_relabeled, 'label')} by hand", "training with the labels as given"
    return "dropping and relabeling" if n_relabeled else "dropping these images", _CONTROLS[control]


def dropped_sentence(config: Study, networks: Sequence[Mapping[str, Any]], planted: Sequence[Mapping[str, Any]]) -> str:
    """Return how many images the study's filter drops and, where known, how many of them have a wrong label."""
    if "filtered" not in config.arms:
        return ""
    network = next(row for row in networks if row["name"] == config.filter_network)
    n_dropped = network["n"] - network["n_kept"]
    share = percent(1 - network["kept_share"], 1)
    text = f"{network['name']} drops {n_dropped:,} of {plural(network['n'], 'image')} ({share} %)"
    found = [row for entry in planted for row in entry["networks"] if row["name"] == network["name"]]
    if not found:
        return f"{text}."
    (row,) = found
    n_wrong, verb = planted[0]["n"], "is" if row["n_found"] == 1 else "are"
    return (
        f"{text}. {row['n_found']:,} of the {n_wrong:,} wrong labels {verb} among them; a random choice finds "
        f"{row['by_chance']:.1f}."
    )


def _without_comparison(study: Mapping[str, Any], *, has_primary: bool) -> str:
    if has_primary:
        return "No setting has finished runs of both arms."
    if study["pooled"]:
        return f"The study has no {study['plan']['primary']} arm."
    return "The study has no filtered arm or no arm to compare it with."
