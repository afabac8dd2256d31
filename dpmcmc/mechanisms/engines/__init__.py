"""How a posterior draw is made. One file each, one protocol; ``ENGINES`` names them.

An engine is a module with ``EXACT`` (whether its draw is one, up to rounding), ``check(target, radius)``, which refuses
from public facts a target it is not for, and ``draw(target, records, *, radius, draws, steps, streams)``, which returns
``draws`` independent draws from the target on ‖θ‖ <= radius, leaves (draws, ...). Draws depend on secret keys alone,
and nothing else leaves: no diagnostic is returned, printed or warned of.
"""

from __future__ import annotations

from types import ModuleType

from dpmcmc.mechanisms.engines import closed_form, nuts, sgnht
from dpmcmc.mechanisms.engines.errors import DrawError

ENGINES: dict[str, ModuleType] = {"closed_form": closed_form, "nuts": nuts, "sgnht": sgnht}

__all__ = ["ENGINES", "DrawError"]
