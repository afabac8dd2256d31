"""``dpmcmc.suggest``: plans from public facts alone, that reach their goal or say what would."""

import functools

import numpy as np
import pytest
import yaml
from scipy.special import expit

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import load, make_plan
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.estimators import NotAchievable, default_delta
from dpmcmc.estimators.fitting import model_of, settings_of, usual
from dpmcmc.estimators.suggestion import ask
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware.regression_plan import FEWEST_STEPS
from dpmcmc.targets import LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression

SCHEMA = Schema({"a": Range(0, 10), "b": Levels(["u", "v", "w"]), "y": Levels(["no", "yes"])}, label="y")
LOGISTIC = LogisticRegression(prior_scale=1.0)


@functools.cache
def suggested(target=LOGISTIC, num_records=5000, epsilon=1.0, **more):
    return dpmcmc.suggest(target, num_records=num_records, epsilon=epsilon, **more)


def test_intervals_come_from_a_noise_aware_release_that_explains_itself():
    plan = suggested(schema=SCHEMA)
    assert isinstance(plan.mechanism, NoiseAware)
    assert plan.target.num_features == SCHEMA.num_features
    assert plan.mechanism.structure == SCHEMA.structure
    assert "intervals" in plan.usable_for
    assert plan.guarantee.delta == default_delta(5000)
    assert plan.guarantee.epsilon <= 1
    assert 1 < plan.settings["predicted_width"] < 2
    text = str(plan)
    assert "why" in text
    assert "delta" in text
    assert plan.reasons[0] in plan._repr_html_()


def test_prediction_takes_a_chain_in_a_private_metric_and_linear_regression_does_not():
    plan = suggested(num_features=5, goal="prediction")
    assert plan.metric.asked.name == "gram"
    assert "prediction" in plan.usable_for
    burn_in = plan.burn_in * plan.sampler.step_size
    assert (
        suggested(num_features=20, goal="prediction").sampler.step_size * plan.burn_in > burn_in
    )  # flatter directions
    linear = suggested(LinearRegression(label_bound=1.0), num_features=5, goal="prediction")
    assert isinstance(linear.mechanism, NoiseAware)


def test_noise_heats_the_draws_of_a_suggested_chain_no_more_than_their_logits_may_vary():
    """The step is the one at which SGLD's own noise at N/(8d) is that of privacy, where it would be longer."""
    hot = suggested(num_features=20, num_records=4000, epsilon=0.1, goal="prediction")
    cool = suggested(num_features=20, num_records=4000, epsilon=10.0, goal="prediction")
    said = [any("too hot" in reason for reason in plan.reasons) for plan in (hot, cool)]
    assert said == [True, False]
    auto = dpmcmc.plan(
        hot.target,
        num_records=4000,
        sampler=dpmcmc.SGLD(step_size="auto", temperature=4000 / (8 * 20)),
        privacy=dpmcmc.Privacy(epsilon=0.1, delta=hot.guarantee.delta),
        metric=hot.metric.asked,
        end=None,
        sampling=hot.sampling,
        steps=hot.steps,
        burn_in=hot.burn_in,
    )
    assert hot.sampler.step_size == pytest.approx(auto.sampler.step_size, rel=0.01)


def test_a_suggestion_runs_on_data_and_its_width_is_as_predicted():
    rng = np.random.default_rng(3)
    frame = {"a": rng.uniform(0, 10, 5000), "b": rng.choice(["u", "v", "w"], 5000)}
    x = SCHEMA.encode_features(frame)
    y = rng.random(5000) < expit(x @ np.array([1.0, -1, 0.5, 0, 1]))
    frame["y"] = np.where(y, "yes", "no")
    plan = suggested(schema=SCHEMA)
    draws = dpmcmc.sample(plan, SCHEMA.encode(frame)).draws[0]
    p = expit(x @ draws.mean(axis=0))
    alone = np.linalg.inv(np.eye(5) + (x * (p * (1 - p))[:, None]).T @ x)
    realised = np.mean(draws.std(axis=0) / np.sqrt(np.diag(alone)))
    assert 1 / 1.5 < plan.settings["predicted_width"] / realised < 1.5


