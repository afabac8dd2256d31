"""Files of one run of one config: what is released, and what is confidential.

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
from typing import TYPE_CHECKING

import jax
import numpy as np
from rich.console import Console

from dpmcmc import config as config_room
from dpmcmc import data as data_room
from dpmcmc.cli.place import Place
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import Config
from dpmcmc.data import DataSet
from dpmcmc.engine.chain_checks import check_on_disk
from dpmcmc.engine.life import Life
from dpmcmc.engine.mesh import sizes
from dpmcmc.engine.partitions import PartitionedRecords
from dpmcmc.engine.result import DivergedError, Result, netcdf, write_json
from dpmcmc.errors import InputError, printable
from dpmcmc.inference import predictive
from dpmcmc.inference.names import few
from dpmcmc.planning.making import check_fit
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
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.storage.released_files import is_sealed
from dpmcmc.storage.run_folder import RunFolder
from dpmcmc.targets import TargetError, check
from dpmcmc.targets.base import Target, target_offers
from dpmcmc.targets.predicting import with_label_scale

if TYPE_CHECKING:
    from dpmcmc.cli.per_record import RecordAccount
    from dpmcmc.diagnostics.reference import Laplace, MaximumAPosteriori

    Fit = Laplace | MaximumAPosteriori

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
    _drawn: tuple[Guarantee | None, ...] = ()

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
        return RunFolder(self.place.confidential, self.place.day, owner_only=True)

    def read(self) -> None:
        """Refuse records that do not fit the target or the ledger, and a sampler that does not fit the target.

        Raises:
            CommandError, DataError: one sentence.
        """
        try:
            self._check_on_disk()
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

    @property
    def on_disk(self) -> bool:
        """Whether records lie on disk, or are in partitions, where nothing is computed from all of them at once."""
        return self.data.partitions is not None or on_disk(self.data.train)

    def _check_on_disk(self) -> None:
        """Refuse a run that needs all records at once where the records lie on disk.

        Raises:
            CommandError: a one-shot mechanism, full batches, a second batch.
        """
        if not on_disk(self.data.train):
            return
        mechanism = self.config.mechanism
        plan = self.facts.trace
        if mechanism is not None or self.config.one_shot:
            method = "data.labels" if mechanism is None else f"mechanism: {mechanism.name}"
            raise CommandError(
                f"{method} computes from all records at once, and those of a folder are read batch "
                "by batch; store records that fit in memory in one .npz file, or use a sampler alone."
            )
        if plan is None:
            return
        try:
            check_on_disk(plan, self.data.train)
        except InputError as error:
            section = "sampler." if str(error).startswith("own_batch:") else ""
            raise CommandError(f"{section}{error}.") from None

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
        asked = self.config.run is not None and self.config.run.device != "auto"
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
        folder = self.place.run_folder
        said = self._privacy(self.life.guarantee)
        if not ended and is_sealed(self.place.folder):  # saved whole, and not settled yet
            return
        try:
            self._write_plan()
            (folder.seal if ended else folder.state)(said)
        except OSError as error:
            where = error.filename or self.place.folder
            raise CommandError(f"--out: {where} cannot be written ({error.strerror}); give another folder.") from None

    def _write_plan(self, fit: bool = False) -> Circumstances:
        circumstances = self.facts.circumstances(fit)
        self.place.run_folder.json(
            "plan.json",
            self.plan.to_json(self.facts.secret) | circumstances.to_json() | {"data": self.facts.data_json()},
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
        run_folder = self.run_folder(guarantee)
        # A run that went on elsewhere has spent more than was planned.
        said = self._privacy(guarantee)
        self.place.run_folder.state(said)
        run_folder.write("draws.nc", netcdf(result))
        result.write_trace(run_folder)
        self._draw_draws(result)
        metrics = self.released_facts() | result.diagnostics | result.verdict.to_json()
        metrics |= self._seconds(result, calibrate_seconds)
        flat = result.flat_draws()
        shown = {}
        if facts.test is not None:
            name = "draws" if guarantee is None else "private draws"
            shown[name] = predictive.predict(self._predicting(result), flat, dict(facts.test))
            metrics |= shown[name].to_json()
        run_folder.json("metrics.json", _finite(metrics))
        fitted = self._save_confidential(result)
        # A non-private fit may leave only where the records themselves may.
        if fitted is not None and facts.spec.public:
            metrics["non_private"] = fitted.summary
            if fitted.prediction is not None:
                shown[f"non-private ({fitted.name})"] = fitted.prediction
            run_folder.json("metrics.json", _finite(metrics))
        if facts.test is not None:
            self._draw_predictions(result, shown, facts.test["y"])
        pictures = self.pictures.save(run_folder)  # last, so that the results are saved even if a picture fails
        scores = run_text.scores(facts, metrics)
        # Whether the fit of public records worked is known only now.
        circumstances = self._write_plan(fit=metrics["non_private"] is not None)
        described = (facts.described(), facts.note(guarantee), scores, pictures)
        context = page.Context(facts.name, facts.day, *described, circumstances=circumstances)
        run_folder.write(page.FILE, result.page(context))
        if self.account is not None:
            self.account.save(everything, self.data.train)
        published = facts.publishable(guarantee)
        if not published:
            self.place.run_folder.json("metrics.json", _finite(self.released_facts()))
        self.place.run_folder.seal(said)
        if published:
            run_text.print_result(
                facts,
                guarantee,
                metrics,
                result.verdict,
                self.place.folder,
                self.place.confidential,
                console,
            )
        else:
            run_text.print_withheld(facts, self.place.confidential, console)
        return run_folder.folder

    def _predicting(self, result: Result) -> Target:
        """Return the target, whose labels vary as the release tells."""
        evidence = result.evidence
        return with_label_scale(self.target, None if evidence is None else evidence.label_scale)

    def _save_confidential(self, result: Result) -> _Fitted | None:
        """Write diagnostics.json; the non-private fit, where there is one."""
        body, fitted = self._confidential(result)
        if fitted is not None and not self.facts.spec.public:
            body["non_private"] = fitted.summary
        body["wall_seconds"] = result.wall_seconds
        body["outside_schema"] = self._outside
        body["about"] = "Computed from training records without privacy. Never publish or archive this folder."
        write_json(self.place.confidential / "diagnostics.json", _finite(body), mode=0o600)
        return fitted

    @property
    def _outside(self) -> dict[str, int] | None:
        """Values of each column that lay outside the schema; None without one."""
        records = self.life.work.records
        if isinstance(records, PartitionedRecords):
            return records.outside
        return self.data.outside

    def save_divergence(self, error: DivergedError) -> None:
        """Write at which step a chain left the range of floats, which is as public as its draws."""
        run_folder = self.run_folder(self.facts.planned)
        run_folder.json(
            "metrics.json",
            {**self.released_facts(), **NO_DRAWS.to_json(), "diverged_at": error.step},
        )
        if run_folder != self.place.run_folder:
            self.place.run_folder.json("metrics.json", self.released_facts())

    def _seconds(self, result: Result, calibrate_seconds: float) -> dict[str, object]:
        """Return the seconds before a record was read, and for public records those of a sampler's run."""
        wall: dict[str, float | None] = {"calibrate": calibrate_seconds}
        if self.facts.trace is None:
            return {"wall_seconds": wall}
        if not self.facts.spec.public:
            return {"wall_seconds": wall | {"compile": None, "run": None}}
        tenths = math.ceil(10 * result.wall_seconds["run"]) / 10
        rounded = dataclasses.replace(result, wall_seconds=result.wall_seconds | {"run": tenths})
        return {
            "wall_seconds": wall | rounded.wall_seconds,
            "steps_per_second": rounded.steps_per_second,
        }

    def draw_planned(self, guarantee: Guarantee | None) -> None:
        """Begin the pictures of a temperature that varies and of ε at every δ, unless they show this guarantee."""
        if self._drawn == (guarantee,):
            return
        self._drawn = (guarantee,)
        plan = self.facts.trace
        draw = self.pictures.begin
        said = (self.facts.title(guarantee), self.facts.note(guarantee))
        if plan is not None and np.ptp(plan.temperatures) > 1e-6 * plan.temperatures.max():
            draw("temperature", "", plan.temperatures, plan.noise_multipliers, *said)
        if guarantee is not None and np.isfinite(guarantee.epsilon):
            draw("epsilon_delta", _EPSILON_DELTA, guarantee, *said)

    def _draw_draws(self, result: Result) -> None:
        """Begin the pictures of the draws, and draw the planned ones again if the run has come to cost more."""
        guarantee = result.guarantee
        plan = self.facts.trace
        said = self.facts.title(guarantee), self.facts.note(guarantee)
        if plan is not None:
            shown = few(result.released, result.columns)
            kept = (plan.burn_in, plan.thin)
            self.pictures.begin("traces", _TRACES, shown, kept, *said)
        self.draw_planned(guarantee)

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

    def _confidential(self, result: Result) -> tuple[dict[str, object], _Fitted | None]:
        """Return (diagnostics of records, non-private fit or None).

        Whether they can be computed, and whether a library warns, depends on the records: a failure is written to these
        diagnostics and changes nothing else.
        """
        out: dict[str, object] = {"train": None}
        flat = result.flat_draws()
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                out |= self._scores(self._predicting(result), flat)
            except Exception as error:  # whatever a target of a user's own raises
                out["failed"] = str(error)
            if self.on_disk:
                return out, None
            try:
                return out, self._fitted(flat)
            except Exception as error:
                out["non_private"] = {"failed": str(error)}
                return out, None

    def _scores(self, target: Target, flat: PyTree) -> dict[str, object]:
        """Return scores of training records, and of held-out ones that are not public."""
        if self.on_disk:
            out: dict[str, object] = {"train": None, "skipped": _SKIPPED}
        else:
            out = {"train": predictive.predict(target, _some(flat), self.data.train).to_json()}
        if self.data.test is not None and not self.data.test_is_public:
            out |= predictive.predict(target, flat, self.data.test).to_json()
        return out

    def _fitted(self, flat: PyTree) -> _Fitted:
        """Return the non-private fit, the distance of the draws from it, and its predictions."""
        from dpmcmc.diagnostics import reference

        fit = _fits.of(self.config, self.target, self.data.train)
        summary: dict[str, object] = {"method": fit.method, "distance": None}
        if isinstance(fit, reference.Laplace):
            summary["distance"] = reference.distance(fit, flat)
        else:
            summary["reason"] = fit.reason
        prediction = None
        if self.data.test is not None:
            prediction = predictive.predict(self.target, fit.draws(200), self.data.test)
            summary |= prediction.to_json()
        return _Fitted(fit.method.split()[0], summary, prediction)


