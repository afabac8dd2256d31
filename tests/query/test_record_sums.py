"""Sums over records are exact: their bits depend on no block, partition or order, and no record passes a bound."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.linear_score import Huber
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.softmax_score import Softmax
from dpmcmc.mechanisms import AdaSSP, NoiseAware, SufficientStatistics
from dpmcmc.mechanisms.noise_aware import gradients
from dpmcmc.mechanisms.noise_aware.dispersion import Dispersion
from dpmcmc.mechanisms.noise_aware.gradients import (
    BoundedGradient,
    Bounds,
    Design,
)
from dpmcmc.mechanisms.noise_aware.residuals import Residuals
from dpmcmc.mechanisms.rows import LinearSums, Rows, RowSums, Whitened
from dpmcmc.privacy.query import integer_rows
from dpmcmc.privacy.query.gaussian_release import grid, on_grid
from dpmcmc.privacy.query.integer_rows import Exact, rounded_columns, rounded_rows, svec_of, unit_of
from dpmcmc.privacy.query.record_sums import Prepared, Whole, added, blocks_of, summed

N, D, EACH = 1500, 5, 3
SCORES = {
    "logistic": Logistic(),
    "softmax": Softmax(3),
    "huber": Huber(0.5, 0.3),
    "poisson": Counts(0.0),
    "negative binomial": Counts(0.4, weighting=0.0),
}


def table(each=1, seed=0):
    """Records, or owners of at most ``each`` rows: rows of every length, some of them exactly at their bound."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, each, D)) * 10.0 ** rng.uniform(-4, 0, (N, each, 1))
    long = np.linalg.norm(x, axis=2, keepdims=True)
    records = {
        "x": np.where(long > 0.5, x / long, x),
        "y": rng.integers(0, 3, size=(N, each)).astype(float),
        "offset": rng.uniform(-1, 1, (N, each)),
        "weight": rng.uniform(0, 1, (N, each)),
    }
    if each == 1:
        return {name: leaf[:, 0] for name, leaf in records.items()}
    return records | {"mask": np.arange(each) < rng.integers(1, each + 1, size=(N, 1))}


def access_of(score):
    design = Design(N, D, 1.0, 100.0, floor=1e-3)
    made = BoundedGradient.of(N * np.diag(0.3 * 0.5 ** np.arange(D)), design, score)
    clip = score.limit * made.norm
    leverage = score.leverage(clip, 3 * made.norm)
    bounds = Bounds(clip, 3 * made.norm, leverage if math.isfinite(leverage) else clip)
    return dataclasses.replace(made, bounds=bounds)


def sums_of(score):
    """Every sum over records of a regression, by name, with the preparation that it is of."""
    access = access_of(score)
    columns = access.columns(np.random.default_rng(1).normal(size=D * score.size))
    found = {
        "rows": RowSums(1.0),
        "linear": LinearSums(3.0),
        "whitened rows": partial(access.added_rows, 0.5 * access.norm),
        "gradient": partial(access.added_scores, columns),
        "curvature": partial(access.added_curvature, columns),
        "spread": partial(access.added_spread, columns),
        "expected spread": partial(access.added_expected_spread, columns),
    }
    if score.size == 1:
        found["residuals"] = partial(access.added_labels, columns, Residuals(1.0).statistic)
        found["dispersions"] = partial(access.added_labels, columns, Dispersion().statistic)
    rows = Rows(None, 1.0)  # type: ignore[arg-type]
    by = [rows, Whitened(access.inverse, access.unit)]
    return {name: Prepared(by[0], Prepared(by[1], one)) for name, one in found.items()}


def cut(records, places):
    """Partitions of a table, some of them empty."""
    edges = [0, *sorted(places), N]
    return [{name: leaf[a:b] for name, leaf in records.items()} for a, b in itertools.pairwise(edges)]


def equal(one, two):
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


# --- no block, partition or order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [1, EACH], ids=["records", "owners"])
@pytest.mark.parametrize("name", SCORES)
def test_totals_are_the_same_for_every_partition_and_order(name, each):
    """Blocks of 1, 7 and 512 records, 64 random partitions, and a shuffled table; every sum is sent as bytes."""
    records, rng = table(each), np.random.default_rng(2)
    with np.errstate(all="ignore"):
        for what, of in sums_of(SCORES[name]).items():
            of = pickle.loads(pickle.dumps(of))
            whole = summed(of, records)
            assert any(np.any(part) for part in whole), what
            partitions = cut(records, rng.integers(0, N + 1, 63))
            assert equal(whole, added(summed(of, partitions[k]) for k in rng.permutation(64))), what
            order = rng.permutation(N)
            shuffled = {key: leaf[order] for key, leaf in records.items()}
            assert equal(whole, summed(of, shuffled)), what
            few = {key: leaf[:60] for key, leaf in records.items()}
            first = summed(of, few)
            for size in (1, 7):
                places = list(range(0, 60, size))
                parts = ({key: leaf[a : a + size] for key, leaf in few.items()} for a in places)
                assert equal(first, added(summed(of, part) for part in parts)), (what, size)


