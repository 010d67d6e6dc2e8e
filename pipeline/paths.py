"""Paths of all artifacts. dvc.yaml declares the same paths; a test keeps the two equal."""

from dataclasses import dataclass
from pathlib import Path

TUNING_FIGURES = ("curves", "importance", "parallel")


def expand_home(path: Path | str) -> Path:
    """Return a path with `~` and `~user` expanded; unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


@dataclass(frozen=True, kw_only=True)
class DataPaths:
    """The files of one `data/` folder, by stage; `root` is that folder.

    Methods return one file per network, study or search.
    """

    root: Path = Path("data")

    # prepare
    def images(self, split: str) -> Path:
        """uint8 (N, H, W, 3) of `split`, "train" or "test"."""
        return self.root / "prepare" / f"{split}.npy"

    def manifest(self, split: str) -> Path:
        """One row per image of `split`."""
        return self.root / "prepare" / f"{split}.parquet"

    @property
    def prepare_metrics(self) -> Path:
        return self.root / "prepare" / "metrics.json"

    # finetune
    def extractor(self, network: str) -> Path:
        """Weights of the extractor."""
        return self.root / "finetune" / f"{network}.pt"

    def training_confidence(self, network: str) -> Path:
        """float32 (N,): mean probability of each training image's label late in training, NaN if not trained on."""
        return self.root / "finetune" / f"{network}.confidence.npy"

    def training_dynamics(self, network: str) -> Path:
        """One row per training image: averaged logit margin and forgetting events, NaN if not trained on."""
        return self.root / "finetune" / f"{network}.dynamics.parquet"

    def finetune_metrics(self, network: str) -> Path:
        return self.root / "finetune" / f"{network}.json"

    # extract
    def features(self, network: str, split: str = "train") -> Path:
        """float32 (N, D); names of the test split contain `.test`."""
        return self.root / "extract" / f"{network}{_suffix(split)}.npy"

    def features_by_network(self, network: str) -> Path:
        """float32 (K, N, D): the training images' features by each of K fold networks; K = 0 without folds."""
        return self.root / "extract" / f"{network}.by_network.npy"

    def probabilities(self, network: str) -> Path:
        """float32 (N, n_classes) of the training images, rows summing to 1."""
        return self.root / "extract" / f"{network}.probabilities.npy"

    def predictions(self, network: str, split: str = "train") -> Path:
        """One row per image: the predicted class and its probability."""
        return self.root / "extract" / f"{network}{_suffix(split)}.parquet"

    def extract_metrics(self, network: str) -> Path:
        return self.root / "extract" / f"{network}.json"

    # reduce
    def embedding(self, network: str, split: str = "train") -> Path:
        """One row per image: the coordinates of the main embedding."""
        return self.root / "reduce" / f"{network}{_suffix(split)}.parquet"

    def components(self, network: str) -> Path:
        """Principal components, float32 (N, n_components), of the training features."""
        return self.root / "reduce" / f"{network}.pca.npy"

    def embeddings(self, network: str) -> Path:
        """All embeddings of the training images, float32 (1 + M, N, 2); the first is the main one."""
        return self.root / "reduce" / f"{network}.maps.npy"

    def reduce_metrics(self, network: str) -> Path:
        return self.root / "reduce" / f"{network}.json"

    # filter
    def points(self, network: str) -> Path:
        """One row per training image: its embedding, score and decision."""
        return self.root / "filter" / network / "points.parquet"

    def kept(self, network: str) -> Path:
        """The images that the filter keeps."""
        return self.root / "filter" / network / "kept.csv"

    def dropped(self, network: str) -> Path:
        """The images that the filter drops."""
        return self.root / "filter" / network / "dropped.csv"

    def near_duplicates(self, network: str) -> Path:
        """One row per pair of near duplicates with a training image; no row if they were not searched for."""
        return self.root / "filter" / network / "near_duplicates.parquet"

    def filter_metrics(self, network: str) -> Path:
        return self.root / "filter" / network / "metrics.json"

    @property
    def overrides(self) -> Path:
        """The user's decisions to keep or drop images; tracked by git, not by DVC."""
        return self.root / "overrides.csv"

    # train
    def runs(self, study: str) -> Path:
        """One row per run."""
        return self.root / "train" / f"{study}.parquet"

    def history(self, study: str) -> Path:
        """Records of the runs' training curves."""
        return self.root / "train" / f"{study}.history.parquet"

    def correct(self, study: str) -> Path:
        """bool (runs, test images): whether a run classifies an image correctly."""
        return self.root / "train" / f"{study}.correct.npy"

    def train_metrics(self, study: str) -> Path:
        return self.root / "train" / f"{study}.json"

    def trained_weights(self, study: str) -> Path:
        """Weights of the study's best run."""
        return self.root / "train" / study / "best.pt"

    @property
    def live_metrics(self) -> Path:
        """Metrics of the run that trains, in DVCLive's layout. No stage depends on it, and DVC does not cache it."""
        return self.root / "live"

    def provenance(self, stage: str, item: str | None = None) -> Path:
        """Versions, parameters and inputs of a stage's files."""
        if stage == "filter":
            return self.root / stage / str(item) / "provenance.json"
        return self.root / stage / (f"{item}.provenance.json" if item else "provenance.json")

    @property
    def archive_record(self) -> Path:
        """Digests of the files that an archive of results has in place of those that the stages wrote."""
        return self.root / "archive.json"

    # report
    @property
    def report_page(self) -> Path:
        return self.root / "report" / "report.html"

    @property
    def report_document(self) -> Path:
        """The report as Markdown, with the figures of `figures`."""
        return self.root / "report" / "report.md"

    @property
    def summary(self) -> Path:
        """All numbers of the report, except those of landscapes."""
        return self.root / "report" / "summary.json"

    @property
    def report_metrics(self) -> Path:
        """The few numbers that `dvc metrics` and `dvc exp show` print."""
        return self.root / "report" / "metrics.json"

    @property
    def figures(self) -> Path:
        """A folder of SVG and PNG files."""
        return self.root / "report" / "figures"

    @property
    def resources(self) -> Path:
        """Wall time, memory and energy of each stage's last run. No stage depends on it, and DVC does not track it."""
        return self.root / "report" / "resources.json"

    @property
    def costs_page(self) -> Path:
        """Page about `resources`, also by arm; DVC does not track it."""
        return self.root / "report" / "costs.html"

    # output of `python -m pipeline iterate`; no stage depends on it
    def recursive_rounds(self, network: str) -> Path:
        """The images that each round of filtering and retraining kept."""
        return self.root / "recursive" / network / "rounds.json"

    def recursive_overrides(self, network: str) -> Path:
        """In the format of `overrides`; with it, `filter` keeps the images that the last round keeps."""
        return self.root / "recursive" / network / "overrides.csv"

    # output of `python -m pipeline landscape`; no stage depends on it
    def landscape(self, study: str) -> Path:
        """One row per network and split: curvature and slices of the loss around the weights."""
        return self.root / "landscape" / f"{study}.parquet"

    def landscape_figure(self, study: str) -> Path:
        return self.root / "landscape" / f"{study}.svg"

    # output of `python -m pipeline tune`; no stage depends on it
    def leaderboard(self, search: str) -> Path:
        """One row per trial, the best first."""
        return self.root / "tune" / search / "leaderboard.csv"

    @property
    def tuning_comparison(self) -> Path:
        """Comparison of the searches of one `python -m pipeline tune`, CSV."""
        return self.root / "tune" / "comparison.csv"

    def tuning_curves(self, search: str) -> Path:
        """One row per trial and epoch."""
        return self.root / "tune" / search / "curves.csv"

    def tuning_summary(self, search: str) -> Path:
        return self.root / "tune" / search / "summary.json"

    def tuning_page(self, search: str) -> Path:
        """The figures as one offline page."""
        return self.root / "tune" / search / "tuning.html"

    def tuning_figure(self, search: str, figure: str = "curves") -> Path:
        """One of `TUNING_FIGURES` as a file for papers."""
        assert figure in TUNING_FIGURES, figure
        return self.root / "tune" / search / f"{figure}.svg"

    def tuned(self, search: str) -> Path:
        """The parameter file, with the winner's values in the study."""
        return self.root / "tune" / search / "tuned.yaml"

    def tuning_provenance(self, search: str) -> Path:
        return self.root / "tune" / search / "provenance.json"


