"""Do any files outside confidential/ or any printed line depend on true labels beyond the randomised ones? Same randomised labels from different true labels, at the command line."""
import hashlib, json, os, pathlib, subprocess, sys, tempfile, numpy as np
code = '''
import sys, numpy as np
from dpmcmc.privacy.query import randomised_response as rr
from dpmcmc.privacy.query import randomness
import dpmcmc.mechanisms.randomised_response as m
fixed = np.random.default_rng(5).integers(0, 2, 300).astype(np.int32)
rr.RandomisedTable.drawn = lambda self, labels, key: fixed[:len(labels)].astype(np.asarray(labels).dtype)
import jax
real = randomness.streams_of
def streams(key, private):
    s, secret = real(key, private)
    keys = jax.random.split(jax.random.key(0, impl=randomness.CHACHA20), len(s._fields))
    return type(s)(*keys), secret
import dpmcmc.engine.life as life
life.streams_of = streams
from dpmcmc.cli.commands import main
sys.exit(main(sys.argv[1:]))
'''
seen = []
for seed in (0, 1):
    tmp = pathlib.Path(tempfile.mkdtemp())
    r = np.random.default_rng(9); x = r.uniform(-.5, .5, (300, 2)).astype(np.float32)
    y = np.random.default_rng(seed).integers(0, 2, 300).astype(np.int32) if seed else (x[:, 0] > 0).astype(np.int32)
    np.savez(tmp / "d.npz", x=x, y=y)
    (tmp / "c.yaml").write_text("name: lab\ndata: {path: d.npz, x: x, y: y, num_records: 300, num_features: 2, row_bound: 1.0, labels: {randomised: 1.0}}\ntarget: {name: logistic_regression}\nprivacy: null\n")
    (tmp / "r.py").write_text(code)
    out = subprocess.run([sys.executable, "-W", "ignore", "r.py", "run", "c.yaml", "--out", "out"], cwd=tmp, capture_output=True, text=True)
    files = {str(p.relative_to(tmp / "out")): p.read_bytes() for p in sorted((tmp / "out").rglob("*")) if p.is_file()}
    seen.append((out.returncode, out.stdout, out.stderr, files))
a, b = seen
print(a[0], b[0]); print(a[2][-500:]); print("stdout equal", a[1] == b[1])
for n in a[3]:
    if a[3][n] != b[3].get(n): print("differs:", n)
print(list(a[3]))
if a[1] != b[1]:
    import difflib; print("\n".join(difflib.unified_diff(a[1].splitlines(), b[1].splitlines(), lineterm="", n=0)))
for n in ("metrics.json", "plan.json", "privacy.json"):
    if n in a[3] and a[3][n] != b[3][n]:
        import difflib; print("\n".join(difflib.unified_diff(a[3][n].decode().splitlines(), b[3][n].decode().splitlines(), lineterm="", n=0)))
