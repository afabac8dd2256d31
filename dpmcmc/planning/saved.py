"""The one stage of a plan that was saved: what its files say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import jax

from dpmcmc.errors import InputError
from dpmcmc.inference.trace import Trace
from dpmcmc.planning.description import Description, labelled
from dpmcmc.planning.stages import Stage
from dpmcmc.planning.whole_plan import WholePlan
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
class SavedRun(Stage):
    """All that ``plan.json`` and ``privacy.json`` say of a run; it cannot be carried out.

    Attributes:
        stated_plan: content of ``plan.json``.
        stated_facts: of ``privacy.json``.
        guarantee, draws: as of every stage.
        released_path: of a run in a metric, or None.
    """

    stated_plan: dict[str, Any]
    stated_facts: dict[str, object]
    guarantee: Guarantee | None
    draws: int
    released_path: Trace | None = None

    @property
    def unit(self) -> str:
        """Whom the guarantee speaks of."""
        return str(self.stated_plan.get("unit") or "")

    @property
    def label(self) -> str:
        """Name of the sampler or of the mechanism."""
        return str(self.stated_plan["label"])

    @property
    def has_chains(self) -> bool:
        """Whether the draws are chains of a sampler."""
        return bool(self.stated_plan.get("sampler") or self.stated_plan.get("run"))

    @property
    def unproved(self) -> str:
        """Part that the proof of the noise does not cover."""
        return str(self.stated_plan.get("unproved") or "")

    def assuming(self, *sentences: str) -> Self:
        """Return itself: a guarantee that was read back holds the assumptions that it was released under."""
        return self

    def describe(self, plan: WholePlan, secret: bool) -> Description:
        """Return what the files hold, and what was run."""
        said = self.stated_plan
        return Description(
            said["config"],
            said,
            self.stated_facts,
            [(name, str(said[name])) for name in ("sampler", "mechanism") if said.get(name)],
            labelled("guarantee", "none" if self.guarantee is None else ""),
        )


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
