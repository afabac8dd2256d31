"""Inference on data that are private already: sensitivities in closed form, and posteriors against linear algebra."""

import math

import numpy as np
import pytest

from experiments.sources.already_private import (
    along_edges,
    basis_pursuit,
    block_model,
    diffusion,
    heat,
    moved_mass,
    next_to,
)
from experiments.sources.private_map import laplacian, smoothed
from tests.page_tables import results, section


def star(n):
    graph = np.zeros((n, n))
    graph[0, 1:] = graph[1:, 0] = 1
    return graph


@pytest.mark.parametrize(
    ("graph", "squared"), [(np.ones((6, 6)) - np.eye(6), 2 * math.exp(-1.2)), (star(6), 1.0164177)]
)
def test_sensitivities_of_graphs_have_their_closed_form(graph, squared):
    """K_n: 2e^{−2τn}, where half of it is printed; the star's middle term needs n − 2."""
    moved = along_edges(diffusion(graph, 0.1), np.argwhere(np.triu(graph)))
    assert moved**2 == pytest.approx(squared, rel=1e-6)


def test_the_sensitivity_of_a_rod_falls_with_three_quarters_at_first_and_three_halves_at_last():
    moved = {time: next_to(heat(500, 500, time)) for time in (0.001, 0.003, 0.01, 3.0, 10.0)}
    for early, late, slope in ((0.003, 0.01, -0.75), (3.0, 10.0, -1.5)):
        assert math.log(moved[late] / moved[early]) / math.log(late / early) == pytest.approx(slope, abs=0.05)
    assert moved[0.001] * math.sqrt(500) == pytest.approx(39.706, rel=1e-4)


def test_basis_pursuit_ends_within_the_noise_and_on_the_unit_interval():
    kernel = heat(30, 20, 0.01)
    truth = np.zeros(20)
    truth[[4, 14]] = 1.0
    seen = kernel @ truth + 0.05 * np.random.default_rng(0).standard_normal(30)
    found = basis_pursuit(kernel, seen, 0.05)
    assert np.linalg.norm(seen - kernel @ found) <= 0.05 * math.sqrt(30 + 2 * math.sqrt(30) + 2)
    assert 0 <= found.min() <= found.max() <= 1
    assert moved_mass(found, truth) < 0.05 < moved_mass(np.ones(20), truth)


def test_blocks_have_the_shares_of_edges_that_the_text_means():
    graph = block_model(np.random.default_rng(0))
    assert np.mean(graph[:250, :250]) == pytest.approx(0.05, abs=0.005)
    assert np.mean(graph[:250, 250:]) == pytest.approx(0.001, abs=0.0005)
    assert graph.sum(axis=0).min() >= 1


def test_a_smoothed_map_is_the_posterior_of_its_random_field():
    graph = laplacian(5)
    noisy = 10 + np.random.default_rng(0).normal(size=25)
    mean, deviation, strength = smoothed(noisy, graph, 0.25)
    posterior = np.linalg.inv(np.eye(25) + strength * graph)
    np.testing.assert_allclose(mean, posterior @ noisy, rtol=1e-9)
    np.testing.assert_allclose(deviation, np.sqrt(0.25 * np.diag(posterior)), rtol=1e-9)


def test_the_numbers_of_the_page_are_those_of_the_results():
    every = [*results("already_private"), *results("private_map")]
    rows = {(row["panel"], row["quantity"], float(row["at"])): float(row["value"]) for row in every}
    text = " ".join(section("Data that are private already").split())
    for key, digits in (
        (("graph", "its half", 4.0), 2),
        (("map", "noisy", 0.3), 1),
        (("map", "smoothed", 0.3), 1),
        (("rod", "moved mass, likeliest pair", 0.05), 3),
        (("rod", "moved mass, basis pursuit", 0.05), 3),
    ):
        assert f"{rows[key]:.{digits}f}" in text, key
    assert min(value for (panel, name, _), value in rows.items() if (panel, name) == ("map", "coverage")) >= 0.88
