"""The stage that a mechanism adds to a plan: it reads all records once, and an estimate or a few draws leave.

It is a plan by itself, or the first of two stages, whose draw every chain starts from (``mechanisms/hybrid.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpmcmc.planning.description import Description
from dpmcmc.planning.permitted_uses import UNJUDGED, Verdict
from dpmcmc.planning.settings_json import section
from dpmcmc.planning.stages import Stage
from dpmcmc.planning.whole_plan import WholePlan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_up


@dataclass(frozen=True, eq=False)
class MechanismRelease(Stage):
    """One release by a mechanism.

    Attributes:
        mechanism: what is released, and how (``mechanisms/base.py``).
        guarantee: of everything that leaves.
        settings: public numbers that were settled (temper, noise std, ...), for people and for ``plan.json``.
        draws: how many draws leave.
        candidates: plans that are carried out within the release, of which it chooses one.
        verdict: on the draws by themselves, where a run starts from one.
    """

    mechanism: Any
    guarantee: Guarantee
    settings: dict[str, float]
    draws: int = 1
    candidates: tuple[Any, ...] = ()
    verdict: Verdict = UNJUDGED

    @property
    def charged_draws(self) -> int:
        """Posterior draws that the guarantee must charge for; 0 for an estimate, and for what follows from labels."""
        return 0 if self.mechanism.release in ("estimate", "labels") else self.draws

    @property
    def label(self) -> str:
        """Name of the mechanism."""
        return type(self.mechanism).__name__

    @property
    def unproved(self) -> str:
        """The part that is drawn in floating point; empty where there is none."""
        part = self.mechanism.in_floats
        return f"{part} is computed in floating point" if part else ""

    @property
    def parts(self) -> tuple[object, ...]:
        """Samplers of runs within the release, and mechanism."""
        samplers = (one.run.sampler for one in self.candidates if one.run is not None)
        return (*samplers, self.mechanism)

    def describe(self, plan: WholePlan, secret: bool) -> Description:
        """Return the mechanism and its settings; where a chain starts from its draw, a plan of its own."""
        said = ", ".join(f"{name} {_said(name, value)}" for name, value in self.settings.items())
        made = section(self.mechanism)
        name = repr(self.mechanism)
        # A verifier needs these beside the guarantee.
        facts = {
            "in_floats": self.mechanism.in_floats,
            "mechanism": name,
            "settings": self.settings,
            "charged_draws": self.charged_draws,
        }
        if self is plan.main:
            stated = {"mechanism": name, "draws": self.draws, "settings": self.settings}
            lines = [("mechanism", name)]
            return Description({"mechanism": made}, stated, facts, lines, [("settings", said)])
        drawn = f"every chain starts at one draw of {self.label}, which alone has epsilon "
        line = f"{drawn}{round_up(self.guarantee.epsilon)}; its settings: {said}"
        alone = plan.alone(self).describe(secret).stated
        return Description({"start": made}, {"start": alone}, facts, [("start", line)])


def _said(name: str, value: float) -> str:
    """A number for people; a price never below what it is."""
    return round_up(value) if "epsilon" in name or name == "mu" else f"{value:.4g}"
