"""Conclusions from released numbers, at no further cost to privacy.

``normal_law``   posteriors from releases whose noise law is known;  ``predicted_width`` before a record is read
``curvature``    of a score, from normal rows;  ``corrected_matrix`` by a release of it
``denoised_moment``  a second moment, from a noisy release;  ``released_metric`` what a run makes of one
``scores``       bounded scores of a record (``bounded_score``), one file a family
``path_posterior``  the posterior that is concluded;  ``trace`` the path of a run that one is concluded from
``evidence``     what a noise-aware release says: checks and Bayes factors
``predictive``   predictions from released draws, and their scores on public test rows;  ``convergence`` R-hat
``decompositions``  eigenvalues and singular values where LAPACK's faster algorithms fail
``breakdown``    releases that are usable for nothing;  ``rare_levels`` levels with hardly any record
``names``        names of the numbers of a draw;  ``saved_arrays`` files that hold released arrays
"""

from dpmcmc.inference.evidence import Evidence as Evidence
from dpmcmc.inference.path_posterior import PathPosterior as PathPosterior
from dpmcmc.inference.trace import Trace as Trace
