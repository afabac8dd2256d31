"""Random search for events where the lower bound exceeds an upper bound, or the exact value of one step."""
import numpy as np, math, time
from scipy.stats import norm
from dpmcmc.privacy.accounting import Event, Adjacency, lower_bound, pld
rng = np.random.default_rng(1)
t0 = time.time(); worst = -1; n = 0
while time.time() - t0 < 70:
    adj = Adjacency(rng.choice(["replace_one", "add_remove", "zero_out"]))
    kinds = rng.integers(1, 4)
    ev = []
    for _ in range(kinds):
        q = float(10 ** rng.uniform(-4, 0)) if rng.random() < .9 else 1.0
        z = float(10 ** rng.uniform(-.4, 1.5))
        c = int(10 ** rng.uniform(0, 2))
        mech = "gaussian" if q == 1 or rng.random() < .15 else "poisson_gaussian"
        ev.append(Event(mech, z, 1.0 if mech == "gaussian" else q, c))
    d = float(10 ** rng.uniform(-12, -1))
    try:
        lo = lower_bound.epsilon(ev, adj, d); hi = pld.epsilon(ev, adj, d)
    except Exception as e:
        print("raised", type(e).__name__, str(e)[:100], ev, d); continue
    n += 1
    if lo > hi * (1 - 1e-9):
        pure_g = all(e.mechanism == "gaussian" for e in ev)
        if not pure_g or lo > hi: print("LOWER > UPPER", lo, hi, ev, adj, d)
    worst = max(worst, (lo - hi) / max(hi, 1e-9))
print(n, "max relative lower-upper", worst)
# one step exact, remove direction
def delta_exact(eps, z, q):
    # P=(1-q)N(0)+qN(1), Q=N(0): P > e^eps Q <=> x > t
    if math.exp(eps) <= 1 - q: return None
    t = z * z * math.log((math.exp(eps) - 1 + q) / q) + .5
    return (1 - q) * norm.sf(t / z) + q * norm.sf((t - 1) / z) - math.exp(eps) * norm.sf(t / z)
def delta_add(eps, z, q):
    # P=N(0), Q=mixture ; P/Q > e^eps <=> x < t
    r = (math.exp(-eps) - 1 + q) / q
    if r <= 0: return 0.0
    t = z * z * math.log(r) + .5
    return norm.cdf(t / z) - math.exp(eps) * ((1 - q) * norm.cdf(t / z) + q * norm.cdf((t - 1) / z))
bad = 0
for _ in range(30):
    z = float(10 ** rng.uniform(-.4, 1)); q = float(10 ** rng.uniform(-3, -.05)); d = float(10 ** rng.uniform(-8, -1))
    lo = lower_bound.epsilon([Event("poisson_gaussian", z, q, 1)], Adjacency.ADD_REMOVE, d)
    if lo > 1e-9:
        ex = max(delta_exact(lo, z, q) or 0, delta_add(lo, z, q))
        if ex < d * (1 - 1e-7): bad += 1; print("one step: lower bound too large", z, q, d, lo, ex)
print("bad", bad)
