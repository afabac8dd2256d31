"""Files of one run of one config: those of ``Result.save``, and those that the command adds.

``report/console.py`` makes the lines that are printed before a record is read. Later output is computed from draws that
the guarantee covers, or lies in ``confidential/``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from dpmcmc import config as config_room
from dpmcmc import data as data_room
from dpmcmc.cli.diagnostics import diagnose
from dpmcmc.cli.place import Place
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import Config
from dpmcmc.data import DataSet
from dpmcmc.engine.life import Life
from dpmcmc.engine.mesh import sizes
from dpmcmc.engine.partitions import PartitionedRecords
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.errors import InputError, printable
from dpmcmc.inference import predictive
from dpmcmc.inference.names import few
from dpmcmc.mechanisms.chain import check_fit
from dpmcmc.planning.permitted_uses import NO_DRAWS
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.report import console as run_text
from dpmcmc.report import page
from dpmcmc.report.circumstances import Circumstances
from dpmcmc.report.pictures import Pictures
from dpmcmc.report.privacy_json import privacy_json
from dpmcmc.report.public_facts import Declared, PublicFacts
from dpmcmc.storage.checkpoint import CheckpointError
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.storage.released_files import is_sealed
from dpmcmc.storage.run_folder import RunFolder
from dpmcmc.targets import TargetError, check
from dpmcmc.targets.base import Target, target_offers
from dpmcmc.targets.predicting import with_label_scale

if TYPE_CHECKING:
    from dpmcmc.cli.per_record import RecordAccount

#: Coefficients of one's own table on the screen; the page has all.
_SHOWN = 12
#: Captions of pictures.
_TRACES = "Traces of up to six parameters as the model has them, one line for each chain"
_EPSILON_DELTA = (
    "ε at every δ: one run promises less (a larger ε) the more rarely its promise may fail (a smaller δ), and the dot "
    "is the pair that it states"
)


@dataclass
class ConfiguredRun:
    """One run of one config: its plan, its data, its folders, and its life.

    Attributes:
        account: of every record, where one was asked for.
        pictures: of the run.
    """

    config: Config
    plan: Plan
    data: DataSet
    place: Place
    life: Life
    account: RecordAccount | None = None
    pictures: Pictures = field(default_factory=Pictures)

    @functools.cached_property
    def facts(self) -> PublicFacts:
        """Public facts of the run, known once the target has been found to fit the records."""
        secret = config_room.is_secret(self.config)
        declared: Declared = {
            "generated": self.config.data.generated,
            "settings": self.config.data.settings_chosen,
            "asked": None if self.config.privacy is None else self.config.privacy.epsilon,
            "command": self.place.named,
        }
        return PublicFacts.of(self.config.name, self.plan, secret, self.data, self.place.day, **declared)

    @property
    def target(self) -> Target:
        """The plan's target, bound to the shapes of the records."""
        return self.facts.target

    def run_folder(self, guarantee: Guarantee | None) -> RunFolder:
        """Return the folder of draws with this guarantee, and of what is computed from them."""
        if self.facts.publishable(guarantee):
            return self.place.run_folder
        return self.place.apart

    def read(self) -> None:
        """Refuse records that do not fit the target or the ledger, and a sampler that does not fit the target.

        Raises:
            CommandError, DataError: one sentence.
        """
        if on_disk(self.data.train) and (self.config.mechanism is not None or self.config.one_shot):
            mechanism = self.config.mechanism
            method = "data.labels" if mechanism is None else f"mechanism: {mechanism.name}"
            raise CommandError(
                f"{method} computes from all records at once, and those of a folder are read batch by batch; store "
                "records that fit in memory in one .npz file, or use a sampler alone."
            )
        try:
            check(self.plan.target, self.data.train)
            predictive.check(self.target, self.data.train)
            if self.facts.trace is not None:
                check_fit(self.target, self.facts.trace.sampler)
        except TargetError as error:
            raise CommandError(f"target: {error}.") from None
        except InputError as error:
            raise data_room.DataError(f"data.{error}.") from None
        try:  # before a file of the run that was stopped is written anew
            self.life.read(self.data)
        except CheckpointError as error:
            raise CommandError(f"--resume: {error}.") from None
        if self.account is not None:
            self.account.prepare(self.life, self.data.train, self.place.confidential)

    def finish(self) -> None:
        """Close the ledger's entry and erase the keys, since everything that the run releases has been written."""
        with warnings.catch_warnings(record=True) as said:
            self.life.settle()
        for one in said:
            print(f"warning: {printable(str(one.message))}", file=sys.stderr)
        self.place.checkpoint.remove()

    def print_plan(self, console: Console) -> None:
        """Say what will be done."""
        mesh = self.life.mesh
        used = self.life.device
        asked = self.config.where.device != "auto"
        run_text.print_plan(
            self.facts,
            None if mesh is None else sizes(mesh),
            used if asked or used["platform"] != "cpu" else None,
            console,
        )

    def open(self, ended: bool = False) -> None:
        """Write plan.json and privacy.json before anything is released, so that a run's cost is stated from the start.

        Args:
            ended: whether the run has ended without draws; then privacy.json is final.
        """
        if not ended and is_sealed(self.place.folder):  # saved whole, and not settled yet
            return
        folder = self.place.run_folder
        self._write_plan()
        (folder.seal if ended else folder.state)(self._privacy(self.life.guarantee))

    def _write_plan(self, fit: bool = False) -> Circumstances:
        circumstances = self.facts.circumstances(fit)
        self.place.run_folder.json(
            "plan.json",
            self.plan.describe(self.facts.secret).stated | circumstances.to_json() | {"data": self.facts.data_json()},
        )
        return circumstances

    def _privacy(self, guarantee: Guarantee | None) -> dict[str, object]:
        receipt = None if self.life.reservation is None else self.life.reservation.receipt
        return privacy_json(self.plan, guarantee, self.facts.data_json(), receipt)

    def save(self, everything: Result, calibrate_seconds: float, console: Console) -> Path:
        """Write draws, metrics and what is confidential, then figures and the page, and print what is released.

        Args:
            everything: what was run; with an account of every record, the draws of all steps.
            calibrate_seconds: that planning took.
            console: to print on.

        Returns:
            Folder of the draws: the confidential one where these may not be published.
        """
        guarantee = everything.guarantee
        facts = self.facts
        kept = everything if self.account is None else self.account.kept(everything)
        result = dataclasses.replace(kept, columns=facts.columns)
        folder = self.run_folder(guarantee)
        said = self._privacy(guarantee)
        self.place.run_folder.state(said)
        result.save(folder)
        self._draw_run(result)
        metrics, shown = self._measure(result)
        metrics |= self._seconds(result, calibrate_seconds)
        self._write_metrics(folder, metrics)
        if facts.test is not None:
            self._draw_predictions(result, shown, facts.test["y"])
        pictures = self.pictures.save(folder)  # last, so that the results are saved even if a picture fails
        scores = run_text.scores(facts, metrics)
        # Whether the fit of public records worked is known only now.
        circumstances = self._write_plan(fit=metrics["non_private"] is not None)
        described = (facts.described(), facts.note(guarantee), scores, pictures)
        context = page.Context(facts.name, facts.day, *described, circumstances=circumstances)
        folder.write(page.FILE, result.page(context))
        if self.account is not None:
            self.account.save(everything, self.data.train)
        self.place.run_folder.seal(said)
        places = (self.place.folder, self.place.confidential)
        if facts.publishable(guarantee):
            if self.config.data.path is not None and facts.spec.schema is not None:
                console.print(result.summary(most=_SHOWN).table)
            run_text.print_result(facts, guarantee, metrics, result.verdict, *places, console)
        else:
            run_text.print_withheld(facts, self.place.confidential, console)
        return folder.folder

    def _measure(self, result: Result) -> tuple[dict[str, object], dict[str, predictive.Prediction]]:
        """Return metrics.json and predictions of public test rows; write what is for the data holder alone."""
        facts = self.facts
        metrics = self.released_facts() | result.diagnostics | result.verdict.to_json()
        shown = {}
        scale = None if result.evidence is None else result.evidence.label_scale
        predicting = with_label_scale(self.target, scale)
        if facts.test is not None:
            name = "draws" if result.guarantee is None else "private draws"
            shown[name] = predictive.predict(predicting, result.flat_draws(), dict(facts.test))
            metrics |= shown[name].to_json()
        hidden, fitted = diagnose(self.target, predicting, self.data, result)
        fit: Any = hidden.get("non_private")
        # A non-private fit may leave only where the records themselves may.
        if facts.spec.public and fit is not None and "failed" not in fit:
            metrics["non_private"] = hidden.pop("non_private")
            if fitted is not None:
                shown[f"non-private ({fit['method'].split()[0]})"] = fitted
        records = self.life.work.records
        outside = records.outside if isinstance(records, PartitionedRecords) else self.data.outside
        self.place.apart.json("diagnostics.json", hidden | {"outside_schema": outside})
        return metrics, shown

    def _write_metrics(self, folder: RunFolder, metrics: dict[str, object]) -> None:
        """Write metrics.json beside the draws; where these may not be published, one of public facts is."""
        folder.json("metrics.json", metrics)
        if folder is not self.place.run_folder:
            self.place.run_folder.json("metrics.json", self.released_facts())

    def save_divergence(self, error: DivergedError) -> None:
        """Write at which step a chain left the range of floats, which is as public as its draws."""
        metrics = {**self.released_facts(), **NO_DRAWS.to_json(), "diverged_at": error.step}
        self._write_metrics(self.run_folder(self.facts.planned), metrics)

    def _seconds(self, result: Result, calibrate_seconds: float) -> dict[str, object]:
        """Return the seconds before a record was read, and for public records those of a sampler's run."""
        wall: dict[str, float | None] = {"calibrate": calibrate_seconds}
        if self.facts.trace is None:
            return {"wall_seconds": wall}
        if not self.facts.spec.public:
            return {"wall_seconds": wall | {"compile": None, "run": None}}
        tenths = math.ceil(10 * result.wall_seconds["run"]) / 10
        rounded = dataclasses.replace(result, wall_seconds=result.wall_seconds | {"run": tenths})
        return {"wall_seconds": wall | rounded.wall_seconds, "steps_per_second": rounded.steps_per_second}

    def _draw_run(self, result: Result) -> None:
        """Begin the pictures of the draws, of a temperature that varies, and of ε at every δ."""
        guarantee = result.guarantee
        plan = self.facts.trace
        draw = self.pictures.begin
        said = self.facts.title(guarantee), self.facts.note(guarantee)
        if plan is not None:
            draw("traces", _TRACES, few(result.released, result.columns), (plan.burn_in, plan.thin), *said)
        if plan is not None and np.ptp(plan.temperatures) > 1e-6 * plan.temperatures.max():
            draw("temperature", "", plan.temperatures, plan.noise_multipliers, *said)
        if guarantee is not None and np.isfinite(guarantee.epsilon):
            draw("epsilon_delta", _EPSILON_DELTA, guarantee, *said)

    def _draw_predictions(self, result: Result, shown: dict[str, predictive.Prediction], y: np.ndarray) -> None:
        """Draw reliability of classifiers, and predicted against observed of other targets, on public test labels y."""
        said = self.facts.title(result.guarantee), self.facts.note(result.guarantee)
        pairs = {k: predictive.reliability(p.probability, y) for k, p in shown.items() if p.probability is not None}
        curves = {name: (predictive.calibration_curve(*pair), pair[0]) for name, pair in pairs.items()}
        means = {k: p.mean for k, p in shown.items() if p.mean is not None}
        if curves:
            two = target_offers(self.target).num_classes == 2
            event = "y = 1" if two else "the likeliest class being right"
            self.pictures.begin("calibration", "Calibration on public test rows", curves, event, *said)
        if means:
            self.pictures.begin("predictions", "Predictions of public test rows", means, y, *said)

    def released_facts(self) -> dict[str, object]:
        """metrics.json before anything is measured."""
        return self.facts.metrics() | {"device": self.life.device}
