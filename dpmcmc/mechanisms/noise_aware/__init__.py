"""Posterior draws whose intervals account for the noise of privacy: one file a strategy of releasing and concluding.

``mechanism``  ``NoiseAware``: what a user says, the strategy of each target, and linear regression
``prior``      what a strategy must have, and the prior that all conclude under; owners of several records
``regression`` regressions whose scores are bounded (``inference/scores.py``): how their budget is shared
``facts``      their public facts: bounds, the metric's floor, the path of gradients
``releases``   what they release in its order, and the posterior that follows
``gradients``  their access to records, and how gradients share a budget
``scale``      the scale of residuals and the dispersion of counts, learnt on the way
``model``      NumPyro models, whose score is bounded too
"""

from dpmcmc.mechanisms.noise_aware.mechanism import NoiseAware
from dpmcmc.mechanisms.noise_aware.options import Normal

__all__ = ["NoiseAware", "Normal"]
