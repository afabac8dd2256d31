"""``dpmcmc run CONFIG --per-record``: a run, and a table of what it cost each training record.

The run is an ordinary one: it is charged to the config's ledger, its draws and guarantee may be published, and
``--resume`` continues it. The table is confidential and lies in ``confidential/per_record.csv``.

The account needs every position of the run, so the checkpoint holds all of them. It does not cover steps that are taken
twice, so such a run resumes only on the platform where it was begun.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np

from dpmcmc import config as config_room
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import Config
from dpmcmc.diagnostics import per_record
from dpmcmc.diagnostics.per_record.account import before_each_step, every_step
from dpmcmc.engine.life import Life
from dpmcmc.engine.result import Result
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.pytree import PyTree


class RecordAccount:
    """Account of every record of one run.

    Args:
        config: of the run.
        plan: of the draws that it keeps.

    Raises:
        CommandError: the run has no guarantee of its own, or no sampler takes its steps.
    """

    def __init__(self, config: Config, plan: Plan) -> None:
        if config.privacy is None or not config_room.is_secret(config):
            raise CommandError(f"{config.name}: its run has no guarantee, so there is nothing that a record spends.")
        if plan.run is None or plan.starts is not None:
            raise CommandError(f"{config.name}: its release is a mechanism's; this accounts for a sampler's own run.")
        try:
            per_record.check(plan)
        except InputError as error:
            raise CommandError(str(error)) from None
        self.plan = plan

    @property
    def whole(self) -> Plan:
        """The plan with every step kept, which is what runs."""
        return every_step(self.plan)

    def prepare(self, life: Life, records: PyTree, confidential: Path) -> None:
        """Refuse records and runs without an account, and note where the chains start, before the run is charged.

        Raises:
            ValueError: records that the target refuses.
        """
        kept = life.kept
        assert isinstance(kept, Checkpoint)  # an account is one process's
        self._table = confidential / "per_record.csv"
        self._account = per_record.Account(self.plan, records)
        if not kept.begun:
            start = self._account.start(life.streams)
            kept.note(start=[np.asarray(leaf).tolist() for leaf in jax.tree.leaves(start)])
        self._start = kept.read_note("start")

    def kept(self, everything: Result) -> Result:
        """Return the draws that the plan keeps, out of all."""
        first = self.plan.burn_in + self.plan.thin - 1
        thin = self.plan.thin
        draws, positions, info = (
            jax.tree.map(lambda leaf: leaf[:, first::thin], tree)
            for tree in (everything.released, everything.positions, everything.info)
        )
        return dataclasses.replace(
            everything,
            plan=self.plan,
            released=draws,
            positions=positions,
            info=info,
        )

    def save(self, everything: Result, records: PyTree) -> None:
        """Write what the run cost each record."""
        leaves = [np.asarray(leaf, np.float32) for leaf in self._start]
        start = jax.tree.unflatten(jax.tree.structure(everything.positions), leaves)
        self._account.of(records, before_each_step(start, everything.positions)).save(self._table)
