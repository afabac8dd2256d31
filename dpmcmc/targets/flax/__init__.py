"""Flax networks as targets.

``module``       ``from_flax``: likelihood, prior and prediction over a network's outputs
``networks``     Linen and NNX modules as one kind of ``network``
``ghost_norms``  per-record gradients of dense layers as outer products
"""

from dpmcmc.targets.flax.module import from_flax

__all__ = ["from_flax"]
