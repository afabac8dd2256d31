"""How a posterior draw is made: one engine a file. ``ENGINES`` names them.

``closed_form``  exact draws for linear regression
``nuts``         the last states of NUTS chains, for any target

Draws depend on secret keys alone. Nothing else leaves an engine: no diagnostic is returned, printed or warned of.
"""

from __future__ import annotations

import warnings
from typing import Literal

import jax
import numpy as np

from dpmcmc.mechanisms.engines import closed_form, nuts
from dpmcmc.mechanisms.engines.protocol import DrawError, Engine, Wanted
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import record_shapes
from dpmcmc.targets.tempered import Tempered

__all__ = ["ENGINES", "DrawError", "Engine", "EngineName", "Wanted", "drawn"]


EngineName = Literal["nuts", "closed_form"]
ENGINES: dict[str, Engine] = {"closed_form": closed_form, "nuts": nuts}


def drawn(engine: str, target: Tempered, records: PyTree, wanted: Wanted, streams: Streams) -> PyTree:
    """Return draws of an engine, leaves (draws, ...); all of them are finite, and nothing is printed.

    Args:
        engine: a name out of ``ENGINES``.
        target: the posterior; its shapes are taken from the records.
        records: pytree of NumPy arrays, leaves (N, ...).
        wanted: how many, and where.
        streams: secret keys.

    Raises:
        DrawError: the engine has no draw; nothing leaves.
    """
    bound = target.bind(record_shapes(records))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # A library's warning would depend on the records.
        warnings.simplefilter("ignore")
        found = ENGINES[engine].draw(bound, records, wanted, streams)
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found)):
        raise DrawError(f"engine: {engine} left the range of floats. Nothing was released")
    return found
