"""The plan of any release, a sampler's run or a one-shot mechanism's: what is known before a record is read.

The engine carries out every kind of plan in one life (``engine/life.py``), and looks up who does it by the plan's type.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.data.base import DataSet
from dpmcmc.data.checks import refuse_other
from dpmcmc.data.frames import EncodedTable, Table, is_table, no_schema, texts
from dpmcmc.data.schema import Schema
from dpmcmc.planning.description import html_table
from dpmcmc.planning.permitted import Verdict
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import UNHARDENED
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target

if TYPE_CHECKING:
    from dpmcmc.inference.trace import Trace


class AnyPlan(abc.ABC):
    """A release before it reads a record.

    Attributes:
        target: the model.
        num_records: N, public.
        guarantee: of everything that leaves, or None without privacy.
        draws: of all chains, that leave.
        verdict: permitted uses of the draws, and why.
        schema: public ranges and levels of the columns of a table, or None where records are arrays.
        released_path: of a run in a metric that was saved; None of a plan that can be run.
        reasons: why the plan is as it is, where :func:`dpmcmc.suggest` made it.
        note: why the promise was not taken as it was asked for, where it was not.

    Example:
        >>> import dpmcmc
        >>> from dpmcmc.planning.any_plan import AnyPlan
        >>> target = dpmcmc.targets.LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
        >>> isinstance(dpmcmc.suggest(target, num_records=1000, epsilon=1.0), AnyPlan)
        True
    """

    target: Target
    num_records: int
    guarantee: Guarantee | None
    draws: int
    verdict: Verdict
    schema: Schema | None
    released_path: Trace | None = None
    reasons: tuple[str, ...] = ()
    note: str = ""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """Name of the sampler or of the mechanism; it names the run in a ledger's history."""

    @property
    @abc.abstractmethod
    def trace(self) -> AnyPlan | None:
        """Plan of the sampler whose iterates leave (:func:`sampled_plan`); None for a one-shot mechanism."""

    @property
    def has_chains(self) -> bool:
        """Whether the draws are chains of a sampler."""
        return self.trace is not None

    @property
    def hardened(self) -> bool:
        """Whether its keys are ChaCha20's and its noise is drawn in integers."""
        return False

    @property
    def said_note(self) -> str:
        """The note, with what the plan does about it; empty without one."""
        if not self.note:
            return ""
        if self.hardened:
            return f"{self.note}; the plan keeps that, and hardened: false may take less noise"
        return f"{self.note}; the plan takes noise from floats"

    @property
    def unproved(self) -> str:
        """Part that the proof of the noise does not cover; empty where it covers all of it."""
        return "" if self.guarantee is None or self.hardened else UNHARDENED

    @abc.abstractmethod
    def to_json(self, secret: bool = True) -> dict[str, object]:
        """Return the plan in numbers, without a record or a key.

        Args:
            secret: whether the noise of the run is; without that there is no guarantee.
        """

    @abc.abstractmethod
    def lines(self, secret: bool = True) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe the plan to a person; ``secret`` as in :meth:`to_json`."""

    @abc.abstractmethod
    def facts(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the plan beside its guarantee."""

    @property
    def usable_for(self) -> list[str]:
        """Out of ``prediction`` and ``intervals``; empty for nothing."""
        return list(self.verdict.usable_for)

    def records_of(self, data: PyTree | Table | DataSet | EncodedTable) -> PyTree:
        """Return records as the target takes them: training records of a data set; a table is encoded by the schema.

        Raises:
            InputError: a table, and the plan has no schema. It names columns and types alone.
            DataError: data that are no arrays of numbers, or masked ones; and see :meth:`dpmcmc.data.Schema.encode`.
        """
        if isinstance(data, EncodedTable):
            return data.records
        if isinstance(data, DataSet) or not self._is_table(data):
            records = data.train if isinstance(data, DataSet) else data
            for path, leaf in jax.tree_util.tree_leaves_with_path(records):
                refuse_other(leaf, f"data{jax.tree_util.keystr(path)}")
            return records
        if self.schema is None:
            raise no_schema(data)
        return self.schema.encode(data)

    def columns_of(self, data: PyTree | Table | DataSet | EncodedTable) -> dict[str, np.ndarray]:
        """Return every column that the schema declares, as bytes before encoding; none of data that are no table.

        A ledger knows a table by them under any formula.
        """
        table = data.table if isinstance(data, DataSet | EncodedTable) else data if self._is_table(data) else None
        return {} if table is None or self.schema is None else texts(table, self.schema.columns)

    def _is_table(self, data: PyTree | Table) -> bool:
        """Return whether data are a table; where there is a schema, arrays by name are one if each is a column."""
        if self.schema is None or not isinstance(data, Mapping):
            return is_table(data)
        return self.schema.label in data and all(getattr(column, "ndim", 1) == 1 for column in data.values())

    def schema_json(self) -> dict[str, object]:
        """Return the schema's part of ``plan.json``."""
        return {} if self.schema is None else {"schema": self.schema.to_yaml()}

    def sentences_json(self) -> dict[str, object]:
        """Return the part of ``plan.json`` that says what is not as it was asked for, what is not proved, and why."""
        return {"note": self.said_note, "unproved": self.unproved, "reasons": list(self.reasons)}

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {text}" for name, text in self._said())

    def _repr_html_(self) -> str:
        return html_table(self._said())

    def _said(self) -> list[tuple[str, str]]:
        return [*self.lines(), *(("why", reason) for reason in self.reasons)]
