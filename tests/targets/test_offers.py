"""A target or a sampler of one's own has a default for all that it does not offer; nothing has to be inherited."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.samplers.base import SamplerOffers, sampler_offers
from dpmcmc.targets.base import TargetOffers, target_offers

X = np.linspace(-1, 1, 40, dtype=np.float32).reshape(20, 2)
DATA = {"x": X, "y": X @ np.array([1.0, -1.0], np.float32)}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Line:
    """Least squares, with the required methods and one public fact."""

    scale: float = 1.0
    log_concave = True

    def init(self, key):
        return jnp.zeros(2)

    def log_prior(self, params):
        return -0.5 * params @ params

    def log_likelihood(self, params, record):
        return -0.5 * ((record["y"] - record["x"] @ params) / self.scale) ** 2


class State(NamedTuple):
    position: jax.Array


@dataclass(frozen=True)
class Plain:
    """Langevin dynamics, with the required methods alone."""

    eta_of_all: float
    queries = ("gradient",)
    temperature = 1.0

    def bind(self, num_records):
        return self

    def noise_std(self, t):
        return (2 / self.eta_of_all) ** 0.5 + 0.0 * t

    def init(self, key, position):
        return State(position)

    def step(self, key, state, gradient, t):
        return State(state.position - self.eta_of_all * gradient.value), ()

    def temperature_at(self, noise_std, t):
        return self.eta_of_all * noise_std**2 / 2

    def time_at(self, noise_std, t):
        return self.eta_of_all + 0.0 * t


def test_a_library_s_own_objects_are_what_they_offer():
    for target in (dpmcmc.targets.LogisticRegression(), dpmcmc.targets.PerOwner(Line())):
        assert target_offers(target) is target
    sampler = dpmcmc.SGLD(step_size=1.0)
    assert sampler_offers(sampler) is sampler


def test_what_is_stated_is_read_and_what_is_not_is_the_default():
    found = target_offers(Line())
    assert found.log_concave
    assert (found.gradient_bound, found.constrain, found.unit, found.num_classes) == (None, None, None, None)
    assert found.log_likelihood(jnp.zeros(2), {"x": X[0], "y": 1.0}) == pytest.approx(-0.5)
    assert repr(found) == repr(Line())
    with pytest.raises(AttributeError):
        found.no_such_thing  # noqa: B018
    sampler = sampler_offers(Plain(0.1))
    assert (sampler.metric, sampler.unresolved, sampler.damping, sampler.check) == (None, False, 1.0, None)


def test_every_offer_has_a_default_that_can_be_read():
    for offers in (TargetOffers(), SamplerOffers()):
        names = [name for name in dir(offers) if not name.startswith("_")]
        assert len(names) > 5
        assert {getattr(offers, name) for name in names} <= {None, False, 1.0}


def test_a_run_of_nothing_but_the_required_part():
    plan = dpmcmc.plan(
        Line(),
        num_records=20,
        sampler=Plain(0.01),
        steps=6,
        burn_in=2,
        privacy=dpmcmc.Privacy(epsilon=2.0, delta=1e-3),
    )
    assert plan.target == Line()
    assert plan.label == "Plain"
    assert dpmcmc.sample(plan, DATA).draws.shape == (1, 4, 2)
    with pytest.raises(ValueError, match="Plain states no stability_limit"):
        dpmcmc.plan(Line(), num_records=20, sampler=Plain(0.01), steps=6, curvature=1.0, privacy=None)
