"""One-shot mechanism: it reads all records once and lets one estimate, or a few draws, leave.

A mechanism settles its guarantee and every number that the guarantee rests on in ``plan``, from public
quantities alone; ``draw`` is its single declared access to the records. Adding one is one file and one line
of ``MECHANISMS``.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from dpmcmc import targets
from dpmcmc.engine.blocks import DivergedError
from dpmcmc.engine.charged_again import with_charged_again
from dpmcmc.engine.processes import check_not_forked
from dpmcmc.engine.reservation import Reservation, reserved
from dpmcmc.errors import InputError
from dpmcmc.planning.description import html_table
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.verdict import Verdict, of_mechanism, of_release
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.rounding import round_up
from dpmcmc.privacy.ledger import Ledger, Receipt
from dpmcmc.privacy.query.randomness import SecretKey, Streams, is_secret, streams_of
from dpmcmc.storage.checkpoint import Checkpoint, opened
from dpmcmc.storage.compiled_programs import refuse_unsafe_caches


class Mechanism(Protocol):
    """A one-shot private estimator; its fields are what a YAML says about it."""

    def plan(
        self, target: Any, *, num_records: int, epsilon: float, delta: float, adjacency: str = "replace_one"
    ) -> MechanismPlan:
        """Settle guarantee and settings; reads no record.

        Raises:
            UnsupportedCombination: no derivation for this target or adjacency.
            ValueError: impossible numbers, named by the argument first.
            CalibrationError: the target (ε, δ) is out of reach.
        """

    def draw(self, plan: MechanismPlan, records: Any, streams: Streams) -> Any:
        """The release: a pytree like the target's parameters, leaves (draws, ...), NumPy.

        Args:
            plan: made by :meth:`plan`.
            records: pytree of NumPy arrays, leaves (N, ...), checked against the target and its public bounds.
            streams: secret keys of this run, one stream per purpose.
        """


@dataclass(frozen=True, eq=False)
class MechanismPlan:
    """A one-shot release before it reads a record.

    Attributes:
        mechanism: what is released, and how.
        target: the model, bound to its public facts.
        num_records: N, public.
        guarantee: of everything that leaves.
        settings: public numbers that were settled (temper, noise std, ...), for people and for ``plan.json``.
        draws: how many draws leave.
        first: plan of the draw that a hybrid's run starts from, or None.
        run: plan of a hybrid's run, or None.
    """

    mechanism: Any
    target: Any
    num_records: int
    guarantee: Guarantee
    settings: dict[str, float]
    draws: int = 1
    first: MechanismPlan | None = None
    run: Plan | None = None

    @property
    def charged_draws(self) -> int:
        """Posterior draws that the guarantee must charge for; 0 for a point estimate."""
        if self.first is not None:
            return self.first.charged_draws
        return 0 if getattr(self.mechanism, "release", None) == "estimate" else self.draws

    @functools.cached_property
    def verdict(self) -> Verdict:
        """Permitted uses of the release, and why."""
        return of_mechanism(self)

    @property
    def usable_for(self) -> list[str]:
        """Out of ``prediction`` and ``intervals``; empty for nothing."""
        return list(self.verdict.usable_for)

    def to_json(self, secret: bool = True) -> dict[str, Any]:
        """The plan in numbers; holds no record and no key. ``secret``: whether the release's noise is."""
        return {
            "target": repr(self.target),
            "mechanism": repr(self.mechanism),
            "num_records": self.num_records,
            "draws": self.draws,
            "settings": self.settings,
            "run": None if self.run is None else self.run.to_json(secret),
            "guarantee": self.guarantee.to_json() if secret else None,
            **self.verdict.to_json(),
        }

    def lines(self, secret: bool = True) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe the plan to a person."""
        known = f"NONE: insecure_noise_seed makes the noise known (secret noise would give {self.guarantee})"
        out = [("target", repr(self.target)), ("mechanism", repr(self.mechanism))]
        if self.run is not None:
            # The run's own guarantee and verdict already cover the draw before it.
            out += [line for line in self.run.lines(secret) if line[0] not in ("target", "sampler")]
        else:
            out.append(("guarantee", str(self.guarantee) if secret else known))
        said = (f"{name} {_said(name, value)}" for name, value in self.settings.items())
        out.append(("settings", ", ".join(said)))
        return out if self.run is not None else out + self.verdict.lines()

    def _repr_html_(self) -> str:
        return html_table(self.lines())

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {text}" for name, text in self.lines())


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """Everything that a mechanism released.

    Attributes:
        plan: what was run.
        draws: parameters in the model's own coordinates, leaves (chains, draws, ...); one chain but for a hybrid.
        positions: a pytree like the target's parameters; the draws themselves for most targets.
        guarantee: None when the key was not secret.
        seconds: wall time, which may depend on the records (a NUTS trajectory is as long as it is) and is covered by no
            guarantee: never publish it.
        receipt: of the release's entry in its ledger, or None without one.
    """

    plan: MechanismPlan
    draws: Any
    positions: Any
    guarantee: Guarantee | None
    seconds: float
    receipt: Receipt | None = None

    def flat_draws(self) -> Any:
        """Positions of all chains in one axis, leaves (chains·draws, ...): what the target's functions take."""
        return jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), self.positions)

    @functools.cached_property
    def diagnostics(self) -> dict[str, float | None]:
        """``ess`` and ``rhat`` of a hybrid's draws, as of :class:`dpmcmc.Result`; None each for other mechanisms."""
        from dpmcmc.inference import convergence

        return {"ess": None, "rhat": None} if self.plan.run is None else convergence.summary(self.draws)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """Permitted uses of the release, and why; for a hybrid with what its draws say of mixing."""
        return of_release(self.plan, self.diagnostics)

    @property
    def usable_for(self) -> list[str]:
        """Out of ``prediction`` and ``intervals``; empty for nothing."""
        return list(self.verdict.usable_for)

    def _repr_html_(self) -> str:
        return html_table([("release", repr(self)), *self.verdict.lines()])

    def __repr__(self) -> str:
        return f"Release(draws of shape {jax.tree.map(np.shape, self.draws)}, {self.guarantee or 'no guarantee'})"


