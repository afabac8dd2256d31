"""Owners as records: gathering, exact padding, the sensitivity to ALL rows of one owner, and a run from a file."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from dpmcmc import data
from dpmcmc.data.owners import MASK
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.sampling import Poisson
from dpmcmc.privacy.query.selection import selector
from dpmcmc.targets import Custom, LogisticRegression, PerOwner
from dpmcmc.targets.per_owner import rows_of
from tests.cli.test_command_line import call
from tests.query.test_query import exact_sum, query

D, M, OWNERS = 4, 5, 40
#: One grid step a coordinate is lost to truncation.
CLIP = 1.0


def rows(seed: int = 0, count: int = 150) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, D)).astype(np.float32)
    return {"x": x, "y": (rng.random(count) < 0.5).astype(np.int32)}, rng.integers(0, OWNERS, count)


def gathered(seed: int = 0) -> dict[str, np.ndarray]:
    values, owner = rows(seed)
    return data.by_owner(values, owner, num_owners=OWNERS, records_per_owner=M)


def clipped_sum(target, records, params, select=None, key=0) -> np.ndarray:
    n = len(jax.tree.leaves(records)[0])
    return exact_sum(query(target, n, CLIP, select), params, records, jax.random.key(key))


def test_rows_stand_with_their_owner_in_their_order():
    values, owner = rows()
    records = data.by_owner(values, owner, num_owners=OWNERS, records_per_owner=M)
    assert records["x"].shape == (OWNERS, M, D)
    for o in range(OWNERS):
        own = np.flatnonzero(owner == o)[:M]
        assert records[MASK][o].sum() == len(own)
        np.testing.assert_array_equal(records["x"][o, : len(own)], values["x"][own])
        np.testing.assert_array_equal(records["y"][o, : len(own)], values["y"][own])
        assert not records["x"][o, len(own) :].any()
    assert (np.bincount(owner, minlength=OWNERS) > M).any()


def test_no_other_owner_is_touched_by_what_one_owner_does():
    values, owner = rows()
    records = data.by_owner(values, owner, num_owners=OWNERS, records_per_owner=M)
    victim = int(owner[0])
    mine = owner == victim
    rng = np.random.default_rng(9)
    # All rows of one owner go, and fifty others come in random places of the file.
    place = np.sort(rng.integers(0, (~mine).sum() + 1, 50))
    changed = {
        "x": np.insert(values["x"][~mine], place, rng.normal(size=(50, D)).astype(np.float32), axis=0),
        "y": np.insert(values["y"][~mine], place, 1),
    }
    other = data.by_owner(changed, np.insert(owner[~mine], place, victim), num_owners=OWNERS, records_per_owner=M)
    rest = np.arange(OWNERS) != victim
    for name in records:
        np.testing.assert_array_equal(records[name][rest], other[name][rest])
    assert (records["x"][victim] != other["x"][victim]).any()


@pytest.mark.parametrize("owner", [[0, 2], []])
def test_an_absent_owner_is_padding(owner):
    records = data.by_owner({"x": np.ones((len(owner), D))}, np.array(owner, int), num_owners=4, records_per_owner=3)
    np.testing.assert_array_equal(records[MASK].sum(axis=1), np.isin(range(4), owner))


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        ([0, 5], "outside 0 to 3"),
        ([-1, 0], "outside 0 to 3"),
        ([0.0, 1.0], "whole number a row"),
        ([0], "1 owners of rows"),
        ([[0, 1]], "whole number a row"),
    ],
)
def test_numbers_that_are_no_owners_are_refused(owner, message):
    with pytest.raises(data.DataError, match=message):
        data.by_owner({"x": np.ones((2, D))}, np.array(owner), num_owners=4, records_per_owner=3)


def test_a_refusal_of_owners_quotes_no_number_of_theirs():
    owner = np.array([0, 31415926, 2, -27182818])
    with pytest.raises(data.DataError) as refusal:
        data.by_owner({"x": np.ones((4, D))}, owner, num_owners=4, records_per_owner=3)
    said = "data: 'owner' has numbers outside 0 to 3: number the owners 0 to num_owners - 1 by a public list of them."
    assert str(refusal.value) == said
    assert refusal.value.rows == (1, 3)


def test_masked_arrays_have_no_place_beside_owners():
    """NumPy's conversion drops the mask, and a masked number would count."""
    for rows, owner in (
        ({"x": np.ma.array(np.ones((2, D)))}, np.array([0, 1])),
        ({"x": np.ones((2, D))}, np.ma.array([0, 1], mask=[0, 1])),
    ):
        with pytest.raises(data.DataError, match="is a masked array"):
            data.by_owner(rows, owner, num_owners=4, records_per_owner=3)


