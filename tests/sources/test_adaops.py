"""AdaOPS and the ridge perturbations beside it: exact pairs of neighbours cost no more than is charged."""

import math

import numpy as np
import pytest

from dpmcmc.privacy import CalibrationError
from dpmcmc.privacy.accounting.gaussian import gaussian_delta
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression
from experiments.figure_files import read_table
from experiments.ridge_perturbation import Ridge, objective_std, output_std
from experiments.sources import adaops

ROW, LABEL = 1.5, 2.0
TARGET = LinearRegression(1.0, 0.5, LABEL, num_features=3, row_bound=ROW)


def normal_delta(first, second, epsilon):
    """δ(ε) of N(first) against N(second) in one dimension, by quadrature; both orders."""
    worst, z = 0.0, np.linspace(-9.5, 9.5, 20_001)
    for (mean, variance), (other, wide) in ((first, second), (second, first)):
        weight = np.exp(-0.5 * z**2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
        loss = 0.5 * ((mean + z * math.sqrt(variance) - other) ** 2 / wide - z**2 + math.log(wide / variance))
        worst = max(worst, float(np.sum(weight * -np.expm1(np.minimum(epsilon - loss, 0.0)))))
    return worst


def added_record(mu, r, gamma):
    """Laws of a posterior without and with a record of leverage mu and residual r."""
    inside = mu / (1 + mu)
    return (0.0, mu / gamma), (inside * r, inside / gamma)


def test_the_pair_s_oracle_has_the_published_values():
    """ε at (leverage, residual, γ, δ), from the source notes."""
    for mu, r, gamma, epsilon in ((0.01, 1, 10, 1.458375), (0.1, 1, 1, 2.311480)):
        pair = added_record(mu, r, gamma)
        assert normal_delta(*pair, epsilon - 2e-5) > 1e-6 > normal_delta(*pair, epsilon + 2e-5)


@pytest.mark.parametrize("epsilon", [0.3, 5.0])
def test_exact_pairs_of_an_added_record_never_exceed_the_charge(epsilon):
    """And a charge that forgets the slabs, or the label's own part, is exceeded."""
    made = adaops.adaops(TARGET, 400, epsilon, 1e-5, shares=(0.1, 0.0), adjacency="add_remove")

    def worst(h, residual, gamma):
        most, found = ROW**2 / h, 0.0
        for mu in most * np.array([1e-3, 0.1, 1.0]):
            for r in residual * np.array([0.0, 0.6, 1.0]):
                for e in (0.05, 0.3, 1.0, 2.0):
                    charged = gaussian_delta(made.mus[2], e) + (1 + math.exp(e)) * made.failure
                    found = max(found, normal_delta(*added_record(mu, r, gamma), e) / charged)
        return found

    for h in made.least_curvature * np.array([1.2, 100.0]):
        assert worst(h, 6.0, made.precision(h, 6.0)) <= 1
    h = 1.2 * made.least_curvature
    assert worst(h, 6.0, h * (made.mus[2] / (ROW * 6.0)) ** 2) > 1
    h = 100 * made.least_curvature
    assert worst(h, 6.0 + LABEL, made.precision(h, 6.0)) > 1


def test_the_guarantee_is_of_the_events_and_a_draw_is_near_the_estimate():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 3))
    x *= 0.999 * ROW / np.linalg.norm(x, axis=1, keepdims=True)
    y = np.clip(x @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=len(x)), -LABEL, LABEL)
    made = adaops.adaops(TARGET, len(x), 1.0, 1e-5)
    assert 0.9999 < made.guarantee.epsilon <= 1.0
    assert [e.mechanism for e in made.guarantee.events].count("posterior_draw") == 1
    chosen, drawn = adaops.draw(made, x, y, streams_of(1)[0])
    assert np.linalg.norm(drawn - np.linalg.lstsq(x, y)[0]) < 0.1
    assert chosen.curvature <= np.linalg.eigvalsh(x.T @ x)[0] + chosen.ridge
    with pytest.raises(CalibrationError, match=r"^ridge"):
        adaops.adaops(TARGET, len(x), 1.0, 1e-5, ridge=1.0)


@pytest.mark.parametrize("planted", [1.0, 10.0])
def test_exact_pairs_of_the_baselines_are_within_their_epsilon(planted):
    """In one dimension both releases are normal; with a tenth of the noise they are not private."""
    facts, worst = Ridge(row=1.0, label=1.0, size=1, num_records=50, ridge=60.0, adjacency="replace_one"), [0.0, 0.0]
    stds = np.array([output_std(facts, 1.0, 1e-4), objective_std(facts, 1.0, 1e-4)]) / planted
    for share in (0.2, 1.0):
        for ends in (((1.0, 1.0), (1.0, -1.0)), ((-1.0, 1.0), (0.0, 0.0)), ((-1.0, 1.0), (1.0, 1.0))):
            laws = []
            for last_x, last_y in ends:
                x, y = np.append(np.full(49, share), last_x), np.append(np.ones(49), last_y)
                h = x @ x + facts.ridge
                laws.append([(x @ y / h, stds[0] ** 2), (x @ y / h, (stds[1] / h) ** 2)])
            worst = [
                max(now, normal_delta(*pair, 1.0)) for now, pair in zip(worst, zip(*laws, strict=True), strict=True)
            ]
    assert all((found <= 1e-4) == (planted == 1.0) for found in worst)


@pytest.mark.slow
def test_the_command_writes_table_and_picture(tmp_path):
    assert adaops.main(["--quick", "--out", str(tmp_path)]) == 0
    rows = {(r["design"], r["epsilon"], r["method"]): r for r in read_table(tmp_path / "results.csv")}
    assert {method for _, _, method in rows} == set(adaops.LOOKS)
    assert all(row["guarantee_epsilon"] <= row["epsilon"] for row in rows.values())
    errors = {method: rows["isotropic", 10.0, method]["error"] for method in adaops.LOOKS}
    assert errors["AdaSSP"] < errors["AdaOPS"] < 0.3 * errors["OPS, fixed ridge"]
    assert (tmp_path / "adaops.png").stat().st_size > 10_000