def release(
    plan: MechanismPlan,
    data: Any,
    *,
    key: SecretKey | jax.Array | int | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
    ledger: Reservation | Ledger | str | Path | None = None,
) -> Release:
    """Read the records once and release what the plan says.

    Args:
        plan: from ``mechanism.plan``.
        data: pytree of arrays with leading axis N = ``plan.num_records``.
        key: None or a ``SecretKey``: fresh OS entropy, and the release carries its guarantee. A JAX key or an int
            makes it reproducible, and takes the guarantee away.
        checkpoint: folder that keeps the keys, so that a release that was stopped is made again to the same bits;
            elsewhere it takes fresh keys and is charged again. Confidential; remove it once the draws are saved.
        ledger: budget ledger to charge before a record is read, as for :func:`dpmcmc.sample`.

    Raises:
        ValueError: wrong N or shapes, rows that are not finite or beyond the target's public bounds.
        LedgerError: the release is over the ledger's budget.
        CheckpointError: the checkpoint is of another plan or other records.
        DrawError: no draw could be made. The failure depends on the records: for the data holder alone.
        UnsafeCache: somebody else can change what is in a cache folder.
    """
    refuse_unsafe_caches()
    check_not_forked()
    guarantee, label = plan.guarantee if is_secret(key) else None, type(plan.mechanism).__name__
    with opened(checkpoint) as kept, reserved(ledger, guarantee, label, kept, plan.num_records) as held:
        records = _check_records(plan, data)
        if held is not None and held is not ledger:
            held.identify(data)
        streams, _ = streams_of(key)
        if kept is not None:
            streams, guarantee = _kept_keys(plan, data, streams, guarantee, kept, held)
        if held is not None:
            held.start(plan.guarantee)
        drawn = _drawn(plan, records, streams, guarantee, kept)
        return drawn if held is None else dataclasses.replace(drawn, receipt=held.receipt)


