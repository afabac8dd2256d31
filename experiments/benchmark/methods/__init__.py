"""Methods, one file a family.

``contract``   what a method is given and returns
``ours``       ``dpmcmc.fit``, ``dpmcmc.suggest`` and the library's samplers
``one_shot``   the library's one-shot mechanisms
``libraries``  diffprivlib and OpenDP
``dpsgd``      jax-privacy and Opacus, with ensembles
``papers``     the DP bootstrap and BinAgg, from the formulas of their papers
``limit``      fits without privacy
"""

from experiments.benchmark.methods import dpsgd, libraries, limit, one_shot, ours, papers
from experiments.benchmark.methods.contract import Method

METHODS: dict[str, Method] = {
    method.name: method for family in (ours, one_shot, libraries, dpsgd, papers, limit) for method in family.METHODS
}
#: Rivals that are not run, and why.
NOT_RUN = {
    "d3p, twinify": "d3p 0.2 (noise-aware VI) and twinify 2.0 (NAPSU-MQ) need NumPy 1; the library needs NumPy 2",
    "Repro": "Awan and Wang's method has a page of numbers, which docs/benchmark.md has beside ours, and no package",
}
