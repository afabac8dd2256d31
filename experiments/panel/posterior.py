"""The non-private posterior of a panel's model, by NUTS, and its mode: what privacy is held against.

Reads every training record without privacy; the benchmark sets are public.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np

from dpmcmc.diagnostics import reference
from dpmcmc.mechanisms.huberised import HuberisedLogistic
from dpmcmc.mechanisms.minimise import minimise
from dpmcmc.storage.files import open_regular
from experiments.nuts import nuts_posterior
from experiments.panel.config import Panel
from experiments.panel.trial import Site, seed_of


def nuts(panel: Panel, site: Site, encoding: str, folder: Path) -> np.ndarray:
    """Draws, (draws, d) float32; kept in the folder, which a run that was killed goes on from."""
    path = folder / f"posterior_{encoding}.npz"
    length = json.dumps([panel.reference.model_dump(), panel.seed])
    if path.exists():
        with open_regular(path) as stream, np.load(stream, allow_pickle=False) as kept:
            if str(kept["length"]) == length:
                return kept["draws"]
    r = panel.reference
    key = jax.random.key(seed_of("posterior", panel.seed, encoding))
    chains = nuts_posterior(site.target(), site.records, r.draws, key, chains=r.chains, warmup=r.warmup, thin=r.thin)
    draws = np.asarray(chains, np.float32).reshape(-1, site.records["x"].shape[1])
    np.savez(path, draws=draws, length=length)
    return draws


def mode(site: Site) -> np.ndarray:
    """The MAP as one draw, (1, d)."""
    return np.asarray(reference.maximum_a_posteriori(site.target(), site.records).mean, np.float32)[None]


def clipped_mode(site: Site, clip: float = 0.5) -> np.ndarray:
    """The minimiser of the clipped loss as one draw, (1, d): clipped gradients without privacy go there."""
    target = site.target()
    theta, _ = minimise(HuberisedLogistic.of(target, clip), site.in_double, target.prior_precision, tolerance=1e-6)
    return np.asarray(theta, np.float32)[None]
