"""A guarantee that rests on code which is not the library's says so; one that does not, says nothing of the kind."""

import copy
import dataclasses
import functools
import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml

import dpmcmc
from dpmcmc import mechanisms, samplers, targets
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.config import make_plan
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy import Guarantee
from dpmcmc.report.privacy_json import privacy_json
from dpmcmc.targets import shipped_models, tempered
from tests import own_models

N = 400
ROWS = {"num_features": 3, "row_bound": 1.0}
LOGISTIC = targets.LogisticRegression(**ROWS)
SGLD = dpmcmc.SGLD(step_size=1.0)


def chain(target=LOGISTIC, sampler=SGLD, sampling=None, metric=None, schema=None, kind=dpmcmc.Privacy, **promise):
    return dpmcmc.plan(
        target,
        num_records=N,
        sampler=sampler,
        sampling=sampling,
        steps=6,
        metric=metric,
        schema=schema,
        privacy=kind(epsilon=1.0, delta=1e-4, **promise),
    )


def one_shot(mechanism, target=LOGISTIC):
    return mechanism.plan(target, num_records=N, epsilon=1.0, delta=1e-5)


class Loud(targets.LogisticRegression):
    """The reproduction: a sum a thousand times as large as the one that is charged."""

    def clipped_gradient_sum(self, *given, **how):
        total = super().clipped_gradient_sum(*given, **how)
        return dataclasses.replace(total, high=1000 * total.high)


@dataclasses.dataclass(frozen=True)
class Mine:
    """A target that inherits nothing."""

    gradient_bound = None

    def init(self, key):
        return jnp.zeros(3)

    def log_prior(self, params):
        return -0.5 * jnp.sum(params**2)

    def log_likelihood(self, params, record):
        return -0.5 * (record["y"] - record["x"] @ params) ** 2


def replaced(made, **methods):
    """A copy of an object whose methods others stand for."""
    made = copy.copy(made)
    for name, method in methods.items():
        object.__setattr__(made, name, method)
    return made


