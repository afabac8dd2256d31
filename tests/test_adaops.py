"""AdaOPS: what each stage declares is what it does, and the whole is as private as it says, by quadrature."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from dpmcmc.mechanisms import adaops
from dpmcmc.mechanisms.adaops import AdaOPS, Stage
from dpmcmc.privacy import CalibrationError, Guarantee, UnsupportedCombination
from dpmcmc.privacy.accounting.gaussian import gaussian_delta
from dpmcmc.privacy.query.gaussian_release import gaussian_release
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from tests.test_command_line import ROOT, call

ROW, LABEL = 1.5, 2.0
TARGET = LinearRegression(prior_scale=1.0, noise_scale=0.5, label_bound=LABEL, num_features=3, row_bound=ROW)
BUDGET = {"num_records": 400, "epsilon": 1.0, "delta": 1e-5}
ADJACENCIES = ("replace_one", "add_remove", "zero_out")


def planned(mechanism=None, adjacency="replace_one", target=TARGET, **changes):
    return (mechanism or AdaOPS()).plan(target, adjacency=adjacency, **(BUDGET | changes))


def data(seed=0, count=400, size=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, size)) * np.geomspace(1, 0.3, size)
    x *= ROW / np.maximum(ROW, np.linalg.norm(x, axis=1, keepdims=True))
    return {"x": x, "y": np.clip(x @ np.linspace(1, -1, size) + 0.5 * rng.normal(size=count), -LABEL, LABEL)}


# ---- the draw: exact pairs against what it is charged ----


def normal_delta(first, second, epsilon, points=None):
    """δ(ε) of N(first) against N(second), in one or two dimensions, by quadrature in the first's own coordinates."""
    (mean, covariance), (other, wide) = first, second
    size = len(mean)
    z = np.linspace(-9.5, 9.5, points or (241 if size == 2 else 20_001))
    grid = np.stack(np.meshgrid(*[z] * size, indexing="ij"), axis=-1).reshape(-1, size)
    weight = np.exp(-0.5 * np.sum(grid**2, axis=1)) * ((z[1] - z[0]) / math.sqrt(2 * math.pi)) ** size
    gap = mean + grid @ np.linalg.cholesky(covariance).T - other
    square = np.sum(gap @ np.linalg.inv(wide) * gap, axis=1)
    loss = 0.5 * (square - np.sum(grid**2, axis=1) + np.log(np.linalg.det(wide) / np.linalg.det(covariance)))
    return float(np.sum(weight * -np.expm1(np.minimum(epsilon - loss, 0.0))))


def both(first, second, epsilon):
    return max(normal_delta(first, second, epsilon), normal_delta(second, first, epsilon))


def test_the_pair_s_oracle_has_the_published_values():
    """ε at (leverage, residual, γ, δ), from the source notes."""
    for mu, r, gamma, delta, epsilon in ((0.01, 1, 10, 1e-6, 1.458375), (0.1, 1, 1, 1e-6, 2.311480)):
        pair = added_record(mu, r, gamma)
        assert both(*pair, epsilon - 2e-5) > delta > both(*pair, epsilon + 2e-5)


def charged(stage, epsilon):
    """δ at ε that the guarantee pays for the draw alone: Gaussian DP, and the slabs."""
    return gaussian_delta(stage.draw_mu, epsilon) + (1 + math.exp(epsilon)) * stage.failure


def added_record(mu, r, gamma):
    """The 1-D pair of a posterior without and with a record of leverage mu and residual r."""
    inside = mu / (1 + mu)
    return (np.zeros(1), np.array([[mu / gamma]])), (np.array([inside * r]), np.array([[inside / gamma]]))


