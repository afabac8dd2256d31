"""Quiet steps beside loud ones: the lower bound raised a ValueError of scipy instead of a number."""
import time
from dpmcmc.privacy.accounting import Event, Adjacency, lower_bound, pld
for ev in ([Event("poisson_gaussian", 1.0, .01, 1000), Event("poisson_gaussian", 100.0, .001, 1)], [Event("poisson_gaussian", .5, .1, 10), Event("poisson_gaussian", 3000.0, .001, 5)], [Event("poisson_gaussian", .5, .1, 1000), Event("poisson_gaussian", 30.0, .001, 5)]):
    t=time.time()
    try: print(lower_bound.epsilon(ev, Adjacency.REPLACE_ONE, 1e-6), pld.epsilon(ev, Adjacency.REPLACE_ONE, 1e-6), time.time()-t)
    except Exception as e: print(type(e).__name__, str(e)[:80])