def test_nothing_but_public_facts_is_used():
    """Twice the same plan: what is simulated has a public seed."""
    one, other = (suggested.__wrapped__(schema=SCHEMA) for _ in range(2))
    assert one.settings == other.settings
    assert one.reasons == other.reasons


@pytest.mark.parametrize("goal", ["intervals", "prediction"])
def test_a_goal_out_of_reach_names_an_n_and_an_epsilon_that_would_do(goal):
    n, epsilon = (300, 0.1) if goal == "intervals" else (10, 0.1)
    with pytest.raises(NotAchievable, match=r"num_records >= [\d,]+ or epsilon >= [\d.]+ would do") as caught:
        suggested(num_records=n, epsilon=epsilon, num_features=8, delta=1e-6, goal=goal)
    words = str(caught.value).replace(",", "").split()
    records = int(words[words.index("num_records", words.index("epsilon")) + 2])
    budget = float(words[len(words) - 1 - words[::-1].index("epsilon") + 2])
    for enough in ({"num_records": records}, {"epsilon": budget}):
        suggested(**{"num_records": n, "epsilon": epsilon} | enough, num_features=8, delta=1e-6, goal=goal)


def test_settings_of_the_user_are_kept():
    mechanism = NoiseAware(steps=40, gram_share=0.25, prior_scale="evidence")
    assert suggested(num_features=4, mechanism=mechanism).mechanism == mechanism
    metric = dpmcmc.PrivateMetric(share=0.2)
    plan = suggested(
        num_features=4, goal="prediction", steps=50, thin=5, metric=metric, clip=0.7, adjacency="add_remove"
    )
    assert (plan.steps, plan.thin, plan.metric.asked.share, plan.privacy.clip) == (50, 5, 0.2, 0.7)
    assert plan.guarantee.adjacency == "add_remove"
    sampler = dpmcmc.SGLD(step_size=3.0)
    assert suggested(num_features=4, goal="prediction", sampler=sampler).sampler.step_size == 3.0
    few = FEWEST_STEPS - 1
    with pytest.raises(NotAchievable, match=rf"these settings: .*{few} steps are too few"):
        suggested(num_features=4, mechanism=NoiseAware(steps=few))
    found = suggested(schema=SCHEMA, mechanism=NoiseAware(steps=40, intercept_scale=3.0)).mechanism
    assert (found.structure, found.steps, found.intercept_scale) == (SCHEMA.structure, 40, 3.0)
    with pytest.raises(ValueError, match="mechanism: takes no steps"):
        suggested(num_features=4, mechanism=mechanism, steps=3)


def test_what_is_not_known_is_asked_for():
    with pytest.raises(ValueError, match="num_features"):
        suggested()
    with pytest.raises(ValueError, match="label_bound"):
        suggested(LinearRegression(), num_features=3)
    with pytest.raises(ValueError, match=r"give an object, for example dpmcmc.targets.Logistic"):
        suggested("logistic_regression", num_features=3)
    with pytest.raises(ValueError, match="goal"):
        suggested(num_features=3, goal="fun")
    assert any("row_bound" in reason for reason in suggested(num_features=3).reasons)


