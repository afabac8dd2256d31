"""Sections are made from constructors: a new key touches one place, and whatever is refused names its YAML path."""

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt

import dpmcmc
from dpmcmc.config import ConfigError, load, make_plan
from dpmcmc.config.model import ONE_SHOT, SCHEMES, HybridStart, Promise
from dpmcmc.config.run_section import Devices, Run
from dpmcmc.config.sections import derived, keys
from dpmcmc.data import DataRequest
from dpmcmc.errors import InputError, alternatives, check_fields
from dpmcmc.samplers import SAMPLERS, SCHEDULES, SGHMC
from dpmcmc.targets import TARGETS
from scripts import config_reference

CHAIN = {
    "name": "small",
    "data": {"name": "two_normals"},
    "target": {"name": "logistic_regression"},
    "sampler": {"name": "sgld", "step_size": 1.0},
    "sampling": {"scheme": "full"},
    "privacy": {"epsilon": 1.0, "delta": 1.0e-5},
    "run": {"steps": 8},
}
ONE_SHOT_BODY = {key: CHAIN[key] for key in ("name", "data", "target", "privacy")}
#: Keys without which a section cannot be made.
NEEDED = {
    "sampler": {"step_size": 1.0},
    "sampling": {"batch_size": 10},
    "privacy": {"delta": 1e-5},
    "run": {"steps": 8},
    "optax": {"rule": "adam", "learning_rate": 0.1},
    "polynomial": {"a": 1.0},
    "floor": {"a": 1.0, "floor": 0.5},
    "cyclical": {"a": 1.0, "period": 3},
    "alpha_phase": {"alpha": 0.5, "epsilon": 1.0, "delta": 1e-5, "steps": 8, "num_records": 1000},
}


def planned(folder, **sections):
    path = folder / "config.yaml"
    body = (ONE_SHOT_BODY if "mechanism" in sections else CHAIN) | sections
    if sections.get("mechanism", {}).get("name") == "hybrid":
        body = CHAIN | sections
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return make_plan(load(path))


def refused(folder, **sections) -> ConfigError:
    with pytest.raises(InputError) as refusal:
        planned(folder, **sections)
    return refusal.value


def bad_values(hint) -> list:
    """Values that an argument of this type must refuse: beyond each of its bounds, and of another kind."""
    out = [] if "Any" in str(hint) or "Sequence" in str(hint) else [["a list"]]
    for kind in alternatives(hint):
        for bound in typing.get_args(kind)[1:] if typing.get_origin(kind) is Annotated else ():
            whole = typing.get_args(kind)[0] is int
            beyond = {Gt: lambda b: b.gt, Ge: lambda b: b.ge - 1, Lt: lambda b: b.lt, Le: lambda b: 2 * b.le + 1}
            if type(bound) in beyond:
                value = beyond[type(bound)](bound)
                out.append(int(value) if whole else value)
        if kind in (float, int, bool) or typing.get_origin(kind) in (Annotated, Literal):
            out.append("nonsense")
    return out


def places():
    """(section, its other keys, constructor, the path of a key in it) of everything that a config may say."""
    yield "data", {}, DataRequest, "data"
    yield "privacy", NEEDED["privacy"], Promise, "privacy"
    yield "run", NEEDED["run"], Run, "run"
    yield "run", NEEDED["run"], Devices, "run.mesh"
    for section, known, tag in (
        ("target", TARGETS, "name"),
        ("sampler", SAMPLERS, "name"),
        ("mechanism", ONE_SHOT, "name"),
        ("sampling", SCHEMES, "scheme"),
    ):
        for name, constructor in known.items():
            needed = NEEDED.get(name, NEEDED.get(section, {}) if name != "full" else {})
            yield section, {tag: name, **needed}, constructor, section
    for name, constructor in SCHEDULES.items():
        yield "sampler", {"schedule": name, **NEEDED[name]}, constructor, "sampler.step_size"


def keys_and_bad_values(constructor):
    """Every key that a constructor gives a section, its type, and values that it must refuse."""
    hints = typing.get_type_hints(constructor, include_extras=True)
    for key in keys(constructor):
        values = bad_values(hints[key.name])
        assert values
        yield key.name, hints[key.name], values


@pytest.mark.parametrize(("section", "others", "constructor", "path"), list(places()))
def test_a_bad_value_of_any_key_is_refused_with_its_path(tmp_path, section, others, constructor, path):
    for key, _, values in keys_and_bad_values(constructor):
        for value in values:
            body = {**others, key: value}
            if path == "run.mesh":
                body = {**others, "mesh": {key: value}}
            if path == "sampler.step_size":
                body = {"name": "sgld", "step_size": body}
            error = refused(tmp_path, **{section: body})
            assert error.about == f"{path}.{key}", value
            assert f"{path}.{key}: " in str(error)