def worst_excess(stage, h, residual, gamma):
    """Largest (δ of a pair)/(δ charged) over leverages and residuals within the bounds, both directions, several ε."""
    most, worst = stage.row**2 / h, 0.0
    for mu in most * np.array([1e-3, 0.1, 0.5, 1.0]):
        for r in residual * np.array([0.0, 0.2, 0.6, 1.0]):
            pair = added_record(mu, r, gamma)
            for epsilon in (0.05, 0.3, 1.0, 2.0):
                worst = max(worst, both(*pair, epsilon) / charged(stage, epsilon))
    return worst


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 5.0])
def test_exact_pairs_of_an_added_record_never_exceed_the_charge(epsilon):
    """And a charge that forgets the slabs, the square root of h or the label's own part is exceeded."""
    stage = Stage.of(planned(AdaOPS(residual_share=0.0), "add_remove", epsilon=epsilon))
    for h in stage.least_curvature * np.array([1.2, 3.0, 100.0]):
        for residual in (0.5, 6.0):
            gamma = stage.precision(h, residual)
            assert worst_excess(stage, h, residual, gamma) <= 1
    h = 1.2 * stage.least_curvature
    without_slabs = h * (stage.draw_mu / (stage.row * 6.0)) ** 2
    assert worst_excess(stage, h, 6.0, without_slabs) > 1
    h = 100 * stage.least_curvature
    gamma = stage.precision(h, 6.0)
    assert worst_excess(stage, h, 6.0, 1.4 * gamma) > 1  # little is left to gain
    assert worst_excess(stage, h, 6.0 + LABEL, gamma) > 1


def replaced_records(h, angle, labels, centre, gamma):
    """Posteriors of two data sets that differ in one record, and the largest residual of either record at either."""
    common = np.diag([h, 2 * h])
    rows = ROW * np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    laws, residual = [], 0.0
    for x, y in zip(rows, labels, strict=True):
        precision = common + np.outer(x, x)
        mean = np.linalg.solve(precision, common @ centre + y * x)
        laws.append((mean, np.linalg.inv(precision) / gamma))
        residual = max(residual, *np.abs(rows @ mean - labels))
    return laws, residual


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_exact_pairs_of_a_replaced_record_never_exceed_the_charge(epsilon):
    stage = Stage.of(planned(AdaOPS(residual_share=0.0), epsilon=epsilon))
    closest = planted = 0.0
    for multiple in (1.5, 40.0):
        h = multiple * stage.least_curvature
        for angle in (0.0, 0.6, math.pi):
            for labels, centre in (((2.0, -2.0), (0.0, 0.0)), ((2.0, 2.0), (1.5, -3.0))):
                residual = replaced_records(h, angle, labels, np.array(centre), 1.0)[1]
                gamma = stage.precision(h, residual)
                laws, _ = replaced_records(h, angle, labels, np.array(centre), gamma)
                one_record, _ = replaced_records(h, angle, labels, np.array(centre), 4 * gamma)  # k = 1
                for e in (0.2, epsilon):
                    closest = max(closest, both(*laws, e) / charged(stage, e))
                    planted = max(planted, both(*one_record, e) / charged(stage, e))
    assert 0.05 < closest <= 1
    assert planted > 1


# ---- stages 1 and 2: declared sensitivities ----


def neighbours(rng, records, adjacency):
    """The records, and a neighbour of the kind that moves eigenvalues and estimates most."""
    gram = records["x"].T @ records["x"]
    weak = np.linalg.eigh(gram)[1][:, 0]
    row = weak if rng.random() < 0.5 else rng.normal(size=len(weak))
    one = {"x": ROW * row / np.linalg.norm(row) * rng.choice([-1, 1]), "y": LABEL * rng.choice([-1, 1])}
    i = rng.integers(len(records["y"]))
    other = {name: value.copy() for name, value in records.items()}
    if adjacency == "add_remove":
        return records, {name: np.concatenate([value, [one[name]]]) for name, value in other.items()}
    for name in other:
        other[name][i] = one[name]
    if adjacency == "replace_one":
        return records, other
    zeroed = {name: value.copy() for name, value in other.items()}
    for value in zeroed.values():
        value[i] = 0.0
    return other, zeroed


