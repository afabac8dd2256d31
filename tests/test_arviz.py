"""Draws open in ArviZ, whichever of its two generations is installed, with their sample statistics."""

import subprocess
import sys

import numpy as np
import pytest

import dpmcmc
from dpmcmc.inference import convergence
from dpmcmc.privacy.query.randomness import streams_of

# ArviZ 0.23 warns on import, which this suite counts as an error; a program of its own does not.
SUMMARY = """
import sys, warnings
warnings.simplefilter("ignore")
import arviz, numpy
opened = arviz.from_netcdf(sys.argv[1])
posterior, stats = opened["posterior"], opened["sample_stats"]
assert dict(posterior.sizes)["chain"] == 2 and dict(posterior.sizes)["draw"] == 100, posterior.sizes
assert "gradient_norm" in stats and stats["gradient_norm"].shape == (2, 100)
assert "DP" in posterior.attrs["guarantee"]
import dpmcmc
result = dpmcmc.Result.load(sys.argv[2])
names = list(result.columns)
for made in (opened, result.to_arviz()):
    assert list(made["posterior"].coords["column"].values) == names, made
    assert made["posterior"]["theta"].dims == ("chain", "draw", "column")
ess = arviz.ess(opened, method="mean") if "method" in arviz.ess.__code__.co_varnames else arviz.ess(opened)
print(float(numpy.min(ess["theta"].values)))
"""


@pytest.mark.slow
def test_draws_open_in_arviz(tmp_path):
    data = dpmcmc.data.load("two_normals")
    plan = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(),
        num_records=1000,
        sampler=dpmcmc.SGHMC(8.0, friction=0.5),
        steps=2000,
        burn_in=1000,
        thin=10,
        chains=2,
        privacy=dpmcmc.Privacy(epsilon=20.0, delta=1e-5),
    )
    # The same draws each time: of few effective ones two estimates can be four times apart.
    key = dpmcmc.SecretKey._of(streams_of(1)[0])
    result = dpmcmc.sample(plan, data, key=key, out=tmp_path / "out")
    assert result.columns == data.columns
    done = subprocess.run(
        [sys.executable, "-c", SUMMARY, tmp_path / "out" / "draws.nc", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own = convergence.summary(result.draws)["ess"]
    # Two estimators of one number: rank-free and rank-normalised split chains differ by tens of percent.
    assert np.isfinite(own)
    assert 0.3 < float(done.stdout) / own < 3
