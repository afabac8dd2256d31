"""Runs long enough for intervals, with and without privacy."""

import json

import jax.numpy as jnp

import dpmcmc
from dpmcmc.planning import verdict
from dpmcmc.targets import Custom, LogisticRegression

N, PRECISION = 20, 4.0
LOGISTIC = LogisticRegression(prior_scale=PRECISION**-0.5, num_features=3, row_bound=1.0)
#: At .047 of SGLD's stability limit; as many steps as the conditions ask for.
STEP = 0.094 * N / (N / 4 + PRECISION)
BURN_IN, STEPS = 80, 1400
CUSTOM = Custom(
    lambda key: jnp.zeros(3), lambda p: -2 * jnp.sum(p**2), lambda p, r: r["y"] * (r["x"] @ p), gradient_bound=1
)


def long_run(target=LOGISTIC, privacy="loose", **changes):
    """A plan that says intervals, with changes; a private one needs an ε that promises little."""
    if privacy == "loose":
        privacy = loose()
    settings = {"num_records": N, "sampler": dpmcmc.SGLD(STEP), "steps": STEPS, "burn_in": BURN_IN, "thin": 5} | changes
    return dpmcmc.plan(target, privacy=privacy, **settings)


def loose(**changes):
    return dpmcmc.Privacy(**({"epsilon": 45.0, "delta": 1e-3, "accountant": "rdp", "clip": 1.0} | changes))


def check_sentences(found):
    """A verdict of the form that files and people are promised."""
    assert set(found.usable_for) <= {"prediction", "intervals"}
    assert set(found.reasons) == {"prediction", "intervals"}
    for name, why in found.reasons.items():
        assert why[0].isupper()
        assert why.endswith(".")
        assert why.count(". ") == 0
        assert why.startswith("Yes") == (name in found.usable_for)
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    costs = {"relaxations", "predicted_inflation", "predicted_width", "predicted_from", "clip_bias"}
    assert body.keys() == {"usable_for", "usable_for_reasons", "from_path", "path", *costs}
    assert (tuple(body["usable_for"]), body["usable_for_reasons"]) == (found.usable_for, found.reasons)
    assert verdict.Verdict.of_json(body) == found
    labels = {"relaxations": "relaxations", "predicted_inflation": "width", "clip_bias": "clip bias"}
    assert dict(found.lines()).keys() - {"usable for", "prediction", "intervals"} == {
        label
        for name, label in labels.items()
        if body[name] is not None and not (found.from_path and name == "relaxations")
    }
