"""Say how far an audit is: which part of the chosen runs has been trained again, and how long the rest takes."""

from pipeline.commands.verification.recorded import Project
from pipeline.commands.verification.retraining import AuditSample, Retrain
from pipeline.commands.verification.studies import StudyRun
from pipeline.run_log import RunLog
from pipeline.training.result_cache import RunResult
from pipeline.training.study_progress import StudyProgress


def with_progress(retrain: Retrain, project: Project, sample: AuditSample, log: RunLog) -> Retrain:
    """Return `retrain` with a line in `log` after each run or segment of the sample, also after one that fails.

    A run that is trained twice, to confirm a difference, has one line.
    """
    progress = StudyProgress([n_images(project, run) for run in sample.chosen])
    ended = set()

    def retrain_and_say(run: StudyRun) -> RunResult:
        try:
            return retrain(run)
        finally:
            if (part := (run.fingerprint, run.first_link)) not in ended:
                ended.add(part)
                line = progress.end_run()
                log.info(f"verify: {line.replace('runs', 'segments') if run.is_segment else line}")

    return retrain_and_say


def n_images(project: Project, run: StudyRun) -> int:
    """Return the number of images that a run, or a segment of one, trains on."""
    sizes = run.spec.settings.batch_sizes
    steps = [0, *(link.step for link in project.runs[run.fingerprint].result.links)]
    first, last = steps[run.first_link], steps[-1 if run.n_links is None else run.n_links]
    # Steps are as recorded, and a record may be forged.
    return max(0, sizes.examples(last) - sizes.examples(first))
