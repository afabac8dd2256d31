"""Randomised labels, then a promise about records, in one process without a ledger; both orders."""
import numpy as np, dpmcmc
from dpmcmc.mechanisms import RandomisedResponse
t = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=2.0)
rec = {"x": np.linspace(-1, 1, 200).reshape(100, 2).astype(np.float32), "y": np.zeros(100, int)}
a = RandomisedResponse(draws=8).plan(t, num_records=100, epsilon=1.0)
b = dpmcmc.plan(t, num_records=100, sampler=dpmcmc.SGLD(step_size=1.0), steps=10, privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5))
for p in (a, b, a, b):
    r = dpmcmc.sample(p, rec)
    print(type(p).__name__, r.uncharged)