def test_command_prints_a_config_that_makes_the_same_plan(tmp_path, capsys):
    for goal in ("intervals", "prediction"):
        options = ["--num-records", "5000", "--num-features", "5", "--epsilon", "1", "--goal", goal]
        picture = ["--picture", str(tmp_path / "widths.png")] if goal == "intervals" else []
        assert main(["suggest", *options, *picture]) == 0
        file = tmp_path / f"{goal}.yaml"
        file.write_text(capsys.readouterr().out)
        assert file.read_text().startswith("# ")
        # The prior of a coefficient is the one that ``dpmcmc.fit`` takes, and my.npz is to be replaced.
        assert "my.npz  # replace it" in file.read_text()
        same, plan = make_plan(load(file)), suggested(usual(LogisticRegression), num_features=5, goal=goal)
        assert same.guarantee.events == plan.guarantee.events
        assert same.target == plan.target
        if goal == "prediction":
            assert same.sampler == plan.sampler
    assert (tmp_path / "widths.png").stat().st_size > 10_000
    kept = (tmp_path / "widths.png").read_bytes()
    for name, said in (("widths.png", "exists already"), ("no/w.png", "does not exist"), ("w.yaml", "must end in")):
        assert main(["suggest", *options, "--picture", str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err
    assert (tmp_path / "widths.png").read_bytes() == kept
    assert main(["suggest", "--num-records", "200", "--num-features", "9", "--epsilon", "0.1"]) == 1
    assert "would do" in capsys.readouterr().err
    assert main(["suggest"]) == 2
    assert main(["suggest", "breast_cancer", "--num-features", "3"]) == 2  # an option that the config refuses
    assert "num_features" in capsys.readouterr().err


def strict(constant):
    raise AssertionError(f"{constant} is no JSON")


QUESTION = """
data:
  path: people.csv
  num_records: 5000
  schema: {columns: {a: {range: [0, 10]}, b: {levels: [u, v, w]}, y: {levels: ["no", "yes"]}}, label: y}
target: {name: logistic_regression, prior_scale: 1.0}
"""


def test_command_completes_a_config_that_chooses_nothing(tmp_path, capsys):
    file, done = tmp_path / "question.yaml", tmp_path / "done.yaml"
    file.write_text(f"{QUESTION}privacy: {{epsilon: 1, clip: 2.0}}")
    assert main(["suggest", str(file)]) == 0
    done.write_text(capsys.readouterr().out)
    assert "chosen anew: privacy.clip\n" in done.read_text()
    whole, plan = make_plan(load(done)), suggested(schema=SCHEMA)
    assert whole.guarantee.events == plan.guarantee.events
    assert whole.guarantee.delta == default_delta(5000)
    assert whole.mechanism.gram_share == plan.mechanism.gram_share
    file.write_text(f"{QUESTION}mechanism: {{name: noise_aware, steps: 40}}\nprivacy: {{epsilon: 1, delta: 1.0e-7}}")
    assert main(["suggest", str(file)]) == 0
    kept = yaml.safe_load(capsys.readouterr().out)
    assert (kept["mechanism"]["steps"], kept["privacy"]["delta"]) == (40, 1e-7)
    for privacy, said in (("", "privacy.epsilon"), ("privacy: {epsilom: 1}", "privacy.epsilom: unknown key")):
        file.write_text(QUESTION + privacy)
        assert main(["suggest", str(file)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert said in err
        assert err.count("\n") == 1


def test_other_models_get_a_chain_for_prediction():
    softmax = SoftmaxRegression(num_classes=3)
    assert suggested(softmax, num_features=4, goal="prediction").metric is not None
    poisson = suggested(PoissonRegression(), num_features=4)
    assert 1 < poisson.settings["predicted_width"] < 3
    assert isinstance(suggested(PoissonRegression(), num_features=4, goal="prediction").mechanism, NoiseAware)


def test_fit_releases_no_spread_of_more_numbers_than_a_release_tells():
    """35 coefficients of each of three classes are 105 numbers; an ordinal regression has the coefficients once."""
    columns = {f"x{k}": Range(0, 1) for k in range(34)}
    for ordered, covariance in ((False, "model"), (True, "sandwich")):
        schema = Schema({**columns, "y": Levels(["a", "b", "c"], ordered=ordered)}, label="y")
        target = model_of(schema)
        given = settings_of(target, "intervals", schema.num_features)
        assert given["mechanism"].covariance == covariance
        plan = ask(target, 20_000, 1.0, None, schema, None, given).suggested("intervals")
        assert ("curvature_noise_std" in plan.settings) == ordered
