r"""A private second moment of scores, B = Σ v vᵀ, for posteriors that hold though the model is wrong.

At the parameter θ* that the estimating equation Σ v(θ) = 0 aims at, scores v have mean zero and a sum of variance B. A
model says what B is; where the model is wrong its B is, too, and B from the records stands in its place: the sandwich
(Huber 1967, White 1982). θ* is the pseudo-true parameter.

Vectors v are linear maps of scores whose norm has a public bound c, so B is a Gram matrix with rows v and one more
:class:`GramRelease`: a replaced record moves it by √2·c² at most, and its trace by c². Its noise is large where records
are few and columns many. So what leaves is brought toward the model's B, as far as the noise asks for:

    B̂ = r·B_model + ρ (B̃ − r·B_model),   r = tr B̃ / tr B_model,   ρ = max(0, 1 − E‖noise‖²/‖B̃ − r·B_model‖²)

The trace, which says by how much scores vary more than the model thinks, is released on its own and is precise.
"""

from __future__ import annotations

import math

import jax
import numpy as np

from dpmcmc.inference.gram import project
from dpmcmc.mechanisms.noise_aware.way import Settled
from dpmcmc.mechanisms.one_shot import Asked
from dpmcmc.privacy.query.gram_release import GramRelease, NoisyGram, Rows, entries

#: Share of μ² for B, and the trace's part of it.
SHARE, _TRACE_PART = 0.1, 0.2


def settle(rows: Rows, asked: Asked, mu: float) -> Settled:
    """Return what the release of B costs, and its settings.

    Args:
        rows: public facts of the vectors v.
        asked: the promise.
        mu: of the whole mechanism.
    """
    mus = (mu * math.sqrt(SHARE * part) for part in (1 - _TRACE_PART, _TRACE_PART))
    release = GramRelease.settle(rows, asked.adjacency, *mus)
    settings = {"score_noise_std": release.noise_std, "score_trace_noise_std": release.trace_std}
    return asked.gram(release), settings


def released(
    rows: Rows, settings: dict[str, float], scores: np.ndarray, model: np.ndarray, key: jax.Array
) -> np.ndarray:
    """Return B̂, (d, d).

    Args:
        rows: public facts of the vectors.
        settings: of :func:`settle`.
        scores: the vectors v, (N, d).
        model: the model's B in the same units, (d, d).
        key: secret JAX key, used for nothing else.
    """
    release = GramRelease(rows, settings["score_noise_std"], settings["score_trace_noise_std"])
    return toward(model, release.release(scores, key))


def toward(model: np.ndarray, noisy: NoisyGram) -> np.ndarray:
    """Return a noisy second moment, shrunk toward the multiple of ``model`` that has its trace."""
    expected = model * (noisy.trace / np.trace(model))
    apart = noisy.gram - expected
    # Variance σ² on the diagonal and σ²/2 off it.
    noise = noisy.noise_std**2 * entries(len(model))
    kept = max(0.0, 1 - noise / max(float(np.sum(apart**2)), 1e-300))
    return project(expected + kept * apart, noisy.trace)
