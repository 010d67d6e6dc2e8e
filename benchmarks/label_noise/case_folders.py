"""Make the folders of cases and of their parts, and run stages in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.label_noise.case_images import CaseImages
from benchmarks.label_noise.cases import PRETRAINED, Case
from benchmarks.label_noise.folders import case_params, is_complete, make_folder
from benchmarks.label_noise.planning import CasePlan
from pipeline.commands.iterate.running import StageProcesses
from pipeline.config.params import Params, check_params
from pipeline.paths import DataPaths, WorkPaths


@dataclass(frozen=True, kw_only=True)
class CaseFolders:
    """What all cases of a run share.

    Attributes:
        work: folder of the cases.
        plan: None before the speed is measured.
        weights: file that pretrained variants start from.
    """

    work: Path
    params: Params
    plan: CasePlan | None
    weights: Path | None

    def check(self, case: Case) -> None:
        """Check before training that the parameters fit a case: a frozen extractor allows fewer than a trained one.

        Raises:
            InputError: they do not.
        """
        tree = case_params(self.params, case, steps=1, weights=self._weights(case))
        check_params(tree, source=f"--params for {case.name}")

    def make(self, case: Case, given: CaseImages, *, network: str | None = None) -> Path:
        """Make the folder of a case unless it exists, and return it.

        Args:
            network: in place of the first one of the parameters.

        Raises:
            InputError: it exists, of other arguments.
        """
        assert self.plan is not None
        steps = self.plan.steps(case.n_networks) if case.has_budget else None
        params = self.params.model_copy(update={"networks": (network or self.params.networks[0],)})
        folder, weights = self.work / case.name, self._weights(case)
        tree = case_params(params, case, steps=steps, weights=weights)
        if not is_complete(folder, case, tree, weights):
            make_folder(
                folder,
                case,
                given.base,
                labels=given.labels,
                truth=given.truth,
                class_names=given.class_names,
                params=tree,
                weights=weights,
            )
        return folder

    def run(self, folder: Path, stages: Sequence[str], *, network: str | None = None) -> DataPaths:
        """Run the unfinished stages in a folder, and return its data.

        Raises:
            StageFailedError: a stage failed; it has printed the reason.
        """
        data, network = DataPaths(root=folder / "data"), network or self.params.networks[0]
        processes = StageProcesses(network)
        with processes.forwarding_signals():
            for stage in stages:
                # A stage writes its provenance last.
                if not data.provenance(stage, network).exists():
                    print(f"{folder.name}: {stage}", flush=True)
                    processes.run(stage, folder / "params.yaml", data, WorkPaths(root=folder / "work"))
        return data

    def _weights(self, case: Case) -> Path | None:
        return self.weights if case.variant in PRETRAINED else None
