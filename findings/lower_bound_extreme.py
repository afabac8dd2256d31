import time, sys
from dpmcmc.privacy.accounting import Event, Adjacency, lower_bound, pld
for ev in ([Event("gaussian", 0.22929734799443122, 1.0, 235), Event("poisson_gaussian", 11.728878422217106, 0.0049352118029895335, 10)], [Event("gaussian", 0.05, 1.0, 1), Event("poisson_gaussian", 0.1, 0.9, 30)], [Event("poisson_gaussian", 0.05, 0.001, 1)], [Event("poisson_gaussian", 0.02, 0.001, 1)], [Event("gaussian", 0.3, 1.0, 50), Event("poisson_gaussian", 20, 1e-4, 3)]):
    for adj in (Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE):
      for d in (1e-9, 1e-2):
        t = time.time()
        try: lo = lower_bound.epsilon(ev, adj, d)
        except Exception as e: lo = repr(e)[:60]
        t1 = time.time(); hi = pld.epsilon(ev, adj, d); t2 = time.time()
        print(d, str(adj), lo, hi, f"{t1-t:.1f}s {t2-t1:.1f}s", flush=True)
