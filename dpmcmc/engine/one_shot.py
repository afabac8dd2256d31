"""Work on a mechanism's release: its one access to the records, by itself or before a chain that starts at its draw."""

from __future__ import annotations

import json
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.engine.chain_checks import check_room
from dpmcmc.engine.chains import Chains
from dpmcmc.engine.checked_records import Fits, checked
from dpmcmc.engine.partitions import PartitionedRecords
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.shards import shards_of
from dpmcmc.engine.steps import BoundPlan
from dpmcmc.engine.work import Given, MovingChains, Progress, Session, part_of, released
from dpmcmc.errors import InputError
from dpmcmc.inference.evidence import Evidence
from dpmcmc.planning.mechanism_release import MechanismRelease
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.sampler_run import SamplerRun
from dpmcmc.planning.stages import Stage
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records, Whole
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, target_offers

#: Bytes that a number of a draw takes while it is made: its normal in float64, and the random words of that.
_BYTES = 64
#: Positions, a pytree with leaves (1, draws, ...): one chain; what these rest on, where noise is accounted for; doubts.
_Drawn = tuple[PyTree, Evidence | None, tuple[str, ...]]


class MechanismWork:
    """Work on a mechanism's release: one declared access to the records.

    Attributes:
        records: checked, NumPy arrays, or a table of which sums alone are asked.
    """

    records: PyTree | Records

    def __init__(self, plan: Plan, release: MechanismRelease) -> None:
        self.stage: Stage = release
        self._whole = plan
        self._plan = plan.alone(release)

    @property
    def takes_partitions(self) -> bool:
        """Return whether records may be a table in partitions; see :class:`Work`."""
        return bool(self._plan.mechanism.reads_sums(self._plan.target))

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None) -> None:
        """Refuse what :func:`dpmcmc.sample` says, and keep the records; see :class:`Work`."""
        if starts is not None:
            raise InputError("starts: a mechanism's release takes none; leave it out")
        plan = self._plan
        sums = self.takes_partitions
        if mesh is not None and not sums:
            raise InputError(
                f"mesh: {type(plan.mechanism).__name__} reads records one by one; mechanisms that release sums "
                "take a mesh (NoiseAware but of a NumPyro model, SufficientStatistics, AdaSSP), and so do "
                "samplers and hybrids; leave it out",
                "mesh",
            )
        if isinstance(data, PartitionedRecords):
            self._shapes = data.shapes
            one = data.data.shaped(1)
            targets.check(plan.target, one)
            plan.mechanism.check(plan, one)
            self.records = data.checked(Fits(plan.target), plan.num_records)
        else:
            found = checked(data, plan.target, plan.num_records, sums)
            plan.mechanism.check(plan, found)
            self._shapes = targets.record_shapes(found)
            if mesh is not None:
                self.records = shards_of(found, mesh)
            else:
                self.records = Whole(found) if sums else found
        check_room(self._bound, self._plan.draws, _BYTES)

    def carry_out(self, session: Session, progress: Progress | None) -> Result:
        """Draw, unless the checkpoint holds what was drawn; see :class:`Work`."""
        plan = self._plan
        target = self._bound
        for one in self.stage.candidates if session.secret else ():
            if one.run is not None:
                self._test_run(one, one.run)
        session.begin()
        started = time.perf_counter()
        positions, evidence, doubts = released(0, self, session.streams, session, last=True)
        seconds = {"run": time.perf_counter() - started}
        constrain = target_offers(target).constrain
        draws = positions if constrain is None else jax.tree.map(np.asarray, jax.vmap(jax.vmap(constrain))(positions))
        return Result(plan, draws, positions, None, session.guarantee, seconds, evidence=evidence, doubts=doubts)

    @property
    def _bound(self) -> Target:
        """Target, bound to the records' shapes."""
        return targets.bind(self._plan.target, self._shapes)

    def _test_run(self, candidate: Plan, run: SamplerRun) -> None:
        """Compile and test a sampler's run before it is charged."""
        chains = Chains(candidate, run)
        # A candidate of a selection has a part of the records. A mechanism that runs chains reads arrays.
        part = jax.tree.map(lambda leaf: leaf[: candidate.num_records], self.records)
        chains.read(part, None, None)
        chains.compile_and_test()

    def made(self, streams: Streams, guarantee: Guarantee | None) -> _Drawn:
        """Draw, with what the draws rest on; see :class:`ReleaseWork`."""
        plan = self._plan
        mechanism = self._plan.mechanism
        evidence = None
        doubts: tuple[str, ...] = ()
        try:
            # Warnings of a library here are functions of the records.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                # A mechanism that releases more than draws says so itself.
                if mechanism.drawn is None:
                    drawn = mechanism.draw(plan, self.records, streams)
                else:
                    drawn, evidence, doubts = mechanism.drawn(plan, self.records, streams)
        except DivergedError as error:
            raise DivergedError(error.step, 0.0, guarantee) from None
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32)[None], drawn), evidence, doubts

    def arrays(self, made: _Drawn) -> dict[str, np.ndarray]:
        """Return leaves of the positions, and what the draws rest on; see :class:`ReleaseWork`."""
        positions, evidence, doubts = made
        content = b"" if evidence is None else evidence.content()
        leaves = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(positions))}
        said = np.frombuffer(json.dumps(doubts).encode(), np.uint8)
        return leaves | {"evidence": np.frombuffer(content, np.uint8), "doubts": said}

    def of(self, arrays: dict[str, np.ndarray]) -> _Drawn:
        """Return positions, and what the draws rest on; see :class:`ReleaseWork`."""
        content = arrays.pop("evidence")
        doubts = tuple(json.loads(bytes(arrays.pop("doubts"))))
        structure = jax.tree.structure(jax.eval_shape(self._bound.init, jax.random.key(0)))
        positions = jax.tree.unflatten(structure, [arrays[str(i)] for i in range(len(arrays))])
        return positions, Evidence.of(content.tobytes()) if content.size else None, doubts

    def stand_in(self, chains: MovingChains) -> None:
        """Put zeros in the place of the start; see :class:`ReleaseWork`."""
        shapes = jax.eval_shape(chains.model.init, jax.random.key(0))
        count = self._whole.chains
        chains.starts = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), jnp.float32), shapes)

    def streams(self, streams: Streams) -> Streams:
        """Return keys of the draw, which are none of the chain's; see :class:`ReleaseWork`."""
        return part_of(streams, 0)

    def given(self, made: _Drawn, run: BoundPlan, records: PyTree) -> Given:
        """Return the run from the draw; see :class:`ReleaseWork`."""
        count = self._whole.chains
        starts = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf[0], jnp.float32), count, axis=0), made[0])
        return run._replace(starts=starts), records
