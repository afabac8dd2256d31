"""Random search for events where the lower bound exceeds the pld upper bound; none found."""
import numpy as np, time
from dpmcmc.privacy.accounting import Event, Adjacency, lower_bound, pld
rng = np.random.default_rng(3); t0 = time.time(); n = 0; worst = -1
while time.time() - t0 < 60:
    adj = Adjacency(rng.choice(["replace_one", "add_remove", "zero_out"]))
    ev = [Event("poisson_gaussian", float(10 ** rng.uniform(-.1, 1.5)), float(10 ** rng.uniform(-3, -.1)), int(rng.integers(1, 40))) for _ in range(rng.integers(1, 4))]
    if rng.random() < .3: ev.append(Event("gaussian", float(10 ** rng.uniform(0.3, 1.5)), 1.0, int(rng.integers(1, 10))))
    d = float(10 ** rng.uniform(-9, -2))
    lo = lower_bound.epsilon(ev, adj, d); hi = pld.epsilon(ev, adj, d); n += 1
    if lo > hi: print("LOWER > UPPER", lo, hi, ev, adj, d, flush=True)
    worst = max(worst, (lo - hi) / max(hi, 1e-9))
print(n, "worst", worst)