class _Fits:
    """The last non-private fit of this process: configs of a sweep have one target and one set of records."""

    def __init__(self) -> None:
        self._of: tuple[object, list[np.ndarray]] | None = None

    def of(self, config: Config, target: Target, records: PyTree) -> Fit:
        """Return the fit of a config's target to records, which are compared with the last ones."""
        from dpmcmc.diagnostics import reference

        # The data's section has the facts that a target takes from them; a path is written from each config's folder.
        described = config.model_dump(mode="json", include={"target", "data"}, exclude={"data": {"path"}})
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(records)]
        same = (
            self._of is not None
            and self._of[0] == described
            and len(self._of[1]) == len(leaves)
            and all(map(np.array_equal, self._of[1], leaves))
        )
        if not same:
            self._of = None
            self._fit: Fit = reference.fit(target, records)
            self._of = (described, leaves)
        return self._fit


_fits = _Fits()

#: Draws, at most about, that score the training records, which are the largest table and for the data holder alone.
_SCORING = 200


def _some(flat: PyTree) -> PyTree:
    """Return evenly spread draws out of leaves (draws, ...)."""
    return jax.tree.map(lambda leaf: leaf[:: max(1, len(leaf) // _SCORING)], flat)


#: diagnostics.json of records on disk or in partitions.
_SKIPPED = "Scores of the training records and the non-private fit would need all records at once, which lie on disk."


@dataclass(frozen=True)
class _Fitted:
    """A non-private fit: its short name, what metrics.json says of it, and its prediction of test rows."""

    name: str
    summary: dict[str, object]
    prediction: predictive.Prediction | None


def _finite(body: object) -> object:
    """Replace numbers that are not finite by null, since JSON has no NaN."""
    if isinstance(body, dict):
        return {k: _finite(v) for k, v in body.items()}
    if isinstance(body, float) and not np.isfinite(body):
        return None
    return body
