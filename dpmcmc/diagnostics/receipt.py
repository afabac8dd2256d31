"""Receipt of one person: what a run has cost this record, from what the run released and the record alone.

CONFIDENTIAL to the person whose record it is: the number is a function of the record. Nothing here writes a file.

A run of a sampler: the realised individual Rényi loss (``per_record/account.py``) is a function of the positions
before each step, which the run has released, of public facts, and of the record. So a person computes for themselves
the number that the data holder has, to the last digit (``Account.of_one``). Objective perturbation: a bound on the
realised loss (``objective.py``).

A receipt is no guarantee and changes none. It does not tell whether the record was in the data: it is the same function
of the release and the record either way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpmcmc import targets
from dpmcmc.data.schema import Schema
from dpmcmc.data.tables import is_table
from dpmcmc.diagnostics.objective import ObjectiveRelease, check_failure, released_loss
from dpmcmc.diagnostics.per_record.account import Account, before_each_step
from dpmcmc.engine.result import Result
from dpmcmc.errors import DataError, InputError, UnsupportedCombination
from dpmcmc.mechanisms import ObjectivePerturbation
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.saved import SavedTarget
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.report.lines import Row, rows
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.logistic import LogisticRegression

#: Chance that the bound of objective perturbation fails, by default.
FAILURE = 0.05
#: Digits of a number on a receipt.
_DIGITS = 4
_AGAINST = {
    Adjacency.REPLACE_ONE: "your record against any other one in its place",
    Adjacency.ADD_REMOVE: "your record against its absence",
    Adjacency.ZERO_OUT: "your record against its absence",
}
_STEPS = (
    "A realised loss, not a promise. It adds up what each step of this run could tell about your record, along the way "
    "that this run took; another run could have cost you more. Compare it with the line at worst, which is by the same "
    "method. The promise is by a tighter method, so it may be the smaller number, and it holds in any case."
)
_RATIO = (
    "A realised loss, not a promise. It bounds how much more or less likely this very release is with your record, by "
    "a factor of at most e^ε. Another run could have cost you more. The promise holds in any case."
)
_YOURS = (
    "The number is yours. It was computed from the released files and your record alone, and nobody is told. It is the "
    "same whether or not your record was among the data. Publishing it tells about you."
)


@dataclass(frozen=True, eq=False, repr=False)
class PersonalReceipt:
    """Realised loss of one record. CONFIDENTIAL to the person whose record it is; ``print`` shows it.

    Attributes:
        epsilon: realised loss, from above: of a sampler's run the ε at δ of the realised Rényi loss.
        worst_case: the most that ``epsilon`` could have been, whatever the record and the run: of a sampler's run the ε
            of a record that is clipped at every step.
        guarantee: of the run, to everybody.
        failure: probability, over the noise of the run, that the loss exceeds ``epsilon``; None of a sampler's run,
            whose Rényi loss is not estimated.
        clipped_share: share of steps in which the record's gradient was clipped; None of a mechanism's release.
        moved: columns whose value lay outside its public range or levels, and was moved inside.

    Example:
        >>> import numpy as np
        >>> import dpmcmc
        >>> from dpmcmc.diagnostics import personal_receipt
        >>> plan = dpmcmc.plan(
        ...     dpmcmc.targets.LogisticRegression(),
        ...     num_records=100,
        ...     sampler=dpmcmc.SGLD(step_size=1.0),
        ...     steps=10,
        ...     privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
        ... )
        >>> records = {"x": np.linspace(-1, 1, 200).reshape(100, 2), "y": np.zeros(100, int)}
        >>> mine = personal_receipt(dpmcmc.sample(plan, records), {"x": [0.2, 0.1], "y": 0})
        >>> bool(mine.epsilon < mine.worst_case)
        True
    """

    epsilon: float
    worst_case: float
    guarantee: Guarantee
    failure: float | None = None
    clipped_share: float | None = None
    moved: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "PersonalReceipt(<confidential to its person; print shows it>)"

    def __str__(self) -> str:
        return rows(self.lines())

    def lines(self) -> list[Row]:
        """Return (label, sentence) pairs for the person."""
        guarantee = self.guarantee
        own = round_up(self.epsilon, _DIGITS)
        most = round_up(self.worst_case, _DIGITS)
        against = _AGAINST[guarantee.adjacency]
        if self.failure is None:
            loss = f"ε = {own} at δ = {guarantee.delta:.3g}, {against}: what this run has cost it"
            worst = f"ε = {most} for a record whose gradient is clipped at every step, by the same method"
        else:
            loss = f"ε is at most {own}, {against}, except with probability {self.failure:.3g} over the run's noise"
            worst = f"ε is at most {most} for any record, except with the same probability"
        out = [
            ("your loss", loss),
            ("at worst", worst),
            ("promise", f"{guarantee}, to everybody, made before the run"),
        ]
        if self.clipped_share is not None:
            share = f"{100 * self.clipped_share:.0f} % of the steps"
            out.append(("clipped", f"your record's gradient reached the clip norm in {share}"))
        if self.moved:
            named = ", ".join(self.moved)
            out.append(
                (
                    "moved",
                    f"{named}: outside the public range or levels, so moved inside, as every record of the data is",
                )
            )
        meaning = _STEPS if self.failure is None else _RATIO
        return [*out, ("meaning", meaning), ("yours", _YOURS)]


def personal_receipt(
    result: Result,
    record: PyTree,
    *,
    plan: Plan | None = None,
    failure: float = FAILURE,
) -> PersonalReceipt:
    """Return what a run has cost one record, from what it released and that record alone.

    Args:
        result: of :func:`dpmcmc.sample`, with every step's draw (``thin=1``, ``burn_in=0``), or from ``dpmcmc.load``.
        record: encoded as those of the run, a pytree without the leading axis, such as ``{"x": (d,), "y": ()}``; a
            table of one row, or a mapping from column to value, if the plan has a schema.
        plan: of a sampler's run whose result was loaded, made again as it was; None: that of the result.
        failure: probability that the bound of objective perturbation fails.

    Raises:
        UnsupportedCombination: no loss follows from what the run released; the reason, and how a run is made whose
            release tells it.
        ValueError: a record that the run's data could not hold; a plan of another run; a failure outside (0, 1).
    """
    plan = result.plan if plan is None else plan
    encoded, moved = _encoded(record, plan.schema)
    return of_encoded(result, encoded, plan, failure, moved)


@on_one_blas_thread
def of_encoded(
    result: Result,
    record: PyTree,
    plan: Plan,
    failure: float = FAILURE,
    moved: tuple[str, ...] = (),
) -> PersonalReceipt:
    """Return what :func:`personal_receipt` does, of a record whose leaves are (1, ...).

    Args:
        result, record, plan, failure: as there.
        moved: columns whose value was moved inside its public range or levels.
    """
    guarantee = result.guarantee
    if guarantee is None or not math.isfinite(guarantee.epsilon):
        raise UnsupportedCombination(
            "receipt: the run has no guarantee, so its noise may be known to anybody, and nothing bounds what it tells "
            "of a record",
            "receipt",
        )
    check_failure(failure)
    if plan.run is not None:
        return _of_steps(result, plan, guarantee, record, moved)
    if plan.has_chains:
        raise InputError(
            "plan: the result was loaded, and a folder does not hold the noise of each step; give plan=, made as that "
            "of the run, or use the command dpmcmc receipt",
            "plan",
        )
    return _of_objective(result, plan, guarantee, record, failure, moved)


def _encoded(record: PyTree, schema: Schema | None) -> tuple[PyTree, tuple[str, ...]]:
    """Return (the record, leaves (1, ...), columns whose value was moved inside its public range)."""
    raw = isinstance(record, Mapping) and schema is not None and not _is_encoded(record)
    if not raw and not is_table(record):
        of_numbers = jax.tree.map(
            lambda leaf: np.asarray(leaf)[None],
            record,
            is_leaf=lambda leaf: isinstance(leaf, list | tuple),
        )
        return of_numbers, ()
    if schema is None:
        raise InputError(
            "record: is a table, and the run has no schema that encodes one; give it encoded, x and y",
            "record",
        )
    if isinstance(record, Mapping):
        record = {name: np.atleast_1d(np.asarray(value, object)) for name, value in record.items()}
    encoded, counts = schema.encode_counted(record)
    if len(encoded["x"]) != 1:
        raise DataError("record: a receipt is of one record, and the table has more rows: give one.")
    return encoded, tuple(name for name, count in counts.items() if count)


def _is_encoded(record: Mapping[str, Any]) -> bool:
    return {"x", "y"} <= set(record) and np.ndim(record["x"]) > 0


def _refused(why: str, guarantee: Guarantee) -> UnsupportedCombination:
    """Return the refusal of a run whose release tells no loss of one record, with the bound that holds all the same."""
    epsilon = round_up(guarantee.epsilon, _DIGITS)
    of = f"ε = {epsilon} at δ = {guarantee.delta:.3g}, {guarantee.adjacency}"
    promised = f"the promise holds for every record all the same, {of}"
    return UnsupportedCombination(f"receipt: {why}; {promised}", "receipt")


def _charged(guarantee: Guarantee) -> tuple[object, ...]:
    return guarantee.events, guarantee.delta, guarantee.adjacency


def _of_steps(
    result: Result,
    plan: Plan,
    guarantee: Guarantee,
    record: PyTree,
    moved: tuple[str, ...],
) -> PersonalReceipt:
    """Return the receipt of a sampler's run."""
    charged = plan.guarantee is not None and _charged(plan.guarantee) == _charged(guarantee)
    if not charged or plan.describe().sections != result.plan.describe().sections:
        raise InputError(
            "plan: has other settings, or other charged events, than the run, so its loss is not the run's; make it "
            "with the settings and the version of dpmcmc that the run had",
            "plan",
        )
    if plan.burn_in or plan.thin > 1:
        raise _refused(
            "the run has released a part of its steps, and the loss follows from all of them; such a run is made with "
            "burn_in 0 and thin 1 (dpmcmc run CONFIG --set run.burn_in=0 --set run.thin=1), at the same ε",
            guarantee,
        )
    try:
        account = Account(plan, record)
    except UnsupportedCombination as error:
        raise _refused(str(error).removesuffix("."), guarantee) from None
    except targets.TargetError as error:
        raise InputError(f"record: {str(error).removesuffix('.')}", "record") from None
    except InputError as error:
        if error.about:
            raise
        raise _refused(str(error).replace("plan: ", "the run ", 1), guarantee) from None
    start = _start(account, guarantee)
    fits = jax.tree.map(lambda first, all_: first.shape[1:] == all_.shape[2:], start, result.positions)
    if not all(jax.tree.leaves(fits)):
        raise _misfit()
    found = account.of_one(record, before_each_step(start, result.positions))
    return PersonalReceipt(
        float(found.epsilon[0]),
        found.worst_case,
        guarantee,
        clipped_share=float(found.clipped_share[0]),
        moved=moved,
    )


