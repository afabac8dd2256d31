"""The plan of any release, a sampler's run or a one-shot mechanism's: what is known before a record is read.

The engine carries out every kind of plan in one life (``engine/life.py``), and looks up who does it by the plan's
type.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from dpmcmc.data.base import DataSet
from dpmcmc.data.checks import refuse_other
from dpmcmc.data.encoded_partitions import EncodedPartitions
from dpmcmc.data.known_columns import texts
from dpmcmc.data.partitions import find_partitions
from dpmcmc.data.schema import Schema
from dpmcmc.data.tables import EncodedTable, Table, is_table, refuse_no_schema
from dpmcmc.errors import DataError, printable
from dpmcmc.planning.description import html_table
from dpmcmc.planning.permitted_uses import Verdict
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.stamps import check_unchanged
from dpmcmc.targets.base import Target, TargetOffers, target_offers

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

    Example:
        >>> import dpmcmc
        >>> from dpmcmc.planning.stages import AnyPlan
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

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """Name of the sampler or of the mechanism; it names the run in a ledger's history."""

    @property
    def target_offers(self) -> TargetOffers:
        """The target with a default in the place of everything that it does not offer."""
        return target_offers(self.target)

    @property
    def unit(self) -> str:
        """Whom a guarantee speaks of."""
        return self.target_offers.unit or "record"

    @property
    def has_chains(self) -> bool:
        """Whether the draws are chains of a sampler."""
        return False

    @property
    def unproved(self) -> str:
        """Part that the proof of the noise does not cover; empty where it covers all of it."""
        return ""

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
        if isinstance(data, EncodedPartitions) or (isinstance(data, DataSet) and data.partitions is not None):
            raise DataError(
                f"data: {self.label} needs all rows in one memory, and these are in partitions: give the table in "
                "memory."
            )
        if isinstance(data, DataSet) or not self._is_table(data):
            records = data.train if isinstance(data, DataSet) else data
            for path, leaf in jax.tree_util.tree_leaves_with_path(records):
                refuse_other(leaf, f"data{jax.tree_util.keystr(path)}")
            return records
        if self.schema is None:
            raise refuse_no_schema(data)
        return self.schema.encode(data)

    def partitions_of(self, data: PyTree | Table | DataSet) -> EncodedPartitions | None:
        """Return a table in its partitions, with the plan's schema; None of anything that is not read so."""
        if isinstance(data, DataSet):
            return data.partitions
        if isinstance(data, EncodedPartitions):
            return data
        if self.schema is None or not is_table(data):
            return None
        return find_partitions(data, self.schema)

    def columns_of(self, data: PyTree | Table | DataSet | EncodedTable) -> dict[str, np.ndarray]:
        """Return every column that the schema declares, as bytes before encoding; none of data that are no table.

        A ledger knows a table by them under any formula.
        """
        if isinstance(data, EncodedPartitions):
            return {}  # the workers know them
        table = data.table if isinstance(data, DataSet | EncodedTable) else data if self._is_table(data) else None
        if table is None or self.schema is None:
            return {}
        found = texts(table, self.schema.columns)
        if isinstance(data, DataSet):
            check_unchanged(data.seen)
        return found

    def _is_table(self, data: PyTree | Table) -> bool:
        """Return whether data are a table; where there is a schema, arrays by name are one if each is a column."""
        if self.schema is None or not isinstance(data, Mapping):
            return is_table(data)
        return self.schema.label in data and all(np.ndim(column) == 1 for column in data.values())

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[object, ...]:
        """Target, and sampler or mechanism or both, which a user may have written."""

    @property
    @abc.abstractmethod
    def sections(self) -> dict[str, Any]:
        """Sections of the config that makes the plan, by name."""

    def schema_json(self) -> dict[str, object]:
        """Return the schema's part of ``plan.json``."""
        return {} if self.schema is None else {"schema": self.schema.to_yaml()}

    def sentences_json(self) -> dict[str, object]:
        """Return the part of ``plan.json`` that says what is not proved, and why the plan is as it is."""
        return {"unproved": self.unproved, "reasons": list(self.reasons)}

    def __str__(self) -> str:
        said = (f"{name:<12} {text}" for name, text in self._said())
        return "\n".join(map(printable, said))

    def _repr_html_(self) -> str:
        return html_table(self._said())

    def _said(self) -> list[tuple[str, str]]:
        return [*self.lines(), *(("why", reason) for reason in self.reasons)]
