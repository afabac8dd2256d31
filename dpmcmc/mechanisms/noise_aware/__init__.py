"""Posterior draws whose intervals account for the noise of privacy: one file a strategy of releasing and concluding.

``mechanism``  ``NoiseAware``: what a user says (``options``), and the ``strategy`` of each target
``statistics`` linear regression, from one release
``prior``      the prior that all conclude under;  ``owners`` of several records
``regression`` regressions whose scores are bounded (``inference/scores.py``): how their budget is shared
``facts``      their public facts: bounds, the metric's floor, the path of gradients
``releases``   what they release in its order, and the posterior that follows
``gradients``  their access to records;  ``descent`` private gradients one after the other
``scale``      what a score learns of its labels on the way:  ``residuals`` and ``dispersion``
``model``      NumPyro models, whose score is bounded too;  ``model_rows`` and ``model_draws``
"""

from dpmcmc.mechanisms.noise_aware.mechanism import NoiseAware
from dpmcmc.mechanisms.noise_aware.options import Normal

__all__ = ["NoiseAware", "Normal"]