def test_a_contribution_that_is_not_rounded_before_it_is_added_is_caught(monkeypatch):
    """Planted: the same sums in float64, rounded once a block; partitions then differ in their last bits."""
    monkeypatch.setattr(gradients, "whole_within", lambda numbers, most: numbers)
    of = sums_of(Logistic())["gradient"]
    records, rng = table(), np.random.default_rng(3)
    parts = cut(records, rng.integers(0, N + 1, 7))
    assert not equal(summed(of, records), added(summed(of, part) for part in parts))


@given(st.integers(0, 2**32 - 1), st.integers(0, 40))
@settings(max_examples=25, deadline=None)
def test_numbers_of_every_size_are_added_exactly(seed, places):
    rng = np.random.default_rng(seed)
    x = rng.integers(-(2**61), 2**61, (N, 2))
    of = lambda records: (np.sum(records["x"] >> 13, axis=0), np.asarray(records["x"].max(initial=0)))  # noqa: E731
    parts = cut({"x": x}, rng.integers(0, N + 1, places))
    total = added(summed(of, part) for part in parts)[0]
    assert total.tolist() == [sum(int(v) for v in column) for column in (x >> 13).T]


def test_a_large_table_is_read_in_blocks():
    x = np.arange(20_000.0)[:, None]
    assert [len(block["x"]) for block in blocks_of({"x": x})] == [8192, 8192, 3616]
    made = Whole({"x": x}).prepared(lambda records: {"x": 2 * records["x"]})
    assert made.num_records == 20_000
    assert made.shapes["x"].shape == (1,)
    assert made.total(lambda records: (records["x"].sum(axis=0).astype(np.int64),))[0].tolist() == [20_000 * 19_999]


# --- no record passes its bound ------------------------------------------------------------------------------------


def lengths(integers):
    """Squared norms of integer rows, exactly."""
    return [sum(int(v) ** 2 for v in row) for row in integers]


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, 40]), st.sampled_from([1.0, 1.0001, 0.3, 7e5, 1e-9]))
@settings(max_examples=30, deadline=None)
def test_rounding_leaves_every_row_within_its_bound(seed, size, bound):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(50, size))
    x *= bound / np.linalg.norm(x, axis=1, keepdims=True) * rng.choice([1, 1 - 1e-9, 1 + 1e-7, 3, 1e300], (50, 1))
    x[0], x[1] = np.nan, np.inf
    unit = unit_of(bound, integer_rows.ROW_BITS)
    assert 2**23 < bound / unit <= 2**24
    made = rounded_rows(x, bound)
    most = (int(bound / unit * 2**60) ** 2) >> 120
    assert max(lengths(made)) <= most + 1
    assert max(lengths(made)) * unit**2 <= bound**2
    with np.errstate(all="ignore"):
        near = np.abs(made * unit - x)[np.linalg.norm(x, axis=1) < bound * (1 - 1e-6)]
    assert np.all(near <= unit / 2)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 60]))
@settings(max_examples=30, deadline=None)
def test_rounding_leaves_every_row_of_a_second_moment_within_its_bound(seed, size):
    rng = np.random.default_rng(seed)
    most = rng.uniform(0.1, 1, 40)
    columns = rng.normal(size=(size, 40))
    columns *= np.sqrt(most) / np.linalg.norm(columns, axis=0) * rng.choice([1, 1 + 1e-9, 0.3, 2, 1e200], 40)
    columns[:, 0] = np.nan
    made = rounded_columns(columns, most=most)
    assert all(length <= share * 4**20 for length, share in zip(lengths(made.T), most, strict=True))
    # A row that rounding leaves at its bound is scaled and not dropped.
    assert np.all(
        np.linalg.norm(made, axis=0)[1:] >= 0.25 * np.sqrt(most[1:]) * 2**20 * (np.abs(columns[0, 1:]) < 1e100)
    )


