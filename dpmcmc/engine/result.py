"""A Result: draws with their guarantee, and how it is written down; or the error of a run whose chain diverged.

``draws.nc`` follows ArviZ's schema: a netCDF file with groups ``posterior`` and ``sample_stats``, dimensions
``chain`` and ``draw`` first, so ``arviz.from_netcdf`` opens it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import math
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.engine.recorded import Means
from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference.evidence import FILE as EVIDENCE_FILE
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.metric import ReleasedMetric
from dpmcmc.inference.trace import FILE as TRACE_FILE
from dpmcmc.inference.trace import NoiseAwarePosterior, Trace
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.description import html_table
from dpmcmc.planning.path import trace_of
from dpmcmc.planning.verdict import Verdict
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.run_folder import RunFolder, today

if TYPE_CHECKING:
    import xarray


class DivergedError(RuntimeError):
    """A chain left the range of floats. Every step up to then was released, so its cost is spent."""

    def __init__(self, step: int, norm: float, guarantee: Guarantee | None) -> None:
        self.step = step
        spent = "" if guarantee is None else f" The run still spent {guarantee}."
        super().__init__(
            f"the chain diverged by step {step}{f' (last norm {norm:.3g})' if norm else ''}: lower "
            f"sampler.step_size, or privacy.clip so that less noise is needed.{spent}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Everything that a run releases.

    Attributes:
        plan: what was run.
        draws: parameters in the model's own coordinates, leaves (chains, draws, ...).
        positions: what the chain moved, a pytree like the target's parameters; the draws themselves for most targets.
        info: sampler's Info at the kept steps, leaves (chains, draws); None of a mechanism's release.
        guarantee: None when the plan has no privacy or the key was not secret.
        wall_seconds: ``compile`` and ``run``; ``run`` alone of a mechanism. They may depend on the records (a NUTS
            trajectory is as long as it is), and no guarantee covers them: publish them of public records alone.
        receipt: of the run's entry in its ledger, or None without one.
        metric: that the run released before its first step, covered by the guarantee; None without one.
        means: of the path from one draw to the next (``recorded.py``), which ``trace`` is made of; None where none are
            kept.
        evidence: what draws of mechanism noise_aware rest on, for checks and Bayes factors at no further cost; None of
            other runs.
    """

    plan: AnyPlan
    draws: PyTree
    positions: PyTree
    info: PyTree
    guarantee: Guarantee | None
    wall_seconds: dict[str, float]
    receipt: Receipt | None = None
    metric: ReleasedMetric | None = None
    means: Means | None = None
    evidence: Evidence | None = None

    @functools.cached_property
    def trace(self) -> Trace:
        """Path of the run after burn-in, as it was released.

        Raises:
            UnsupportedCombination: no posterior follows from it; the reason, and what would be needed.
        """
        return trace_of(self.plan, self.draws, self.means, self.metric)

    def noise_aware(self, gram: np.ndarray | None = None) -> NoiseAwarePosterior:
        """Return the posterior given all that a run in a metric released: its intervals account for the noise.

        It costs nothing more. The intervals hold if the model and its prior are true. A saved run has
        it too: ``dpmcmc.inference.Trace.load(folder).posterior()``.

        Args:
            gram: public second moment Σ x xᵀ/N of the rows, (d, d); None: the one that the metric was made of.

        Raises:
            UnsupportedCombination: the run does not identify a posterior; the reason, and what would.
        """
        return self.trace.posterior(gram)

    @property
    def steps_per_second(self) -> float | None:
        """Steps of all chains together, per second of running; None of a mechanism's release."""
        plan = self.plan.trace
        if plan is not self.plan:
            return None
        return plan.steps * plan.chains / max(self.wall_seconds["run"], 1e-9)

    def __repr__(self) -> str:
        shapes = jax.tree.map(np.shape, self.draws)
        return f"Result(draws of shape {shapes}, {self.guarantee or 'no guarantee'})"

    @functools.cached_property
    def diagnostics(self) -> dict[str, float | None]:
        """``ess`` and ``rhat`` of the draws, each the worst over coordinates.

        None where draws are too few, and of a one-shot mechanism, whose draws are no chain.
        """
        from dpmcmc.inference import convergence

        return {"ess": None, "rhat": None} if self.plan.trace is None else convergence.summary(self.draws)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """Permitted uses of the draws, and why: the plan's verdict, and what R-hat and ESS of the draws say."""
        return self.plan.verdict_of(self.diagnostics, self.metric)

    @property
    def usable_for(self) -> list[str]:
        """Out of ``prediction`` and ``intervals``; empty for nothing."""
        return list(self.verdict.usable_for)

    def _repr_html_(self) -> str:
        return html_table([("result", repr(self)), *self.verdict.lines()])

    def flat_draws(self) -> PyTree:
        """Positions of all chains in one axis, leaves (chains·draws, ...): what the target's functions take."""
        return jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), self.positions)

    def save(self, folder: str | Path, *, public: bool = False, day: datetime.date | None = None) -> Path:
        """Write ``privacy.json``, ``plan.json`` and then ``draws.nc`` into a folder: no draw without what it cost.

        Args:
            folder: made if it is not there. Without a finite guarantee what is made is readable by its owner alone.
            public: whether the records are public, so that draws without a guarantee may be published too.
            day: that the files bear, on which the run began; None: today.
        """
        covered = self.guarantee is not None and math.isfinite(self.guarantee.epsilon)
        run_folder = RunFolder(Path(folder), day or today(), owner_only=not (covered or public))
        run_folder.make()
        run_folder.json("privacy.json", privacy_json(self.plan, self.guarantee, receipt=self.receipt))
        run_folder.json("plan.json", self.plan.to_json(secret=self.guarantee is not None))
        run_folder.write("draws.nc", draws_content(self.draws, self.info, self.guarantee, self.metric))
        self.write_trace(run_folder)
        return run_folder.folder

    def write_trace(self, run_folder: RunFolder) -> None:
        """Write ``trace.npz``, where a posterior may follow from the path; ``evidence.npz``, where draws rest on it."""
        if self.evidence is not None:
            run_folder.write(EVIDENCE_FILE, self.evidence.content())
        if self.means is not None:
            with contextlib.suppress(UnsupportedCombination):
                run_folder.write(TRACE_FILE, self.trace.content())


