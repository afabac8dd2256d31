"""A cyclic run with phi on disk, in memory and after an interruption elsewhere: same steps charged, same bits, batches by step."""
import numpy as np, tempfile, pathlib, warnings, jax
warnings.simplefilter("ignore")
import dpmcmc
from dpmcmc.engine.program import Program
from dpmcmc.storage import checkpoint as cp
rng = np.random.default_rng(0)
x = (rng.uniform(-.5, .5, (103, 3))).astype(np.float32); y = rng.integers(0, 2, 103).astype(np.int32)
plan = dpmcmc.plan(dpmcmc.targets.LogisticRegression(num_features=3, row_bound=1.0), num_records=103, sampler=dpmcmc.SGLD(step_size=1.0), sampling=dpmcmc.Cyclic(25, phi=0.8), steps=57, chains=2, privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5))
tmp = pathlib.Path(tempfile.mkdtemp())
a = dpmcmc.sample(plan, {"x": x, "y": y}, key=3)
np.save(tmp / "x.npy", x); np.save(tmp / "y.npy", y)
m = {"x": np.load(tmp / "x.npy", mmap_mode="r"), "y": np.load(tmp / "y.npy", mmap_mode="r")}
b = dpmcmc.sample(plan, m, key=3)
print("disk equals memory", np.array_equal(a.draws, b.draws))
# elsewhere
class Stop(BaseException): pass
def stop(done, total):
    if done > 30: raise Stop
k = tmp / "c"
try: dpmcmc.sample(plan, {"x": x, "y": y}, checkpoint=k, progress=stop)
except Stop: pass
old = cp.platform
cp.platform = lambda own=True: "elsewhere"
r = dpmcmc.sample(plan, {"x": x, "y": y}, checkpoint=k)
print("planned", plan.guarantee.epsilon, "after", r.guarantee.epsilon, [(e.mechanism, round(e.noise_multiplier, 3), e.count) for e in r.guarantee.events])
