"""Draws open in ArviZ, whichever of its two generations is installed, with their sample statistics."""

import subprocess
import sys

import pytest

import dpmcmc

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
