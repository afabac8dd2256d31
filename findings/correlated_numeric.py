"""Brute force: S2 bound, covariance of drawn noise, uncrossing, key collisions."""
import numpy as np, jax, jax.numpy as jnp, itertools
import dpmcmc
from dpmcmc.privacy.accounting.correlated import sensitivity_squared, slow, total
rng = np.random.default_rng(0)
for phi in (0.1, .5, .9, .95):
    for m in (2, 3, 7):
        for T in (1, 2, 5, 13, 40):
            C = np.tril(phi ** np.clip(np.subtract.outer(np.arange(T), np.arange(T)), 0, None))
            worst = 0
            for j in range(min(m, T)):
                G = C[:, j::m]
                worst = max(worst, (G.T @ G).sum())
            assert worst <= sensitivity_squared(phi, -(-T // m), m), (phi, m, T)
# noise as drawn by a plan
from dpmcmc.engine.program import Program
plan = dpmcmc.plan(dpmcmc.targets.LogisticRegression(num_features=2, row_bound=2.0), num_records=103, sampler=dpmcmc.SGLD(step_size=1.0), sampling=dpmcmc.Cyclic(25, phi=0.8), steps=23, privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5))
z = plan.noise_multipliers[0]
print("events", plan.guarantee.events, "slots", plan.slots, "levels", plan.levels, "bits", plan.bits)
k = -(-23 // 5)
print("z charged", z * np.sqrt(k / sensitivity_squared(.8, k, 5)) / (1 + 2**-15))