def privacy_json(
    plan: AnyPlan, guarantee: Guarantee | None, data: dict[str, object] | None = None, receipt: Receipt | None = None
) -> dict[str, object]:
    """Return what a reader needs to defend, recompute or compose the guarantee of a run."""
    charged = {} if receipt is None else {"ledger": receipt.to_json()}
    body = guarantee_json(guarantee, getattr(plan.target, "unit", "record"))
    return body | plan.facts() | {"data": data} | charged


def guarantee_json(guarantee: Guarantee | None, unit: str = "record") -> dict[str, object]:
    """A guarantee, or the sentence that there is none, with its unit, versions and the other accountants' ε."""
    said = ["No guarantee: privacy was not asked for, or the noise keys of this run are not secret."]
    body: dict[str, object] = dict.fromkeys(("epsilon", "delta", "adjacency", "release", "accountant"))
    body |= {"assumptions": said, "events": []} if guarantee is None else guarantee.to_json()
    cross_check = dict.fromkeys(("advanced", "rdp", "pld")) if guarantee is None else guarantee.cross_check()
    return body | {"unit": unit, "versions": versions(), "cross_check": cross_check}


def versions() -> dict[str, str]:
    """Versions of what computed the guarantee."""
    out = {}
    for name in ("dpmcmc", "jax", "numpy", "scipy"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "source"
    return out


def write_json(path: Path, body: object, mode: int = 0o644) -> None:
    """Write strict JSON (no NaN) through a temporary file, so that no half-written file is ever seen."""
    text = json.dumps(body, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text), mode)


def draws_content(
    draws: PyTree, info: PyTree, guarantee: Guarantee | None, metric: ReleasedMetric | None = None
) -> bytes:
    """A netCDF file in ArviZ's schema; ε, δ and adjacency are attributes of its groups.

    ``info`` is None where a release has no steps to tell of. A released metric is the group ``metric``: its arrays, and
    an attribute ``facts`` of JSON (:meth:`ReleasedMetric.of`).
    """
    groups = {"posterior": to_dataset(draws)}
    if info is not None:
        groups["sample_stats"] = to_dataset(info._asdict() if hasattr(info, "_asdict") else info)
    import xarray  # takes half a second, which planning does not need

    if metric is not None:
        matrices = {name: (("row", "column"), matrix) for name, matrix in metric.arrays().items()}
        groups["metric"] = xarray.Dataset(matrices, attrs={"facts": json.dumps(metric.facts())})
    tree = xarray.DataTree.from_dict(groups)
    for group in tree.children.values():
        group.attrs["guarantee"] = "none" if guarantee is None else str(guarantee)
    # In memory: HDF5 does not survive a disk that fills up under it.
    return bytes(tree.to_netcdf(None, engine="h5netcdf"))


def to_dataset(tree: PyTree) -> xarray.Dataset:
    """An xarray Dataset with dimensions (chain, draw, ...), one variable per leaf, named by its path."""
    import xarray

    variables = {}
    for name, leaf in leaf_names(tree).items():
        array = np.asarray(leaf)
        extra = [f"{name}_dim_{i}" for i in range(array.ndim - 2)]
        variables[name] = (("chain", "draw", *extra), array)
    chains, draws = next(iter(variables.values()))[1].shape[:2]
    return xarray.Dataset(variables, coords={"chain": np.arange(chains), "draw": np.arange(draws)})


def leaf_names(tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves of a pytree by their paths, joined by dots; a lone leaf is ``theta``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator=".") or "theta": leaf for path, leaf in leaves}
