"""NumPyro models as targets.

``model``      ``from_numpyro``: densities, predictions and constrained draws
``predictor``  parameters of a record's distribution
``sites``      a model's sites, read from shapes;  ``trial`` of them on synthetic records
``densities``  on the real line
"""

from dpmcmc.targets.numpyro.model import from_numpyro

__all__ = ["from_numpyro"]
