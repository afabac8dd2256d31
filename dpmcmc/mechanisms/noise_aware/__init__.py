"""Posterior draws whose intervals account for the noise of privacy: one file a strategy of releasing and concluding.

``mechanism``  ``NoiseAware``: what a user says (``options``), and the ``strategy`` of each target
``release``    one Gaussian release: what a plan says of it, and the noise that a run adds
``descent``    private gradients one after the other;  ``langevin`` takes them along a sampler's path
``prior``      the prior that all conclude under;  ``owners`` of several records
``statistics`` linear regression, from one release
``regression`` regressions whose scores are bounded (``inference/scores.py``); read them in this order:
    ``regression_plan`` the list of releases, from public facts;  ``regression_width`` predicts intervals
    ``regression_rows`` and ``regression_run`` carry the plan out;  ``regression_conclusion`` is the posterior
    ``metric``, ``expected_metric`` of the releases;  ``gradients`` the access to records;  ``clipping`` of labels
    ``scale``  what a score learns of its labels on the way:  ``residuals`` and ``dispersion``
``model``      NumPyro models, whose score is bounded too;  ``model_rows`` and ``model_draws``
"""

from dpmcmc.mechanisms.noise_aware.mechanism import NoiseAware
from dpmcmc.mechanisms.noise_aware.options import Normal

__all__ = ["NoiseAware", "Normal"]