def _kept_keys(
    plan: MechanismPlan,
    data: Any,
    streams: Streams,
    guarantee: Guarantee | None,
    kept: Checkpoint,
    held: Reservation | None,
) -> tuple[Streams, Guarantee | None]:
    """(keys, guarantee) that the checkpoint says to use."""
    streams, moved = kept.begin(plan, data, streams, guarantee is not None)
    if moved:
        again = () if guarantee is None else guarantee.events
        if guarantee is not None:
            with_charged_again(guarantee, kept, again)  # raises where nothing covers both
        if held is not None:
            held.extend(again, "released again on another platform")
        kept.moved([event.to_json() for event in again], streams)
    return streams, None if guarantee is None else with_charged_again(guarantee, kept)


def _drawn(
    plan: MechanismPlan, records: Any, streams: Streams, guarantee: Guarantee | None, kept: Checkpoint | None
) -> Release:
    started = time.perf_counter()
    target = targets.bind(plan.target, targets.record_shapes(records))
    before = None if kept is None else kept.kept()
    if before is not None:
        structure = jax.tree.structure(jax.eval_shape(target.init, jax.random.key(0)))
        positions = jax.tree.unflatten(structure, before)
    else:
        try:
            # A warning here is a function of the records.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                drawn = plan.mechanism.draw(plan, records, streams)
        except DivergedError as error:
            raise DivergedError(error.step, 0.0, guarantee) from None
        rows = 1 if plan.run is None else plan.run.chains
        positions = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32).reshape((rows, -1, *leaf.shape[1:])), drawn)
        if kept is not None:
            kept.keep(jax.tree.leaves(positions))
    seconds = time.perf_counter() - started
    constrain = getattr(target, "constrain", None)
    draws = positions if constrain is None else jax.tree.map(np.asarray, jax.vmap(jax.vmap(constrain))(positions))
    return Release(plan, draws, positions, guarantee, seconds)


#: Rows of float32 that were normalised may exceed their bound by rounding; more than this is another bound.
_ROUNDING = 1e-5


def _check_records(plan: MechanismPlan, data: Any) -> Any:
    """NumPy arrays of the right length, finite, and within the public bounds that the proof rests on."""
    targets.check_rows(data, plan.num_records)
    targets.check(plan.target, data)
    records = jax.tree.map(np.asarray, data)
    row_bound, label_bound = (getattr(plan.target, name, None) for name in ("row_bound", "label_bound"))
    if row_bound is not None:
        records = {**records, "x": _within(records["x"], row_bound)}
    if label_bound is not None and np.any(np.abs(records["y"]) > label_bound):
        worst = int(np.argmax(np.abs(records["y"])))
        raise InputError(f"data['y'] row {worst} is beyond the public label_bound {label_bound:g}: clip labels to it")
    return records


def _within(x: np.ndarray, row_bound: float) -> np.ndarray:
    """Rows (N, d) float64 of norm at most ``row_bound``; what rounding left beyond it is scaled back."""
    x = np.asarray(x, np.float64)
    norms = np.linalg.norm(x.reshape(len(x), -1), axis=1)
    worst = int(np.argmax(norms))
    if norms[worst] > row_bound * (1 + _ROUNDING):
        raise InputError(
            f"data['x'] row {worst} has norm {norms[worst]:.6g}, beyond the public row_bound {row_bound:g}: the "
            "guarantee rests on it; scale or clip rows to it"
        )
    scale = np.minimum(1.0, row_bound * (1 - 1e-12) / np.maximum(norms, 1e-300))
    return x * scale.reshape((-1,) + (1,) * (x.ndim - 1))


def _said(name: str, value: float) -> str:
    """A number for people; a price never below what it is."""
    return round_up(value) if "epsilon" in name or name == "mu" else f"{value:.4g}"
