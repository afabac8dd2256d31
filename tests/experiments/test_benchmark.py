"""The benchmark runs, its comparators do the work they are timed for, and its ratios are of what was timed in turn."""

import dataclasses
import importlib
import importlib.util
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import comparators, growth, problem, report, safeguards  # noqa: E402
from benchmarks.timing import Ratio, in_turn, ratio  # noqa: E402

TINY = problem.Size(num_records=500, features=4, batch=20, steps=20, repeats=1, quick=True)
HAS_BLACKJAX = importlib.util.find_spec("blackjax") is not None


def benchmark(monkeypatch, *arguments):
    """``python scripts/benchmark.py``, within this process, for the compiled programs' sake."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    spec = importlib.util.spec_from_file_location("benchmark_entry", ROOT / "scripts" / "benchmark.py")
    entry = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(entry)
    return entry.main(arguments)


@pytest.mark.slow
def test_a_quick_section_prints_a_table_of_ratios_and_writes_it(tmp_path, monkeypatch, capsys):
    document, numbers = tmp_path / "performance.md", tmp_path / "numbers.json"
    document.write_text("# Performance\n\nProse.\n")
    arguments = ["--quick", "--repeats", "1", "--only", "safeguards", "--out", str(document), "--out", str(numbers)]
    assert benchmark(monkeypatch, *arguments) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 6
    assert "quick sizes, not to be quoted" in printed
    written = document.read_text()
    assert written.startswith("# Performance\n\nProse.\n")
    assert rows[0] in written
    (table,) = json.loads(numbers.read_text())["safeguards"]["tables"]
    assert table["rows"][0]["÷ first"]["median"] == 1
    for above, row in zip(table["rows"], table["rows"][1:], strict=False):
        assert row["÷ line above"]["median"] == pytest.approx(row["µs a step"] / above["µs a step"])


def test_ratios_are_of_repeats_in_turn_so_a_drifting_machine_cancels():
    """The second program takes twice as long, on a machine that gets slower with every call."""
    calls = iter(range(100))
    times = in_turn({"one": lambda: 1.5 ** next(calls), "two": lambda: 2 * 1.5 ** next(calls)}, 9)
    assert times["one"][-1] > 100 * times["one"][0]
    assert ratio(times["two"], times["one"]).median == pytest.approx(3)  # 2, and one call's drift


def test_a_ratio_is_the_median_of_ratios_not_the_ratio_of_medians():
    assert ratio(np.array([2.0, 20.0, 2.0]), np.array([1.0, 10.0, 10.0])).median == 2


def test_a_section_replaces_itself_alone_in_a_document(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("# Page\n")
    report.put_into_document(path, "cpu", {"growth": "old \\1", "host": "kept"})
    report.put_into_document(path, "gpu", {"growth": "other device"})
    path.write_text(path.read_text() + "\nThe end.\n")
    before = path.read_text()
    report.put_into_document(path, "cpu", {"growth": "new \\1"})
    assert path.read_text() == before.replace("old \\1", "new \\1")


def test_what_is_not_installed_is_named_and_left_out(monkeypatch):
    monkeypatch.setattr(comparators, "find_spec", lambda name: None)
    monkeypatch.setattr(comparators, "SAMPLERS", {"SGLD": comparators.SAMPLERS["SGLD"]})
    nowhere = dataclasses.replace(TINY, torch_python="/nowhere/python")
    table, among = comparators.tables(nowhere)
    assert [row["step"] for row in among.rows] == ["SGLD"]
    assert [row["library"] for row in table.rows] == ["dpmcmc", "none: the two products alone"]
    assert [line.split(":")[0] for line in table.skipped] == ["blackjax", "jax-privacy", "Opacus"]


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.skipif(not HAS_BLACKJAX, reason="blackjax is not installed")
@pytest.mark.parametrize("name", ["SGLD", "SGHMC", comparators.TEN, "SGNHT"])
def test_no_comparator_is_timed_for_work_the_compiler_removed(name):
    """Other records, other positions: blackjax.sghmc of one gradient a step would fail this."""
    data = problem.records(TINY.num_records, TINY.features)
    other = {"x": -data["x"], "y": data["y"]}
    first, second = (
        comparators.blackjax_scan(name, comparators.with_replacement, each, TINY, 2)()[1] for each in (data, other)
    )
    assert not np.allclose(first[-1], second[-1], rtol=1e-3)
    assert np.isfinite(np.asarray(first)).all()


@pytest.mark.slow
def test_the_ladder_of_safeguards_takes_one_gradient_throughout():
    """With a plan of little noise and all records in the batch, every line of the ladder is the clipped gradient."""
    n = TINY.num_records
    plan = problem.make_plan(n, TINY.features, n * 0.999, 1, epsilon=30.0)
    data = problem.records(n, TINY.features)
    theta, key = jnp.ones(TINY.features), jax.random.key(3)
    residual = jax.nn.sigmoid(data["x"] @ theta) - data["y"]
    norm = jnp.abs(residual) * jnp.linalg.norm(data["x"], axis=1)
    wanted = theta / n + (residual / jnp.maximum(norm, 1.0)) @ data["x"] / n
    scale = float(plan.noise_multipliers[0]) / n

    def found(gradient):
        return gradient.answer(theta, safeguards.with_norms(data), gradient.draw(key))

    np.testing.assert_allclose(found(safeguards.exact(plan)), found(safeguards.poisson(plan)), atol=1e-5)
    np.testing.assert_allclose(found(safeguards.poisson(plan)), wanted, atol=6 * scale + 0.01)
    bootstrap = 6 * float(jnp.std(residual)) / n**0.5
    np.testing.assert_allclose(found(safeguards.textbook(plan)), wanted, atol=6 * scale + bootstrap)


def test_the_bare_gather_reads_every_row_of_its_batches():
    x = jnp.ones((50, 4)) * jnp.arange(1.0, 5.0)
    np.testing.assert_allclose(growth._bare_gather(x, 6, 10)()[:4], 60 * jnp.arange(1.0, 5.0))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")  # jax-privacy 2.0 calls it
@pytest.mark.parametrize("section", ["comparators", "steps", "growth", "host", "networks"])
def test_every_section_in_this_process_yields_rows(section):
    size = dataclasses.replace(TINY, num_records=2000)
    for table in importlib.import_module(f"benchmarks.{section}").tables(size):
        assert table.rows
        for row in table.rows:
            assert all(value.median > 0 for value in row.values() if isinstance(value, Ratio))
