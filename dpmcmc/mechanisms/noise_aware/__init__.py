"""Posterior draws whose intervals account for the noise of privacy: one file a strategy of releasing and concluding.

``mechanism``  ``NoiseAware``: what a user says, the strategy of each target, and linear regression
``prior``      what a strategy must have, and the prior that all conclude under; owners of several records
``gradients``  regressions whose scores are bounded (``inference/scores.py``), from a Gram matrix and gradients
``model``      NumPyro models, whose score is bounded too
"""

from dpmcmc.mechanisms.noise_aware.mechanism import NoiseAware

__all__ = ["NoiseAware"]
