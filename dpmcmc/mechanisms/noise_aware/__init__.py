"""Posterior draws whose intervals account for the noise of privacy: one file a way of releasing and concluding.

``mechanism``  ``NoiseAware``: what a user says, and the way of each target
``way``        what a way must have;  ``prior``  the prior that all of them conclude under
``descent``    gradients, each at the posterior's mean given those before it
``linear``     linear regression, from its sufficient statistics;  ``score_moment``  its sandwich
``gradients``  regressions whose scores are bounded (``inference/scores``), from a Gram matrix and gradients;
``bounded_gradient``  their access to records
``model_gradients``  NumPyro models, whose score is bounded too;  ``model_rows``  their access to records;
``model_posterior``  draws from a model's own prior times a normal likelihood
"""

from dpmcmc.mechanisms.noise_aware.mechanism import NoiseAware

__all__ = ["NoiseAware"]
