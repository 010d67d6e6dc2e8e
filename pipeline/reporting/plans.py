"""Report a study's plan: its hash, when it was stated, and what changed since."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.artifacts.plans import RegisteredPlan, read_registered_plans, read_run_dates
from pipeline.config.params import Params
from pipeline.config.study import Study, build_plan, diff_plans, plan_hash
from pipeline.paths import WorkPaths


@dataclass(frozen=True, kw_only=True)
class PlanHistory:
    """The recorded plans and runs of one study.

    Attributes:
        statements: the oldest first; empty if no plan was stated.
        run_dates: fingerprint -> when the run was recorded, UTC; None for runs of a version without plans.
    """

    statements: list[RegisteredPlan]
    run_dates: Mapping[str, str | None]

    def recorded_before(self, date: str) -> int:
        """Return the number of runs older than `date`, or of a version without plans."""
        return sum(recorded is None or recorded < date for recorded in self.run_dates.values())


PlanHistories = Mapping[str, PlanHistory]
"""Study -> its plans; studies without a `plan` section are missing."""


def load_plans(params: Params, work: WorkPaths) -> PlanHistories:
    """Return the plans of studies with a `plan` section. Reports without such studies have no date: all clones agree.

    Raises:
        InputError: a statement is damaged.
    """
    return {
        name: PlanHistory(
            statements=read_registered_plans(work.plans(name)), run_dates=read_run_dates(work.plans(name))
        )
        for name, study in params.studies.items()
        if study.plan
    }


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
        return f"stated {first[:10]}; {older} of {runs} runs are older than the plan"
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
