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
posterior, stats = opened["path"], opened["path_stats"]
held = opened.children if hasattr(opened, "children") else opened.groups()
assert "posterior" not in held
assert dict(posterior.sizes)["chain"] == 2 and dict(posterior.sizes)["draw"] == 100, posterior.sizes
assert "gradient_norm" in stats and stats["gradient_norm"].shape == (2, 100)
assert "DP" in posterior.attrs["guarantee"]
import dpmcmc
result = dpmcmc.Result.load(sys.argv[2])
names = list(result.columns)
for made in (opened, result.to_arviz()):
    assert list(made["path"].coords["column"].values) == names, made
    assert made["path"]["theta"].dims == ("chain", "draw", "column")
path = posterior.to_dataset() if hasattr(posterior, "to_dataset") else posterior
ess = arviz.ess(path, method="mean") if "method" in arviz.ess.__code__.co_varnames else arviz.ess(path)
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


POSTERIOR = """
import sys, warnings
warnings.simplefilter("ignore")
import arviz, numpy
import dpmcmc
result = dpmcmc.Result.load(sys.argv[1])
for opened in (arviz.from_netcdf(sys.argv[1] + "/draws.nc"), result.to_arviz()):
    table = arviz.summary(opened)
    assert len(table) == len(result.columns), table
    numpy.testing.assert_allclose(table["mean"].astype(float), result.noise_aware().mean, atol=0.01)
    assert (table["r_hat"].astype(float) < 1.02).all(), table
"""


@pytest.mark.slow
def test_the_summary_of_arviz_is_that_of_the_posterior_of_a_path(tmp_path):
    data = dpmcmc.data.load("two_normals")
    plan = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(3.0, num_features=3, row_bound=1.0),
        num_records=1000,
        sampler=dpmcmc.SGLD(4.0),
        steps=80,
        burn_in=0.5,
        privacy=dpmcmc.Privacy(epsilon=20.0, delta=1e-5),
        metric=dpmcmc.PrivateMetric(),
    )
    result = dpmcmc.sample(plan, data, out=tmp_path / "out")
    assert result.posterior is not None
    done = subprocess.run(
        [sys.executable, "-c", POSTERIOR, tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Shape validation failed" not in done.stderr
