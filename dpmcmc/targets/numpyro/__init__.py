"""NumPyro models as targets.

``model``    ``from_numpyro``: densities, predictions and constrained draws
``sites``    a model's sites, read from shapes;  ``trial`` a model tried on synthetic records
``density``  densities at parameters on the real line;  ``predictor``  parameters of a record's distribution
"""

from dpmcmc.targets.numpyro.model import from_numpyro

__all__ = ["from_numpyro"]