@pytest.mark.parametrize(
    ("others", "constructor"),
    # Sampling is checked against N, and a mechanism by hand.
    [place[1:3] for place in places() if place[0] not in ("sampling", "mechanism")],
)
def test_the_constructor_itself_refuses_and_names_its_argument(others, constructor):
    known = {key.name for key in keys(constructor)}
    given = {name: one for name, one in others.items() if name in known - {"name"}}
    if constructor is DataRequest:
        given = {"name": "two_normals"}
    for key, hint, values in keys_and_bad_values(constructor):
        if any(typing.get_origin(kind) in (Annotated, Literal) for kind in alternatives(hint)):
            for value in values:
                with pytest.raises(InputError) as refusal:
                    constructor(**{**given, key: value})
                assert refusal.value.about == key, value


SGHMC_BODY = {"name": "sghmc", "step_size": 1.0}
SGFS_BODY = {"name": "sgfs", "step_size": 1.0}
OPS_BODY = {"mechanism": {"name": "ops"}}


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        # found by the sampler once it is bound to the data
        ({"sampler": SGHMC_BODY | {"minibatch_variance": 1e9}}, "sampler.minibatch_variance"),
        ({"sampler": SGHMC_BODY | {"friction": "matched", "step_size": "auto"}}, "sampler.friction"),
        ({"sampler": {"name": "sgld", "step_size": "auto", "temperature": 0.0}}, "sampler.temperature"),
        ({"sampler": {"name": "sgnht", "step_size": 1.0, "temperature": 0.0}}, "sampler.temperature"),
        ({"sampler": {"name": "sgnht", "step_size": 1000.0}}, "sampler.step_size"),
        ({"sampler": SGFS_BODY | {"metric": [1.0, 0.0, 1.0]}}, "sampler.metric"),
        ({"sampler": SGFS_BODY | {"metric": "nowhere.npy"}}, "sampler.metric"),
        ({"sampler": SGFS_BODY | {"metric": [1.0, 1.0]}}, "sampler.metric"),
        ({"sampler": SGFS_BODY | {"public_fisher": 1.0}}, "sampler.public_fisher"),
        ({"sampler": SGFS_BODY | {"fisher": "public", "public_fisher": -1.0}}, "sampler.public_fisher"),
        # found by the plan
        ({"privacy": None, "sampler": {"name": "sgld", "step_size": "auto"}}, "sampler.step_size"),
        ({"run": {"steps": 8, "curvature": 1e6}}, "sampler.step_size"),
        ({"run": {"steps": 8, "thin": 9}}, "run.thin"),
        ({"run": {"passes": 1e12}}, "run.passes"),
        ({"run": {"passes": 1.0, "steps": 8}}, "run"),
        ({"sampling": {"scheme": "poisson", "batch_size": 1001}}, "sampling.batch_size"),
        ({"sampling": {"scheme": "fixed_size", "batch_size": 1001}}, "sampling.batch_size"),
        ({"privacy": {"epsilon": 1.0, "delta": 0.5}}, "privacy.delta"),
        ({"privacy": {"delta": 1e-5}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-5, "calibrator": "free"}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-5, "release": "one_sample"}}, "privacy.release"),
        # of a mechanism
        ({"mechanism": {"name": "ops", "form": "range"}}, "mechanism.radius"),
        ({"mechanism": {"name": "ops", "steps": 1}}, "mechanism.steps"),
        ({"mechanism": {"name": "ops"}, "privacy": {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0}}, "privacy.clip"),
        ({"mechanism": {"name": "ops"}, "sampler": {"name": "sgld", "step_size": 1.0}}, "sampler"),
        ({"mechanism": {"name": "sufficient_statistics"}, "data": {"name": "diabetes"},
          "target": {"name": "linear_regression"}, "privacy": {"epsilon": 1.0, "delta": 1e-5}}, "target.label_bound"),
        # of a file of one's own
        ({"data": {"path": "mine.npz"}}, "data.num_records"),
        ({"data": {"path": "mine.npz", "num_records": 10, "encoding": "linear"}}, "data.encoding"),
        ({"data": {"path": "mine.npz", "num_records": 10, "num_owners": 3}}, "data.num_owners"),
        ({"data": {"name": "two_normals", "num_records": 10}}, "data.num_records"),
        ({"data": {"name": "two_normals", "num_features": 10}}, "data.num_features"),
    ],
    ids=str,
)  # fmt: skip
def test_a_refusal_that_needs_more_than_one_key_names_the_one_to_mend(tmp_path, monkeypatch, sections, path):
    monkeypatch.chdir(tmp_path)
    error = refused(tmp_path, **sections)
    assert error.about == path
    assert f"{path}: " in str(error)


@dataclass(frozen=True)
class Damped(SGHMC):
    """SGHMC with one more number; see :class:`SteppedSampler` for the rest.

    Args:
        damping: share that a test invented.
    """

    damping: Annotated[float, Gt(0), Le(1)] = 0.25