@dataclass(frozen=True, kw_only=True)
class WorkPaths:
    """Files for resuming and diagnosis: ignored by git and DVC, safe to delete."""

    root: Path = Path(".work")

    @property
    def ledger(self) -> Path:
        """The ledger: a folder for each finished run, named by its fingerprint."""
        return self.root / "cells"

    @property
    def plans_folder(self) -> Path:
        """The registered plans, in the folder of the ledger."""
        return self.ledger / "plans"

    def plans(self, study: str) -> Path:
        """The registered plans of a study, a file each, and the dates of its runs."""
        return self.plans_folder / study

    def largest_batch(self, study: str) -> Path:
        """The number that the train stage found for `largest` among a study's batch sizes."""
        return self.root / "largest_batch" / f"{study}.json"

    def checkpoints(self, stage: str) -> Path:
        """Checkpoints of unfinished runs of the stage, a folder for each, named by fingerprint and code."""
        return self.root / "checkpoints" / stage

    def kept_checkpoints(self, key: str) -> Path:
        """The states of a run at the links of its hash chain, by the run's key; see `studies.NAME.keep_checkpoints`."""
        return self.root / "kept" / key

    def file_cache(self, stage: str) -> Path:
        """The cache of the stage's results, a folder for each, named by its cache key."""
        return self.root / "finished" / stage

    def iteration(self, network: str) -> Path:
        """The rounds of `python -m pipeline iterate`, a folder each."""
        return self.root / "iterations" / network

    def search(self, search: str, fingerprint: str) -> Path:
        """Trials and checkpoints of a search of `python -m pipeline tune`, by the key of its inputs."""
        return self.root / "tune" / search / fingerprint

    @property
    def landscape(self) -> Path:
        """Networks that `python -m pipeline landscape` has measured, a file each."""
        return self.root / "landscape"

    @property
    def simulation_results(self) -> Path:
        """The default output folder of `python -m pipeline simulate`."""
        return self.root / "simulated"

    @property
    def downloads(self) -> Path:
        """Downloaded archives."""
        return self.root / "downloads"

    def log(self, stage: str) -> Path:
        """The log of a stage or command."""
        return self.root / "logs" / f"{stage}.log"

    def resources(self, stage: str) -> Path:
        """Wall time, memory and energy of a stage's last run."""
        return self.root / "resources" / f"{stage}.json"

    @property
    def dvc_lock(self) -> Path:
        """The content of dvc.lock when the last stage started, for `python -m pipeline repair`."""
        return self.root / "dvc.lock"

    @property
    def damaged_dvc_lock(self) -> Path:
        """The files that `python -m pipeline repair` replaced."""
        return self.root / "dvc.lock.damaged"

    def lock(self, stage: str) -> Path:
        """The file that a stage or command locks while it runs."""
        return self.root / "locks" / f"{stage}.lock"


def _suffix(split: str) -> str:
    assert split in ("train", "test"), split
    return "" if split == "train" else ".test"
