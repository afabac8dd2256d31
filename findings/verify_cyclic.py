"""dpmcmc verify refuses an honest cyclic run at phi 0 whose noise differs between steps."""
import pathlib, subprocess, sys, tempfile, numpy as np
import dpmcmc
tmp = pathlib.Path(tempfile.mkdtemp())
def calibrator(queries, promise):
    z = np.full(40, 12.0)
    z[0] = 11.0       # residue 0 has the least noise of all ...
    z[4::4] = 60.0    # ... and pays least
    return z
plan = dpmcmc.plan(dpmcmc.targets.LogisticRegression(num_features=2, row_bound=2.0), num_records=100, sampler=dpmcmc.SGLD(step_size=1e-3, temperature=0.0) if False else dpmcmc.SGLD(step_size=40.0), sampling=dpmcmc.Cyclic(25), steps=40, privacy=dpmcmc.Privacy(epsilon=8.0, delta=1e-5, calibrator=calibrator))
print(plan.noise_multipliers[:8], [ (e.mechanism, e.noise_multiplier, e.count) for e in plan.guarantee.events])
rec = {"x": np.linspace(-1, 1, 200).reshape(100, 2).astype(np.float32), "y": np.zeros(100, int)}
dpmcmc.sample(plan, rec, out=tmp / "run")
out = subprocess.run([sys.executable, "-m", "dpmcmc", "verify", str(tmp / "run")], capture_output=True, text=True)
print(out.returncode, out.stdout, out.stderr)