def test_a_bound_that_rounding_exceeds_is_caught(monkeypatch):
    """Planted: a row is scaled to its bound and then rounded to the nearest, with no room for that."""
    monkeypatch.setattr(integer_rows.math, "sqrt", lambda _: 0.0)
    x = np.random.default_rng(0).normal(size=(2000, 5))
    made = rounded_rows(x / np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    assert max(lengths(made)) > 4**24


@pytest.mark.parametrize("name", SCORES)
def test_a_whitened_score_is_within_one_exactly(name):
    """In integers, of records one by one: ‖F⁻¹x r‖ <= 1, of a label that the model does not know, too."""
    score = SCORES[name]
    access = access_of(score)
    columns = access.columns(30 * np.random.default_rng(4).normal(size=D * score.size))
    records = {key: leaf[:40] for key, leaf in table().items()}
    records["y"] = np.tile([0.0, 2.0, np.nan, 1e300], 10)
    rows = Whitened(access.inverse, access.unit)(Rows(None, 1.0)(records))  # type: ignore[arg-type]
    inverse = np.rint(access.inverse / access.inverse_unit).astype(np.int64).astype(object)
    with np.errstate(all="ignore"):
        longest = 0.0
        for k in range(40):
            (parts,) = partial(access.added_scores, columns)({key: leaf[k : k + 1] for key, leaf in rows.items()})
            whitened = inverse @ integer_rows.joined(parts)
            square = sum(int(v) ** 2 for v in whitened.ravel())
            one = 2**access.number_bits / (access.unit * access.inverse_unit)
            assert square <= int(one) ** 2
            longest = max(longest, math.sqrt(square) / one)
    assert longest > 0.5


# --- from integers to a release ------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [1e-3, 0.7, 3e5])
def test_an_exact_value_meets_the_grid_as_an_integer(std):
    """The nearest multiple, where a float64 would have lost bits; what lies beyond is clamped."""
    unit = grid(std)
    steps = np.array([0, 1, -1, 2**90 + 1, -(2**90), 12345678901234567890], object)
    for fine in (unit * 2.0**-40, unit * 2.0**3):
        found = on_grid(Exact(steps, fine), unit)
        ratio = int(max(unit / fine, 1)), int(max(fine / unit, 1))
        for got, step in zip(found.tolist(), steps.tolist(), strict=True):
            exact = step * ratio[1]
            clamped = max(-(2**61), min(2**61, exact // ratio[0]))
            assert abs(got - clamped) <= 1
            assert abs(got) <= 2**61
            if abs(got) < 2**61:
                assert 2 * abs(got * ratio[0] - exact) <= ratio[0]


def test_svec_of_exact_entries_is_no_longer_than_the_matrix():
    steps = np.random.default_rng(5).integers(-(2**50), 2**50, (4, 4))
    matrix = Exact((steps + steps.T).astype(object), 2.0**-40)
    found = svec_of(matrix)
    square = sum(int(v) ** 2 for v in found.steps)
    exact = sum(int(v) ** 2 for v in matrix.steps.ravel()) << 120
    assert exact * (1 - 2.0**-50) <= square <= exact


@pytest.mark.parametrize("each", [1, EACH], ids=["records", "owners"])
@pytest.mark.parametrize("name", SCORES)
def test_an_absent_record_adds_nothing_to_any_sum(name, each):
    """Under add_remove it is a row of zeros, or an owner without rows."""
    records = table(each)
    absent = {name: np.zeros_like(leaf[:1]) for name, leaf in records.items()}
    for about, one in sums_of(SCORES[name]).items():
        added_by = summed(one, absent)
        if about == "rows" and each == 1:  # records are not counted; owners are
            added_by = added_by[:-1]
        assert all(not part.any() for part in added_by), about
        assert any(part.any() for part in summed(one, records)), about


def test_an_offset_that_is_no_number_moves_its_sum_within_its_bound():
    records = {name: leaf[:3] for name, leaf in table().items()}
    records["offset"] = np.array([np.nan, np.inf, -np.inf])
    offsets = summed(sums_of(SCORES["logistic"])["rows"], records)[2]
    assert [*offsets] == [0, 2 << 30]


def test_mechanisms_say_which_targets_they_read_through_sums_alone():
    from dpmcmc.mechanisms import OutputPerturbation
    from tests.noise_aware_tables import linear, logistic

    assert all(one().reads_sums(linear(2)) for one in (NoiseAware, SufficientStatistics, AdaSSP))
    assert not OutputPerturbation().reads_sums(logistic(2))