class Watch:
    """Records what is released, and may say what the release is."""

    def __init__(self, monkeypatch, given=None):
        self.values, self.stds, self.given, self.real = [], [], given, gaussian_release
        monkeypatch.setattr(adaops, "gaussian_release", self)

    def __call__(self, value, noise_std, key):
        self.values.append(float(value[0]))
        self.stds.append(noise_std)
        return self.real(value, noise_std, key) if self.given is None else np.array([self.given[len(self.values) - 1]])


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_replay_on_neighbours_differs_in_declared_inputs_alone(adjacency, monkeypatch):
    """Same noise, same released values: the same λ, h, R and γ to the bit. What is released moves within its charge."""
    rng = np.random.default_rng(3)
    moved = np.zeros(2)
    for seed in range(60):
        first, second = neighbours(rng, data(seed, 30), adjacency)
        plan = planned(AdaOPS(residual_share=0.2), adjacency, num_records=30, delta=1e-3)
        # What one data set releases is given to both.
        watch = Watch(monkeypatch)
        plan.mechanism.choose_and_draw(plan, first, streams_of(seed)[0])
        values, stds = watch.values, watch.stds
        # No low bound above the eigenvalues of either, as in all but ``failure`` of the runs.
        noisy = [values[0] - 2 * stds[0], values[1] + stds[1]]
        found = []
        for records in (first, second):
            watch = Watch(monkeypatch, noisy)
            chosen, drawn = plan.mechanism.choose_and_draw(plan, records, streams_of(seed)[0])
            found.append((chosen, drawn, watch.values, watch.stds))
        (chosen, drawn, values, stds), (other, other_drawn, other_values, other_stds) = found
        assert chosen == other
        assert stds == other_stds
        assert not np.array_equal(drawn, other_drawn)  # the declared access is one
        stage = Stage.of(plan)
        sensitivity = np.array([ROW**2, math.log1p(stage.factor * ROW**2 / chosen.curvature)])
        ratio = np.abs(np.subtract(values, other_values)) / sensitivity
        assert np.all(ratio <= 1 + 1e-9)
        moved = np.maximum(moved, ratio)
        # Charged for at least that.
        events = plan.guarantee.events
        for j, event in enumerate(events[:2]):
            assert event.mechanism == "gaussian"
            assert sensitivity[j] / stds[j] <= stage.factor / event.noise_multiplier
    assert moved[0] > 0.5  # a sensitivity of half that would be exceeded
    assert moved[1] > 0.1


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_bounds_hold_on_both_neighbours_up_to_their_quantiles(adjacency):
    """At the worst noise that ``failure`` lets pass; with the offset of a row left out, or added, they would not."""
    stage = Stage.of(planned(adjacency=adjacency))
    least = 50.0
    noise = stage.quantile * stage.eigenvalue_noise
    assert least - ROW**2 - 1e-6 <= stage.low(least + noise) <= least - ROW**2
    assert stage.low(least + noise) + 2 * ROW**2 > least - ROW**2  # planted: the offset added
    assert stats.norm.sf(stage.quantile) <= stage.failure
    assert 2 * stage.factor * stats.norm.sf(stage.slab_quantile) <= stage.failure
    low, ridge = 20.0, 7.0
    sensitivity, noise = stage.residual_sensitivity(low, ridge), stage.residual_noise(low, ridge)
    log_size = 1.3
    upper = stage.residual_from(log_size - stage.quantile * noise, low, ridge)
    assert math.exp(log_size + sensitivity) <= upper <= math.exp(log_size + sensitivity) * (1 + 1e-6)


def test_worst_case_residuals_are_bounded_and_nearly_attained():
    """One column, every label against it: the residual of a further record is all but the bound."""
    target = LinearRegression(1.0, 1.0, LABEL, num_features=1, row_bound=ROW)
    stage = Stage.of(planned(target=target))
    for share in (0.0, 0.2, 1.0):
        x = np.full((400, 1), ROW * math.sqrt(share))
        total = float(np.sum(x**2))
        for ridge in (10.0, 300.0, 3000.0):
            estimate = float(np.sum(x) * LABEL) / (total + ridge)
            assert LABEL + ROW * abs(estimate) <= stage.residual_bound(total, ridge)
    total = 400 * ROW**2
    estimate = 400 * ROW * LABEL / (total + 1.0)
    assert LABEL + ROW * estimate == pytest.approx(stage.residual_bound(total, 1.0), rel=1e-9)


# ---- the whole, exactly, in one dimension ----


