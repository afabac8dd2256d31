"""Privacy: one noisy query, one calibrator, one accountant, one ledger.

``query``        the only place that reads records in a step
``accounting``   nominal noise to charged events, events to ε; no JAX
``calibration``  ε to noise
``ledger``       the budget of all runs on one data set

Names are declared in ``__init__.pyi`` and load when they are first used. ``audit`` is a room above this one; it is
given here by name because ``dpmcmc.privacy.audit`` is part of the contract.
"""

import importlib
from typing import Any

import lazy_loader

_declared, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["audit"]


def __getattr__(name: str) -> Any:
    return importlib.import_module("dpmcmc.audit") if name == "audit" else _declared(name)
