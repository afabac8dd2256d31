"""Work on the releases where a chain ends, and on the posterior that follows from them and from its path."""

from __future__ import annotations

import warnings

import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.checked_records import checked
from dpmcmc.engine.result import Result
from dpmcmc.engine.shards import shards_of
from dpmcmc.inference.evidence import Evidence
from dpmcmc.planning.chain_end import ChainEnd
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records, Whole
from dpmcmc.storage.pytree import PyTree

#: A chain that no run has: its first keys are those of the end.
_CHAIN = 0xFFFFFFFE


class ChainEndWork:
    """Work on the end of a chain.

    Attributes:
        stage: the end.
        records: checked; sums alone are asked of them.
        chain: what the chain released, set once it has.
    """

    records: Records
    chain: Result

    def __init__(self, plan: Plan, end: ChainEnd) -> None:
        self.stage = end
        self._plan = plan

    def read(self, data: PyTree, mesh: Mesh | None) -> None:
        """Refuse records that do not fit the target, and keep them."""
        found = checked(data, self._plan.target, self._plan.num_records, True)
        self.records = Whole(found) if mesh is None else shards_of(found, mesh)

    def streams(self, streams: Streams) -> Streams:
        """The run's own keys, of which no chain has those of the end."""
        return streams.at(_CHAIN, 0)

    def made(self, streams: Streams, guarantee: Guarantee | None) -> Evidence:
        """Release where the path ends; see :class:`ReleaseWork`."""
        # Warnings of a library here are functions of the records.
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return self.stage.mechanism.conclude_chain(self._plan, self.records, streams, self.chain.trace)

    def arrays(self, made: Evidence) -> dict[str, np.ndarray]:
        """Return what was concluded as arrays; see :class:`ReleaseWork`."""
        return {"evidence": np.frombuffer(made.content(), np.uint8)}

    def of(self, arrays: dict[str, np.ndarray]) -> Evidence:
        """Return what was concluded; see :class:`ReleaseWork`."""
        return Evidence.of(arrays["evidence"].tobytes())
