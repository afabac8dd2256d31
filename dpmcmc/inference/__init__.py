"""Conclusions from released numbers, at no further cost to privacy.

``convergence``  effective sample size and R-hat of released draws
``evidence``     what a noise-aware release says: checks, replicates, Bayes factors, posteriors of nested models
``noise_aware``  posteriors from releases whose noise law is known
``predictive``   predictions from released draws, and their scores on public test rows
``synthetic``    synthetic tables from a noise-aware release, and intervals from several of them
``trace``        the posterior that follows from the path of a run in a metric: ``Trace.load(folder).posterior()``
"""

from dpmcmc.inference.evidence import Evidence as Evidence
from dpmcmc.inference.trace import NoiseAwarePosterior as NoiseAwarePosterior
from dpmcmc.inference.trace import Trace as Trace