def patched(kind, name):
    """A plan that is made while a class of the library has another method."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, lambda self, records: records)
        return chain()


def own(kind):
    """A trivial subclass."""
    made = type("Own", (kind,), {"__module__": __name__})
    return dataclasses.dataclass(frozen=True)(made) if dataclasses.is_dataclass(kind) else made


def falling(t):
    return 1.0 / (1.0 + 0.0 * t)


def enough(queries, promise) -> float:
    return 100.0


def custom(**facts):
    return targets.Custom(
        lambda key: jnp.zeros(3), lambda p: -0.5 * jnp.sum(p**2), lambda p, r: jnp.sum(p) * r["y"], **facts
    )


FACTS = {"gradient_bound": 1.0, "log_concave": True, "smoothness": 1.0, "prior_precision": 1.0}
RULE = optax.GradientTransformation(lambda p: (), lambda g, s, p=None: (g, s))
SCHEMA = {"a": Range(0, 1), "b": Range(0, 1), "y": Levels([0, 1])}


def vote(loss=None):
    return one_shot(mechanisms.PrivateSelection([mechanisms.OutputPerturbation()] * 2, loss_bound=1.0, loss=loss))


#: (plan that rests on code of one's own, words of its assumptions).
OWN = {
    "sum": (lambda: chain(Loud(**ROWS)), "test_own_word:Loud clipped_gradient_sum prepared zeros_are_absent"),
    "sum-of-owners": (lambda: chain(targets.PerOwner(Loud(**ROWS), 2)), "test_own_word:Loud"),
    "sum-tempered": (lambda: chain(tempered.Tempered(Loud(**ROWS), 0.5)), "Loud clipped_gradient_sum"),
    "prepared-on-one-object": (lambda: chain(replaced(LOGISTIC, prepared=lambda r: r)), "LogisticRegression.prepared"),
    "prepared-on-the-class": (lambda: patched(targets.LogisticRegression, "prepared"), "LogisticRegression.prepared"),
    "from-scratch": (lambda: chain(Mine()), "test_own_word:Mine reads nothing of the records but its arguments"),
    "custom": (lambda: chain(custom()), "custom.<locals> reads nothing of the records but its arguments"),
    "partial": (lambda: chain(targets.Custom(*3 * [functools.partial(falling)])), "falling"),
    "numpyro": (lambda: chain(own_models.counts()), "own_models:_counts"),
    "flax": (lambda: chain(own_models.network()), "own_models:_Network"),
    "sampler": (lambda: chain(sampler=own(dpmcmc.SGLD)(1.0)), "Own"),
    "schedule": (lambda: chain(sampler=dpmcmc.SGLD(step_size=falling)), "falling"),
    "lambda": (lambda: chain(sampler=dpmcmc.SGHMC(step_size=lambda t: 1.0, friction=0.2)), "<lambda>"),
    "schedule-of-optax": (lambda: chain(sampler=dpmcmc.SGLD(step_size=optax.linear_schedule(1, 0.5, 3))), "optax"),
    "rule": (lambda: chain(sampler=samplers.Optax(RULE)), "GradientTransformation"),
    "learning-rate": (lambda: chain(sampler=samplers.Optax("sgd", learning_rate=falling)), "falling"),
    "sampling": (lambda: chain(sampling=own(dpmcmc.Poisson)(50)), "Own than the plan charges"),
    "metric": (lambda: chain(metric=own(dpmcmc.PrivateMetric)()), "Own than the plan charges"),
    "promise": (lambda: chain(kind=own(dpmcmc.Privacy)), "Own than the plan charges"),
    "calibrator": (lambda: chain(calibrator=enough), "test_own_word:enough"),
    "column": (lambda: chain(targets.LogisticRegression(), schema=Schema(SCHEMA | {"a": own(Range)(0, 1)}, label="y")),
               "Own than the plan charges"),
    "schema": (lambda: chain(targets.LogisticRegression(), schema=own(Schema)(SCHEMA, label="y")), "Own"),
    "mechanism": (lambda: one_shot(own(mechanisms.NoiseAware)(draws=20)), "Own than the plan charges"),
    "facts": (lambda: one_shot(mechanisms.OPS(), custom(**FACTS)), "Custom gradient_bound log_concave smoothness"),
    "loss": (lambda: vote(lambda p, r: 0.0), "<lambda>"),
    "start": (lambda: mechanisms.Hybrid(own(mechanisms.OPS)(), SGLD, steps=4).plan(
        LOGISTIC, num_records=N, epsilon=1.0, delta=1e-5), "Own than the plan charges"),
    "candidate": (lambda: one_shot(mechanisms.PrivateSelection(
        [mechanisms.Chain(own(dpmcmc.SGLD)(s), steps=4) for s in (1.0, 2.0)], loss_bound=1.0)), "Own"),
}  # fmt: skip

#: Plans of which every part is the library's.
SHIPPED = {
    "chain": lambda: chain(),
    "minibatches": lambda: chain(sampling=dpmcmc.Poisson(50), sampler=dpmcmc.SGHMC(step_size=1.0, friction=0.2)),
    "fixed-size": lambda: chain(sampling=dpmcmc.FixedSize(50), accountant="rdp"),
    "metric": lambda: chain(metric=dpmcmc.PrivateMetric()),
    "second-moment": lambda: chain(sampler=dpmcmc.SGFS(step_size=1.0)),
    "thermostat": lambda: chain(sampler=dpmcmc.SGNHT(step_size=1.0)),
    "schedule": lambda: chain(sampler=dpmcmc.SGLD(samplers.Polynomial(1.0))),
    "optax": lambda: chain(sampler=samplers.Optax("adam", learning_rate=0.1, mu_dtype=jnp.float32)),
    "optax-schedule": lambda: chain(
        sampler=dpmcmc.SGLD(
            samplers.OptaxSchedule("linear_schedule", init_value=1.0, end_value=0.5, transition_steps=3)
        )
    ),
    "owners": lambda: chain(targets.PerOwner(LOGISTIC, 2)),
    "classes": lambda: chain(targets.SoftmaxRegression(num_classes=3, **ROWS)),
    "ordinal": lambda: chain(targets.OrdinalRegression(num_classes=3, **ROWS)),
    "counts": lambda: chain(targets.PoissonRegression(**ROWS)),
    "network": lambda: chain(shipped_models.digits_network(hidden=2)),
    "numpyro": lambda: chain(shipped_models.poisson_regression()),
    "table": lambda: chain(targets.LogisticRegression(), schema=Schema(SCHEMA, label="y")),
    "noise-aware": lambda: one_shot(mechanisms.NoiseAware(draws=20)),
    "certified": lambda: one_shot(mechanisms.CertifiedOPS(steps=3)),
    "objective": lambda: one_shot(mechanisms.ObjectivePerturbation()),
    "output": lambda: one_shot(mechanisms.OutputPerturbation()),
    "vote": lambda: vote(),
    "statistics": lambda: one_shot(
        mechanisms.SufficientStatistics(), targets.LinearRegression(label_bound=1.0, **ROWS)
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_what_rests_on_code_of_ones_own_says_so(name, tmp_path, capsys):
    """In the guarantee, in privacy.json, and where that is verified; also after the way there and back."""
    make, words = OWN[name]
    plan = make()
    said = plan.guarantee.assumptions
    assert any("vouches" in sentence for sentence in said)
    assert all(word in " ".join(said) for word in words.split())
    body = privacy_json(plan, plan.guarantee)
    assert body["assumptions"] == list(said)
    assert Guarantee.from_json(json.loads(json.dumps(body))).assumptions == said
    assert plan.guarantee.compose(plan.guarantee).assumptions == said
    (tmp_path / "privacy.json").write_text(json.dumps(body))
    assert main(["verify", str(tmp_path / "privacy.json")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(sentence in printed for sentence in said)
    assert main(["verify", str(tmp_path / "privacy.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["assumptions"] == list(said)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_rests_on_nothing_of_ones_own(name):
    assert SHIPPED[name]().guarantee.assumptions == ()


def parts(value, seen, path=()):
    """Yield (way from a plan, object of a class of the library) of all that lies in it, but nested plans."""
    if id(value) in seen or (path and isinstance(value, Plan | Guarantee)):
        return
    seen.append(id(value))
    if isinstance(value, dict | tuple | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in inner:
            yield from parts(part, seen, (*path, key))
    elif type(value).__module__.startswith("dpmcmc") and hasattr(value, "__dict__"):
        if path:
            yield path, value
        for name, part in vars(value).items():
            yield from parts(part, seen, (*path, name))


def with_part(whole, path, part):
    """A copy of a whole with another part in one place."""
    if not path:
        return part
    key, *rest = path
    if isinstance(whole, dict | tuple | list):
        items = dict(whole) if isinstance(whole, dict) else list(whole)
        items[key] = with_part(items[key], rest, part)
        return type(whole)(items)
    return replaced(whole, **{key: with_part(vars(whole)[key], rest, part)})


@pytest.mark.parametrize("name", SHIPPED)
def test_a_trivial_subclass_of_any_part_of_a_plan_is_ones_own(name):
    """Whatever part: no list names the classes."""
    plan = SHIPPED[name]()
    found = list(parts(plan, []))
    assert len(found) > 1
    for path, one in found:
        kind = type("Trivial", (type(one),), {"__module__": __name__})
        other = copy.copy(one)
        try:
            object.__setattr__(other, "__class__", kind)
        except TypeError:  # an enumeration, which cannot have a subclass
            continue
        changed = with_part(plan, path, other)
        changed.__post_init__()
        assert "Trivial" in " ".join(changed.guarantee.assumptions), path


def test_the_page_and_the_folder_say_it(tmp_path, capsys):
    rng = np.random.default_rng(0)
    records = {"x": rng.uniform(-0.5, 0.5, (N, 3)).astype(np.float32), "y": rng.normal(size=N).astype(np.float32)}
    plan = chain(Mine())
    result = dpmcmc.sample(plan, records)
    folder = result.save(tmp_path / "run")
    (sentence,) = plan.guarantee.assumptions
    assert sentence in (folder / "report.html").read_text()
    assert json.loads((folder / "privacy.json").read_text())["assumptions"] == [sentence]
    assert main(["verify", str(folder)]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert dpmcmc.load(folder).guarantee.assumptions == (sentence,)


def test_a_config_that_names_a_module_says_it(tmp_path):
    body = {
        "name": "mine",
        "data": {"name": "two_normals"},
        "target": {"name": "tests.own_models:network"},
        "sampler": {"name": "sgld", "step_size": 1.0},
        "sampling": {"scheme": "full"},
        "privacy": {"epsilon": 1.0, "delta": 1.0e-5},
        "run": {"steps": 8},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(body))
    (sentence,) = make_plan(config_file.load(tmp_path / "mine.yaml")).guarantee.assumptions
    assert "tests.own_models:_Network" in sentence


def dear(events, adjacency, delta) -> float:
    return 1.0


def test_an_accountant_keeps_its_own_sentence():
    sampler = dpmcmc.SGLD(step_size=falling)
    *code, accountant = chain(sampler=sampler, accountant=dear).guarantee.assumptions[::-1]
    assert "accountant tests.planning.test_own_word:dear" in accountant
    assert "test_own_word:falling" in code[0]