def whole_delta(plan, first, second, epsilons):
    """δ at each ε of (released eigenvalue, draw) between two data sets of one column, by quadrature over both."""
    stage = Stage.of(plan)
    grams = [float(np.sum(x**2)) for x, _ in (first, second)]
    moments = [float(np.sum(x * y)) for x, y in (first, second)]
    z = np.linspace(-7.5, 7.5, 101)
    out = np.zeros((2, len(epsilons)))
    for way, (g, g2, m, m2) in enumerate(((*grams, *moments), (*grams[::-1], *moments[::-1]))):
        for point in z:
            noisy = g + stage.eigenvalue_noise * point
            low = stage.low(noisy)
            ridge = stage.choose_ridge(low)
            gamma = stage.precision(low + ridge, stage.residual_bound(low, ridge))
            # A loss from the eigenvalue shifts ε of the draw.
            loss = 0.5 * (((noisy - g2) / stage.eigenvalue_noise) ** 2 - point**2)
            laws = [(np.array([b / (a + ridge)]), np.array([[1 / gamma / (a + ridge)]])) for a, b in ((g, m), (g2, m2))]
            weight = math.exp(-0.5 * point**2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
            out[way] += [weight * normal_delta(*laws, epsilon - loss, 3001) for epsilon in epsilons]
    return np.max(out, axis=0)


def column(last):
    """Forty records (0.3, 1), but for the last one."""
    x, y = np.full(40, 0.3), np.ones(40)
    x[-1], y[-1] = last
    return x, y


@pytest.mark.parametrize("plant", [None, "temperature", "eigenvalue"])
def test_the_whole_is_as_private_as_it_says_in_one_dimension(plant, monkeypatch):
    """Eigenvalue and draw together. μ of the draw four times its share, or eigenvalue noise a fifth, are caught."""
    target = LinearRegression(1.0, 1.0, 1.0, num_features=1, row_bound=1.0)
    plan = AdaOPS(residual_share=0.0).plan(target, num_records=40, epsilon=1.0, delta=1e-3)
    # Any λ is private; at this one the records are as dangerous as the bound on residuals allows for.
    monkeypatch.setattr(Stage, "choose_ridge", lambda self, low: 120.0)
    real, real_noise = Stage.precision, Stage.eigenvalue_noise.fget
    if plant == "temperature":
        monkeypatch.setattr(Stage, "precision", lambda self, h, r: 16 * real(self, h, r))
    if plant == "eigenvalue":
        monkeypatch.setattr(Stage, "eigenvalue_noise", property(lambda self: real_noise(self) / 5))
    epsilons = (0.2, 1.0)
    allowed = np.array([plan.guarantee.delta_at(epsilon) for epsilon in epsilons])
    worst = 0.0
    for last, other in (((1.0, 1.0), (1.0, -1.0)), ((-1.0, 1.0), (0.0, 0.0))):
        worst = max(worst, np.max(whole_delta(plan, column(last), column(other), epsilons) / allowed))
    assert worst > 0.1
    assert (worst > 1) == (plant is not None)


# ---- the mechanism ----


@pytest.mark.parametrize("mechanism", [AdaOPS(), AdaOPS(residual_share=0.0), AdaOPS(ridge=2000.0)])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_plan_spends_its_budget_in_composed_events(mechanism, adjacency):
    plan = planned(mechanism, adjacency)
    assert 0.999 < plan.guarantee.epsilon <= 1.0
    kinds = [event.mechanism for event in plan.guarantee.events for _ in range(event.count)]
    released = (mechanism.ridge is None) + (mechanism.residual_share > 0)
    # The first deviation is that of what may fail, and each release has one for its noise in integers.
    deviations = ["approximate_draw"] * (1 + released)
    assert kinds == ["gaussian"] * released + ["posterior_draw", *deviations]
    assert Guarantee.from_json(plan.guarantee.to_json()) == plan.guarantee
    assert math.hypot(*(plan.settings[f"{name}_mu"] for name in ("eigenvalue", "residual", "draw"))) < 0.3
    # Forgetting the eigenvalue or what may fail would state less.
    if released == 2:
        for left_out in ("gaussian", "approximate_draw"):
            events = tuple(e for e in plan.guarantee.events if e.mechanism != left_out)
            less = Guarantee.from_events(
                events, delta=1e-5, adjacency=adjacency, accountant="one_sample", release="one_sample"
            )
            assert less.epsilon < plan.guarantee.epsilon


def test_draws_have_the_chosen_posterior(monkeypatch):
    """N(θ̂, H⁻¹/γ) to five standard errors; with the temperature or the ridge left out it would not pass."""
    records, plan = data(), planned(epsilon=4.0)
    Watch(monkeypatch, given=[60.0, 1.5] * 2000)
    found = [plan.mechanism.choose_and_draw(plan, records, streams_of(k)[0]) for k in range(700)]
    chosen = found[0][0]
    assert all(other == chosen for other, _ in found)
    draws = np.concatenate([drawn for _, drawn in found])
    precision = records["x"].T @ records["x"] + chosen.ridge * np.eye(3)
    centre = np.linalg.solve(precision, records["x"].T @ records["y"])
    white = (draws - centre) @ np.linalg.cholesky(precision) / math.sqrt(chosen.temperature)
    assert np.max(np.abs(white.mean(0))) < 5 / math.sqrt(700)
    assert np.max(np.abs(np.cov(white.T) - np.eye(3))) < 5 * math.sqrt(2 / 700)
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(1.2 * white.ravel(), "norm").pvalue < 1e-3


def test_more_budget_and_more_records_bring_the_draw_to_the_ridge_estimate():
    errors = []
    for count, epsilon in ((2000, 0.5), (2000, 5.0), (100_000, 5.0)):
        records = data(1, count)
        plan = planned(num_records=count, epsilon=epsilon, delta=1e-6)
        exact = TARGET.posterior(records)[0]
        drawn = [plan.mechanism.draw(plan, records, streams_of(k)[0])[0] for k in range(20)]
        errors.append(np.mean([np.linalg.norm(one - exact) for one in drawn]))
    assert errors[0] > 2 * errors[1] > 8 * errors[2]


def test_residuals_are_released_where_they_help():
    """With a well-conditioned design the private bound on residuals is below the worst case, and noise is less."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 3))
    x *= ROW / np.linalg.norm(x, axis=1, keepdims=True)
    records = {"x": x, "y": np.clip(0.3 * x[:, 0], -LABEL, LABEL)}
    found = {}
    for share in (0.0, 0.1):
        plan = planned(AdaOPS(residual_share=share), num_records=20_000, delta=1e-6)
        found[share] = plan.mechanism.choose_and_draw(plan, records, streams_of(0)[0])[0]
    assert LABEL + 0.25 * ROW < found[0.1].residual < 0.8 * found[0.0].residual
    assert found[0.1].temperature < found[0.0].temperature


def test_impossible_requests_are_refused_with_a_remedy():
    with pytest.raises(UnsupportedCombination, match="LogisticRegression"):
        planned(target=LogisticRegression(num_features=2, row_bound=1.0))
    with pytest.raises(UnsupportedCombination, match="adjacency"):
        planned(adjacency="other")
    with pytest.raises(ValueError, match="label_bound: LinearRegression needs"):
        planned(target=LinearRegression(row_bound=1.0, num_features=2))
    with pytest.raises(ValueError, match=r"^num_features: "):
        planned(target=LinearRegression(row_bound=1.0, label_bound=1.0))
    with pytest.raises(CalibrationError, match="ridge: 3 is too small"):
        planned(AdaOPS(ridge=3.0))
    with pytest.raises(CalibrationError, match="epsilon"):
        planned(epsilon=1e4)
    for changes in ({"ridge": 0.0}, {"eigenvalue_share": 0.0}, {"residual_share": 1.0}, {"eigenvalue_share": 0.95}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            AdaOPS(**changes)


@pytest.mark.slow
def test_the_shipped_config_runs_and_verifies(tmp_path, capsys):
    out = tmp_path / "run"
    assert call("run", ROOT / "configs" / "diabetes_adaops.yaml", "--out", out) == 0
    assert call("verify", out / "privacy.json") == 0
    privacy = json.loads((out / "privacy.json").read_text())
    assert privacy["epsilon"] <= 4.0
    assert privacy["charged_draws"] == 1
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["rmse"]["posterior_predictive"] < 1.2
    capsys.readouterr()
    # A file that keeps quiet about the eigenvalue's release states too much.
    privacy["epsilon"] = Guarantee.from_json(
        privacy | {"events": [e for e in privacy["events"] if e["mechanism"] != "gaussian"]}
    ).epsilon
    (out / "privacy.json").write_text(json.dumps(privacy))
    assert call("verify", out / "privacy.json") == 1


def test_printed_constants_are_too_small_as_we_read_them():
    """Claims of docs/per_instance.md on the source: eigenvalue noise, its offset, and the bound on residuals."""
    epsilon, delta = 1.0, 1e-6
    printed = math.sqrt(math.log(4 / delta)) / (epsilon / 2)
    assert gaussian_delta(1 / printed, epsilon / 2) == pytest.approx(1.83e-6, rel=1e-2)  # δ/2 is claimed
    assert stats.norm.sf(math.log(4 / delta) / (epsilon / 2) / printed) == pytest.approx(4.8e-5, rel=1e-2)
    # N rows (1, 1) and no ridge: h = N, dκ = 1. A further record (1, −1) has residual 2, not at most √2.
    target = LinearRegression(1.0, 1.0, 1.0, num_features=1, row_bound=1.0)
    assert Stage.of(planned(target=target)).residual_bound(400.0, 1e-9) == pytest.approx(2.0, rel=1e-6)