def _misfit() -> InputError:
    return InputError(
        "record: has another number of features than the records of the run; give the columns that these have",
        "record",
    )


def _start(account: Account, guarantee: Guarantee) -> PyTree:
    """Return where the chains begin, which is public if no key decides it."""
    first, other = (
        account.start(Streams(*jax.random.split(jax.random.key(seed), len(Streams._fields)))) for seed in (0, 1)
    )
    same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), first, other)
    if not all(jax.tree.leaves(same)):
        raise _refused(
            "the chains begin at a random point, which the run has not released; such a run is made with a model that "
            "begins at a fixed one",
            guarantee,
        )
    return first


def _of_objective(
    result: Result,
    plan: Plan,
    guarantee: Guarantee,
    record: PyTree,
    failure: float,
    moved: tuple[str, ...],
) -> PersonalReceipt:
    """Return the receipt of a release by objective perturbation."""
    settings, clip = _objective_of(plan, guarantee)
    target = plan.target
    if type(target) is not LogisticRegression or target.row_bound is None:
        raise _refused(
            "the model of a receipt of objective_perturbation is a LogisticRegression that is not tempered, with a "
            "row_bound, named in the folder",
            guarantee,
        )
    if set(record) != {"x", "y"}:
        raise InputError("record: needs x and y, and nothing else", "record")
    theta = np.asarray(result.positions, np.float64).reshape(-1)
    x = np.asarray(record["x"][0], np.float64)
    if x.shape != theta.shape:
        raise _misfit()
    epsilon, worst = released_loss(
        ObjectiveRelease(
            settings["regularisation"],
            settings["noise_std"],
            float(target.row_bound),
            clip,
            guarantee.adjacency,
        ),
        settings,
        guarantee,
        theta,
        (x, record["y"][0]),
        failure,
    )
    return PersonalReceipt(epsilon, worst, guarantee, failure=failure, moved=moved)


def _objective_of(plan: Plan, guarantee: Guarantee) -> tuple[Mapping[str, float], float]:
    """Return (settled numbers, c that residuals are clipped to) of a release by objective perturbation.

    Raises:
        UnsupportedCombination: it is another release.
    """
    name = ObjectivePerturbation.__name__
    if plan.release is not None and isinstance(plan.mechanism, ObjectivePerturbation):
        return plan.settings, plan.mechanism.clip or 1.0
    if plan.saved is not None and plan.label == name and not isinstance(plan.target, SavedTarget):
        return plan.saved.stated_plan["settings"], plan.describe().sections["mechanism"].get("clip", 1.0)
    raise _refused(
        f"no formula is known for the loss of one record in {plan.label}; one is for a sampler's own run and for "
        f"{name}",
        guarantee,
    )
