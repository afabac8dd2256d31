"""Conclusions from released numbers, at no further cost to privacy.

``noise_aware``  posteriors from releases whose noise law is known: Gram matrices, curvatures, metrics
``scores``       bounded scores of a record, one class a family
``trace``        the path of a run in a metric, and the posterior that follows from it
``evidence``     what a noise-aware release says: checks, replicates, Bayes factors
``predictive``   predictions from released draws, and their scores on public test rows;  ``convergence`` R-hat
``decompositions``  eigenvalues and singular values where LAPACK's faster algorithms fail
``names``        names of the numbers of a draw, and files that hold released arrays
"""

from dpmcmc.inference.evidence import Evidence as Evidence
from dpmcmc.inference.trace import PathPosterior as PathPosterior
from dpmcmc.inference.trace import Trace as Trace
