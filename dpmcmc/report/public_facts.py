"""Public facts: a run may state them before it has computed anything from a record.

Everything that a run prints, names, dates or writes outside ``confidential/`` is computed from a :class:`PublicFacts`
and from draws that the guarantee covers. So the functions that print and write take these,
and never a DataSet.

Public facts are:

* the config and the plan made from it, with N, and what the config declares of the data;
* the name, origin and checksums of a known data set, and the columns, which neighbouring data sets share;
* the day on which the run began, and the seconds that had passed before the first record was read;
* all records, where ``spec.public`` says so.

Private data make these facts private:

* how many rows were held out, or belong to an owner, and which rows they are;
* any time after the first record was read, because how long a step takes depends on the records;
* whether a diagnostic could be computed.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypedDict, Unpack

import numpy as np

from dpmcmc.data import DataSet, DataSpec
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.report.circumstances import Circumstances, Kind, Settings
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets import bind, record_shapes
from dpmcmc.targets.base import Target


class Declared(TypedDict, total=False):
    """Facts that a config declares; see :class:`PublicFacts`."""

    generated: bool
    settings: Settings | None
    asked: float | None
    command: str


@dataclass(frozen=True, eq=False)
class PublicFacts:
    """Public facts of one run.

    Attributes:
        name: of the config.
        plan: of the run.
        secret: whether its noise is.
        spec: what is declared of the data.
        origin: where they are from; ``user file`` for all files of a user's.
        sha256: of the files of a known set; empty for a user's.
        columns: names of the columns of a row, which neighbouring data sets share.
        target: the plan's, bound to the shapes of a record.
        on_disk: whether the records are a folder, of which only batches are read, or in partitions.
        test: test rows where these are public, else None.
        day: on which the run began.
        generated: whether the config declares that a program generated the records.
        settings: how these were chosen, as the config declares; None where nobody vouches.
        asked: ε that the config asks for, or None.
        command: what names the config on a command line; empty: the config's name.
    """

    name: str
    plan: Plan
    secret: bool
    spec: DataSpec
    origin: str
    sha256: Mapping[str, str]
    columns: tuple[str, ...]
    target: Target
    on_disk: bool
    test: Mapping[str, np.ndarray] | None
    day: datetime.date
    generated: bool = False
    settings: Settings | None = None
    asked: float | None = None
    command: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        plan: Plan,
        secret: bool,
        data: DataSet,
        day: datetime.date,
        **declared: Unpack[Declared],
    ) -> PublicFacts:
        """The public facts of a run on these records; nothing else is taken from them.

        Args:
            name, plan, secret, day: as the attributes.
            data: the records.
            declared: of them by the config.
        """
        return cls(
            name,
            plan,
            secret,
            data.spec,
            data.origin,
            dict(data.sha256),
            data.columns,
            bind(plan.target, record_shapes(data.train)),
            data.partitions is not None or on_disk(data.train),
            data.test if data.test_is_public else None,
            day,
            **declared,
        )

    @property
    def num_features(self) -> int:
        """Columns of a row."""
        return len(self.columns)

    @property
    def trace(self) -> Plan | None:
        """Plan of the sampler whose iterates may be published; None for a one-shot mechanism."""
        return None if self.plan.run is None else self.plan

    def publishable(self, guarantee: Guarantee | None) -> bool:
        """Whether draws with this guarantee may be published: it is finite, or the records are public."""
        return self.spec.public or (guarantee is not None and math.isfinite(guarantee.epsilon))

    def circumstances(self, fit: bool) -> Circumstances:
        """Return what the page says of records and settings.

        Args:
            fit: whether a fit without privacy is published.
        """
        origins: dict[str, Kind] = {"stand-in": "stand_in", "generated": "generated"}
        declared: Kind = "generated" if self.generated else "public" if self.spec.public else "private"
        times = self.spec.public and self.trace is not None
        return Circumstances(
            origins.get(self.origin, declared),
            self.settings,
            fit,
            times,
            self.spec.privatised,
        )

    @property
    def planned(self) -> Guarantee | None:
        """Guarantee of the plan; None where the noise is not secret."""
        return self.plan.guarantee if self.secret else None

    def note(self, guarantee: Guarantee | None) -> str | None:
        """Text that must stand on every figure of draws with this guarantee, or None."""
        if self.origin == "stand-in":
            return f"generated stand-in for {self.spec.name}: not the real data"
        if not self.publishable(guarantee):
            return "no privacy guarantee, and the records are not public: confidential"
        return None if self.secret else "insecure noise seed: no privacy guarantee"

    def title(self, guarantee: Guarantee | None) -> str:
        """Title of every figure."""
        if guarantee is None:
            return f"{self.name}: no guarantee"
        return f"{self.name}: ε = {round_up(guarantee.epsilon, 3)}, δ = {guarantee.delta:.3g}"

    @property
    def whence(self) -> str:
        """The origin of the records in words."""
        if self.origin == "stand-in":
            return "a generated stand-in"
        return f"real, {self.origin}" if self.sha256 else self.origin

    def described(self) -> str:
        """Return name and origin of the data in words."""
        where = "files whose checksums privacy.json states" if self.sha256 else self.origin
        return f"{self.spec.name}, {self.num_features} columns, from {where}"

    def data_json(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the data."""
        return {
            "name": self.spec.name,
            "origin": self.origin,
            "public": self.spec.public,
            "encoding": self.spec.encoding,
            "sha256": dict(self.sha256) or None,
            "privatised": self.spec.privatised and asdict(self.spec.privatised),
        }

    def metrics(self) -> dict[str, object]:
        """Return ``metrics.json`` before anything is measured, with every key that it always has."""
        plan = self.plan
        return {
            **dict.fromkeys(("accuracy", "rmse", "log_predictive_density", "non_private")),
            **dict.fromkeys(("ess", "rhat", "steps_per_second")),
            "temperature": None if self.trace is None else self.trace.sampler_run.temperature_range,
            "draws": plan.draws,
            "data": {"name": self.spec.name, "origin": self.origin},
            **plan.verdict.to_json(),
        }