class TestANewKeyTouchesOnePlace:
    """A field of a constructor, with its bound and its docstring, is all that a new key needs."""

    @pytest.fixture(autouse=True)
    def registered(self, monkeypatch):
        monkeypatch.setitem(SAMPLERS, "damped", Damped)

    def test_it_is_accepted(self, tmp_path):
        plan = planned(tmp_path, sampler={"name": "damped", "step_size": 1.0, "damping": 0.5})
        assert plan.sampler.damping == 0.5
        assert planned(tmp_path, sampler={"name": "damped", "step_size": 1.0}).sampler.damping == 0.25

    def test_it_is_refused_with_its_path(self, tmp_path):
        error = refused(tmp_path, sampler={"name": "damped", "step_size": 1.0, "damping": 1.5})
        assert error.about == "sampler.damping"
        with pytest.raises(InputError, match="damping must be a finite number in"):
            Damped(step_size=1.0, damping=1.5)

    def test_it_is_documented(self):
        assert "* `damping` (number > 0, ≤ 1, default 0.25): Share that a test invented." in config_reference.page()


def test_every_key_is_documented_and_every_constructor_has_keys():
    for _, _, constructor, _ in places():
        made = derived(constructor)
        assert all(field.description for field in made.model_fields.values())


def test_a_config_has_to_say_its_privacy(tmp_path):
    """Left out, it is refused; null says that there is none."""
    values = yaml.safe_load((Path(__file__).parents[1] / "configs" / "two_normals.yaml").read_text())
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values | {"privacy": None}))
    assert make_plan(load(path)).guarantee is None
    del values["privacy"]
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"privacy: this key is required; say epsilon and delta, or null") as refused:
        load(path)
    assert refused.value.about == "privacy"


def test_num_features_of_a_file_of_ones_own_lets_a_mechanism_plan(tmp_path):
    own = {"path": "mine.npz", "num_records": 100, "row_bound": 1.0}
    sections = {"mechanism": {"name": "output_perturbation"}, "privacy": {"epsilon": 1.0, "delta": 1e-5}}
    plan = planned(tmp_path, data=own | {"num_features": 12}, **sections)
    assert plan.target.num_features == 12
    assert refused(tmp_path, data=own, **sections).about == "data.num_features"


@pytest.mark.parametrize("clip", [1e-9, 1e9])
def test_a_clip_at_either_bound_is_planned_and_runs(clip):
    """The sum's grid is relative to the clip, and float32 holds it at both ends."""
    target = dpmcmc.targets.LogisticRegression(num_features=2)
    plan, one = (
        dpmcmc.plan(
            target, num_records=16, sampler=dpmcmc.SGLD(step_size=10.0 / c**2), steps=2,
            privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-3, clip=c),
        )
        for c in (clip, 1.0)
    )  # fmt: skip
    assert plan.required_multiplier == pytest.approx(one.required_multiplier)
    x = np.random.RandomState(0).uniform(-1, 1, (16, 2)).astype(np.float32)
    draws = dpmcmc.sample(plan, {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}, key=0).draws
    assert np.isfinite(draws).all()
    for beyond in (clip / 2, clip * 2):
        if not 1e-9 <= beyond <= 1e9:
            with pytest.raises(InputError, match="clip must be a finite number in"):
                dpmcmc.Privacy(epsilon=1.0, delta=1e-3, clip=beyond)


def test_a_hybrid_takes_the_keys_of_its_start():
    of_start = {key.name for key in keys(ONE_SHOT["ops"])}
    assert {key.name for key in keys(HybridStart)} == of_start - {"draws"} | {"share"}


@dataclass(frozen=True)
class Sample:
    """Fields that check_fields looks at.

    Args:
        share: in (0, 1).
        word: one of two.
        free: anything.
    """

    share: Annotated[float, Gt(0), Lt(1)] | Literal["auto"] = 0.5
    count: Annotated[int, Ge(2)] | None = None
    word: Literal["a", "b"] = "a"
    free: float = 0.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"share": 1.0}, "share must be a finite number in (0, 1) or auto, got 1.0"),
        ({"share": float("nan")}, "share must be a finite number in (0, 1) or auto, got nan"),
        ({"share": True}, "share must be a finite number in (0, 1) or auto, got True"),
        ({"share": "x"}, "share must be a finite number in (0, 1) or auto, got 'x'"),
        ({"share": 10**400}, "share must be a finite number in (0, 1) or auto, got 1000"),
        ({"count": 2.0}, "count must be a whole number >= 2, got 2.0"),
        ({"count": 1}, "count must be a whole number >= 2, got 1"),
        ({"word": "c"}, "word must be one of a, b, got 'c'"),
    ],
)
def test_check_fields_says_what_an_annotation_declares(changes, said):
    check_fields(Sample())
    check_fields(Sample(share="auto", count=2, word="b", free=float("inf")))
    with pytest.raises(InputError) as refusal:
        check_fields(dataclasses.replace(Sample(), **changes))
    assert str(refusal.value).startswith(said)
    assert refusal.value.about == next(iter(changes))