def test_an_array_called_mask_and_counts_of_zero_are_refused():
    with pytest.raises(data.DataError, match="named 'mask'"):
        data.by_owner({"mask": np.ones(2)}, np.zeros(2, int), num_owners=1, records_per_owner=1)
    with pytest.raises(data.DataError, match=r"data\.records_per_owner: 0"):
        data.by_owner({"x": np.ones(2)}, np.zeros(2, int), num_owners=1, records_per_owner=0)


@pytest.mark.optimised
def test_an_owner_is_worth_the_sum_of_their_rows():
    target, records = PerOwner(LogisticRegression(1.0, num_features=D)), gathered()
    params = jnp.asarray(np.random.default_rng(1).normal(size=D), jnp.float32)
    value, grad = jax.jit(jax.vmap(jax.value_and_grad(target.log_likelihood), (None, 0)))(params, records)
    for o in range(OWNERS):
        keep = records[MASK][o]
        x, y = records["x"][o][keep].astype(np.float64), records["y"][o][keep]
        margin = x @ np.asarray(params, np.float64)
        np.testing.assert_allclose(value[o], np.sum(y * margin - np.logaddexp(0, margin)), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(grad[o], (y - 1 / (1 + np.exp(-margin))) @ x, rtol=1e-4, atol=1e-5)


#: Not a number at x = 0, value and gradient, as padding has it.
LOG_RATE = Custom(
    init=lambda key: jnp.ones(1),
    log_prior=lambda p: -jnp.sum(p**2),
    log_likelihood=lambda p, r: -p[0] * jnp.log(r["x"][0]) * jnp.sqrt(r["x"][0] * p[0]) / r["x"][0],
)


def positive() -> dict[str, np.ndarray]:
    x = np.random.default_rng(2).uniform(0.5, 2, (6, 1)).astype(np.float32)
    return data.by_owner({"x": x}, np.array([0, 0, 1, 1, 1, 3]), num_owners=5, records_per_owner=3)


@pytest.mark.slow
def test_padding_that_a_likelihood_cannot_bear_contributes_nothing():
    records, params = positive(), jnp.ones(1)
    inner = LOG_RATE.log_likelihood
    assert np.isnan(jax.grad(inner)(params, {"x": jnp.zeros(1)})).all()
    target = PerOwner(LOG_RATE)
    value, grad = jax.vmap(jax.value_and_grad(target.log_likelihood), (None, 0))(params, records)
    assert np.isfinite(value).all()
    assert np.isfinite(grad).all()
    # Owners 2 and 4 have no rows; vmap within grad, as the plain query has it, is another program.
    np.testing.assert_array_equal(np.asarray(value)[[2, 4]], 0)
    np.testing.assert_array_equal(np.asarray(grad)[[2, 4]], 0)
    total = jax.grad(lambda p: jnp.sum(jax.vmap(target.log_likelihood, (None, 0))(p, records)))(params)
    np.testing.assert_allclose(total, grad.sum(axis=0), rtol=1e-5)
    each = jax.vmap(jax.grad(inner), (None, 0))(params, rows_of(records))
    np.testing.assert_allclose(total, each.sum(axis=0), rtol=1e-5)
    # And forward mode, which a Hessian takes.
    assert np.isfinite(jax.vmap(lambda r: jax.hessian(target.log_likelihood)(params, r))(records)).all()


@pytest.mark.optimised
def test_a_bad_row_takes_its_owner_out_and_nobody_else():
    records = gathered()
    bad = {k: v.copy() for k, v in records.items()}
    owner = int(np.flatnonzero(records[MASK].sum(axis=1) >= 2)[0])
    bad["x"][owner, 1] = np.nan
    without = {k: v.copy() for k, v in records.items()}
    without[MASK][owner] = False
    target, params = PerOwner(LogisticRegression(1.0, num_features=D)), jnp.ones(D)
    np.testing.assert_array_equal(clipped_sum(target, bad, params), clipped_sum(target, without, params))


def worst_move(target, select=None, key=0) -> float:
    """Distance of the clipped sums over 2C, where an owner's rows all push one way and then all the other."""
    x = np.tile(np.full((1, 1, D), 2.0, np.float32), (OWNERS, M, 1))
    first = {"x": x, "y": np.zeros((OWNERS, M), np.int32), MASK: np.ones((OWNERS, M), bool)}
    second = {k: v.copy() for k, v in first.items()}
    at = 3
    if select is not None:
        indices, taken = jax.jit(select)(jax.random.key(key))
        assert taken[0]
        at = int(indices[0])
    second["y"][at] = 1
    params = jnp.zeros(D)
    sums = [clipped_sum(target, records, params, select, key) for records in (first, second)]
    return float(np.linalg.norm(sums[0] - sums[1])) / (2 * CLIP)


@pytest.mark.optimised
@pytest.mark.parametrize("sampled", [False, True])
def test_neighbours_in_all_rows_of_an_owner_move_the_sum_by_at_most_the_sensitivity(sampled):
    scheme = Poisson(15.0)
    select = selector(scheme, OWNERS, scheme.capacity(OWNERS, 1e-12)[0]) if sampled else None
    worst = worst_move(PerOwner(LogisticRegression(1.0, num_features=D)), select)
    assert 0.999 < worst <= 1 + KAPPA


@pytest.mark.optimised
def test_random_neighbours_stay_within_the_sensitivity():
    target = PerOwner(LogisticRegression(1.0, num_features=D))
    records, rng = gathered(), np.random.default_rng(4)
    params = jnp.asarray(rng.normal(size=D), jnp.float32)
    before = clipped_sum(target, records, params)
    for owner in range(0, OWNERS, 7):
        other = {k: v.copy() for k, v in records.items()}
        other["x"][owner] = rng.normal(size=(M, D)) * 10
        other["y"][owner] = rng.integers(0, 2, M)
        other[MASK][owner] = rng.random(M) < 0.7
        assert np.linalg.norm(clipped_sum(target, other, params) - before) <= 2 * CLIP * (1 + KAPPA)


def file(folder, seed=0, owners=60, count=400) -> str:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=3) * 2
    x = rng.normal(size=(count, 3)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (rng.random(count) < 1 / (1 + np.exp(-4 * x @ weights))).astype(np.int64)
    path = folder / "people.npz"
    np.savez(path, x=x, y=y, person=rng.integers(0, owners, count))
    return str(path)


def config(path, **changes) -> dict:
    body = {
        "name": "people",
        "data": {
            "path": path,
            "owner": "person",
            "num_owners": 60,
            "records_per_owner": 4,
            "test_fraction": 0.25,
            "row_bound": 1.0,
        },
        "target": {"name": "logistic_regression", "prior_scale": 1.0},
        "sampler": {"name": "sgld", "step_size": 0.5},
        "sampling": {"scheme": "poisson", "batch_size": 15},
        "privacy": {"epsilon": 5.0, "delta": 1e-3},
        "run": {"steps": 60, "thin": 5},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            body[section] = {**body[section], name: value}
        else:
            body[section] = value
    return {key: value for key, value in body.items() if value != "out"}


def written(folder, **changes):
    path = folder / "people.yaml"
    path.write_text(yaml.safe_dump(config(file(folder), **changes)))
    return path


def test_no_person_is_on_both_sides(tmp_path):
    path = file(tmp_path)
    loaded = data.load(path, owner="person", num_owners=60, records_per_owner=4, test_fraction=0.25)
    assert loaded.spec == data.describe(path, owner="person", num_owners=60, records_per_owner=4, test_fraction=0.25)
    assert loaded.spec.num_records == 45 == len(loaded.train["x"])
    with np.load(path) as stored:
        person = {tuple(x): p for x, p in zip(stored["x"], stored["person"], strict=True)}
    assert loaded.test is not None
    held_out = {person[tuple(x)] for x in loaded.test["x"]}
    training = {person[tuple(x)] for x in rows_of(loaded.train)["x"]}
    assert not held_out & training
    assert len(held_out) <= 15
    for place, mask in zip(loaded.train["x"], loaded.train[MASK], strict=True):
        assert len({person[tuple(x)] for x in place[mask]}) <= 1


@pytest.mark.slow
def test_a_run_says_that_its_unit_is_an_owner(tmp_path, capsys):
    out = tmp_path / "out"
    assert call("run", written(tmp_path), "--out", out) == 0
    said = capsys.readouterr().out
    assert "45 owners" in said
    assert "owners    of at most 4 rows each" in said
    privacy = json.loads((out / "privacy.json").read_text())
    assert privacy["unit"] == "owner (at most 4 rows)"
    assert privacy["num_records"] == 45
    assert privacy["epsilon"] <= 5.0
    assert json.loads((out / "plan.json").read_text())["unit"] == privacy["unit"]
    metrics = json.loads((out / "metrics.json").read_text())
    diagnostics = json.loads((out / "confidential" / "diagnostics.json").read_text())
    assert 0 <= diagnostics["accuracy"]["mean"] <= 1
    assert diagnostics["train"]["accuracy"] is not None
    assert metrics["accuracy"] is None
    assert call("verify", out / "privacy.json") == 0


def test_a_noise_aware_release_of_a_file_has_owners_for_its_unit(tmp_path, capsys):
    changes = {"mechanism": {"name": "noise_aware", "draws": 100, "steps": 4}, "data__num_features": 3}
    path, out = written(tmp_path, sampler="out", sampling="out", run="out", **changes), tmp_path / "out"
    assert call("run", path, "--out", out) == 0
    assert "records of one owner are independent" not in capsys.readouterr().out, "4 steps are too few for intervals"
    for name in ("privacy.json", "plan.json"):
        body = json.loads((out / name).read_text())
        assert (body["unit"], body["num_records"]) == ("owner (at most 4 rows)", 45)
    assert "count_noise_std" in body["settings"]
    assert call("verify", out / "privacy.json") == 0


def test_a_plan_says_it_without_reading_the_file(tmp_path, capsys):
    path = written(tmp_path)
    (tmp_path / "people.npz").unlink()
    assert call("plan", path, "--all") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "45 owners" in said
    assert "owners of at most 4 rows each" in said
    assert "one owner replaced" in said or "one owner " in said
    assert "a record is one owner" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__num_owners": None}, "data.num_owners: with data.owner this must be declared"),
        ({"data__records_per_owner": 0}, "data.records_per_owner: input should be > 0"),
        ({"data__owner": None}, "data.num_owners: says nothing without data.owner"),
        ({"data__num_records": 45}, "data.num_records: with data.owner N counts training owners"),
        ({"data__owner": "y"}, "data.owner: 'y' is also the name"),
        (
            {"data": {"name": "digits", "owner": "p", "num_owners": 3, "records_per_owner": 1}},
            "data.owner: is for your own",
        ),
        (
            {"mechanism": {"name": "output_perturbation"}, "sampler": "out", "sampling": "out", "run": "out"},
            "mechanism: output_perturbation bounds what one row can do",
        ),
    ],
)
def test_confusing_combinations_are_refused(tmp_path, capsys, changes, message):
    assert call("plan", written(tmp_path, **changes)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"data__num_owners": 30}, "outside 0 to 29"), ({"data__owner": "nobody"}, "has no array 'nobody'")],
)
def test_a_file_that_breaks_the_declaration_is_refused(tmp_path, capsys, changes, message):
    assert call("run", written(tmp_path, **changes), "--out", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
