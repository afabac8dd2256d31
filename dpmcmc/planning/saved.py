"""The plan of a run that was saved: what its files say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError
from dpmcmc.inference.trace import Trace
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.permitted_uses import Verdict
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets import TARGETS
from dpmcmc.targets.base import Target, TargetOffers


@dataclass(frozen=True)
class SavedTarget(TargetOffers):
    """A model that a file names, and that nobody has given again.

    Attributes:
        said: its description.
    """

    said: str

    def __repr__(self) -> str:
        return self.said

    def predict(self, params: PyTree, x: jax.Array) -> jax.Array:
        """Refuse: the file does not hold the model.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"target: {self.said} is not in the folder; give it: dpmcmc.load(folder, target)",
            "target",
        )


@dataclass(frozen=True, eq=False)
class SavedPlan(AnyPlan):
    """Plan that ``plan.json`` and ``privacy.json`` state; it cannot be run.

    Attributes:
        stated: content of ``plan.json``.
        stated_facts: of ``privacy.json``.
        target, num_records, guarantee, draws: as of every plan.
        verdict: that was saved, on the draws.
        schema: public facts of a table's columns, or None.
        released_path: of a run in a metric, or None.
    """

    stated: dict[str, Any]
    stated_facts: dict[str, object]
    target: Target
    num_records: int
    guarantee: Guarantee | None
    draws: int
    verdict: Verdict
    schema: Schema | None = None
    released_path: Trace | None = None

    @property
    def unit(self) -> str:
        """Whom the guarantee speaks of, which a mechanism may decide."""
        return str(self.stated.get("unit") or super().unit)

    @property
    def label(self) -> str:
        """Name of the sampler or of the mechanism."""
        return str(self.stated["label"])

    @property
    def parts(self) -> tuple[object, ...]:
        """The target: no code of the method was saved."""
        return (self.target,)

    @property
    def sections(self) -> dict[str, Any]:
        """Sections of the config that made the plan."""
        return self.stated["config"]

    @property
    def has_chains(self) -> bool:
        """Whether the draws are chains of a sampler."""
        return bool(self.stated.get("sampler") or self.stated.get("run"))

    def to_json(self, secret: bool = True) -> dict[str, object]:
        """Return the content of ``plan.json``."""
        return self.stated

    def facts(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the plan beside its guarantee."""
        return self.stated_facts

    def lines(self, secret: bool = True) -> list[tuple[str, str]]:
        """(label, sentence) pairs: what was run, its guarantee and its verdict."""
        how = [(name, str(self.stated[name])) for name in ("sampler", "mechanism") if self.stated.get(name)]
        said = [
            ("target", repr(self.target)),
            *how,
            ("guarantee", str(self.guarantee or "none")),
        ]
        noted = [(name, str(self.stated[name])) for name in ("note", "unproved") if self.stated.get(name)]
        return said + noted + self.verdict.lines()


def target_of(stated: dict[str, Any]) -> Target:
    """Return the target that the content of a ``plan.json`` names.

    It is made where its section has the name of a registered target and arguments that this takes. Another one is a
    :class:`SavedTarget`.
    """
    keys = dict(stated["config"]["target"])
    kind = TARGETS.get(str(keys.pop("name", "")))
    if kind is not None:
        try:
            return kind(**keys)
        except (InputError, TypeError):  # arguments of another version
            pass
    return SavedTarget(str(stated["target"]))  # type: ignore[return-value]  # it has a name alone
