"""An executable that does not do what its program says is found before a record is given to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import dpmcmc
from dpmcmc.engine import compilation, self_test
from dpmcmc.engine import steps as engine
from dpmcmc.engine.compilation import Compiled
from dpmcmc.engine.self_test import MiscompiledError
from dpmcmc.storage.compiled_programs import compiled_afresh
from dpmcmc.targets import Custom, LogisticRegression
from tests.planted import faults_state

#: Bits or sensitivities of what users run.
pytestmark = pytest.mark.optimised

RNG = np.random.default_rng(1)
NUM = 60
RECORDS = {"x": RNG.normal(size=(NUM, 3)).astype(np.float32), "y": (np.arange(NUM) % 2).astype(np.float32)}


def make(sampler=None, target=None, **changes):
    privacy = {"epsilon": 2.0, "delta": 1e-4, "accountant": "rdp"} | changes.pop("privacy", {})
    settings = {"sampling": dpmcmc.Poisson(12), "steps": 40, "num_records": NUM} | changes
    sampler = dpmcmc.SGLD(step_size=1.0) if sampler is None else sampler
    target = LogisticRegression(num_features=3) if target is None else target
    return dpmcmc.plan(target, sampler=sampler, privacy=dpmcmc.Privacy(**privacy), **settings)


class Tampered:
    """An executable that has something changed in what it is given, or in what it gives back."""

    def __init__(self, executable, given=lambda *arguments: arguments, back=lambda results: results):
        self.executable, self.given, self.back, self.calls = executable, given, back, 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.back(self.executable(*self.given(*arguments)))


def tampering(monkeypatch, **how):
    """What is executed in place of an executable; in place of the one that may be there already too."""
    real, made = Compiled.compile_chunk, []

    def executable(functions, arguments, options):
        functions.tested = False
        made.append(Tampered(real(functions, arguments, options), **how))
        return made[-1]

    monkeypatch.setattr(Compiled, "compile_chunk", executable)
    return made


@pytest.fixture
def fresh():
    """Forgets what was compiled, before and after."""
    compilation._compile_cached.cache_clear()
    yield
    compilation._compile_cached.cache_clear()


def scaled(factor):
    return lambda states, chains, first, noise, kept, records: (states, chains, first, factor * noise, kept, records)


def other_key(states, chains, first, noise, kept, records):
    moved = chains._replace(chain=np.asarray(chains.chain) + 1)
    return states, moved, first, noise, kept, records


def only_first_draw(results):
    states, (kept, info), *rest = results
    return states, (jax.tree.map(lambda leaf: leaf.at[-1, -1].multiply(1.05), kept), info), *rest


FAULTS = {
    "no noise": {"given": scaled(np.float32(0))},
    "noise a tenth smaller": {"given": scaled(np.float32(0.9))},
    "noise 2 percent larger": {"given": scaled(np.float32(1.02))},
    "noise of another chain": {"given": other_key},
    "a kept draw of one chain": {"back": only_first_draw},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_executable_is_found_before_any_step_on_the_records(fault, monkeypatch):
    made = tampering(monkeypatch, **FAULTS[fault])
    with pytest.raises(MiscompiledError, match="self-test"):
        dpmcmc.sample(make(chains=2), RECORDS)
    assert [one.calls for one in made] == [3]  # of the test alone, one for each key


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_noise_that_was_compiled_otherwise_is_found_wherever_it_is_drawn(monkeypatch):
    faults_state.compiled_with_noise(monkeypatch, 0.9)
    with pytest.raises(MiscompiledError):
        dpmcmc.sample(make(), RECORDS)


@pytest.mark.slow
def test_an_executable_is_tested_once_and_only_for_a_guarantee(monkeypatch):
    tested, real = [], engine.check_steps
    monkeypatch.setattr(engine, "check_steps", lambda *arguments: (tested.append(1), real(*arguments)))
    plan = make(steps=41)
    dpmcmc.sample(plan, RECORDS, key=0)
    assert not tested
    for _ in range(2):
        dpmcmc.sample(plan, RECORDS)
    assert len(tested) == 1


def test_the_test_sees_no_record_and_no_key_of_the_run(monkeypatch):
    made, seen = tampering(monkeypatch), []
    monkeypatch.setattr(Tampered, "__call__", lambda self, *a: seen.append(a) or self.executable(*a))
    monkeypatch.setattr(engine, "check_steps", lambda *a: (self_test.check_steps(*a), seen.append("run")))
    dpmcmc.sample(make(), RECORDS)
    assert len(made) == 1
    at = seen.index("run")
    tests, runs = seen[:at], seen[at + 1 :]
    assert len(tests) == 1
    words = [np.asarray(jax.random.key_data(calls[0][1].streams.noise)) for calls in (tests, runs)]
    assert not np.any(np.all(words[0] == words[1], axis=-1))
    made_up, own = ((records[0] if isinstance(records, tuple) else records)["x"] for *_, records in (tests[0], runs[0]))
    assert not np.allclose(np.asarray(made_up), RECORDS["x"])
    assert np.allclose(np.asarray(own), RECORDS["x"])


def normal_start(key):
    return {"w": jax.random.normal(key, (3,)), "b": jnp.zeros(())}


def log_likelihood(params, record):
    return jax.nn.log_sigmoid((2 * record["y"] - 1) * (record["x"] @ params["w"] + params["b"]))


CUSTOM = Custom(normal_start, lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in p.values()), log_likelihood)

HEALTHY = {
    "poisson": make,
    "full": lambda: make(sampling=dpmcmc.Full(), sampler=dpmcmc.SGHMC(step_size=0.1)),
    "fixed size": lambda: make(sampling=dpmcmc.FixedSize(9), sampler=dpmcmc.SGNHT(step_size=0.02)),
    "second moment": lambda: make(
        dpmcmc.SGFS(step_size=1.0, fisher="query", noise_ratio=1.0, prior_precision=1.0), CUSTOM, chains=2
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_compiled_here_passes_under_the_first_key(name, monkeypatch):
    monkeypatch.setattr(self_test, "_KEYS", 1)
    assert dpmcmc.sample(HEALTHY[name](), RECORDS).guarantee is not None


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_records_on_disk_are_drawn_and_stepped_as_the_program_says(tmp_path, monkeypatch):
    for name, leaf in RECORDS.items():
        np.save(tmp_path / f"{name}.npy", leaf)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in RECORDS}
    monkeypatch.setattr(self_test, "_KEYS", 1)
    assert dpmcmc.sample(make(), mapped).guarantee is not None
    # The randomness of rows from disk is drawn by a program of its own.
    compilation._compile_cached.cache_clear()
    faults_state.compiled_with_noise(monkeypatch, 0.9)
    with pytest.raises(MiscompiledError):
        dpmcmc.sample(make(), mapped)


def test_the_reference_is_compiled_anew_and_kept_nowhere(tmp_path):
    folder = tmp_path / "compiled"
    compiled = []

    def spy(event, _, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    before = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compilation_cache.reset_cache()
    device = jax.local_devices()[0]
    compiled_afresh(lambda: 0, (), device)  # once a process, it is tried which options there are
    count = len(list(folder.glob("*")))
    jax.monitoring.register_event_duration_secs_listener(spy)
    try:
        for _ in range(2):
            call = compiled_afresh(lambda x: jnp.sin(x) + 1, (jax.ShapeDtypeStruct((3,), np.float32),), device)
            np.testing.assert_allclose(call(np.zeros(3, np.float32)), np.ones(3))
        assert len(list(folder.glob("*"))) == count
        jax.jit(lambda x: jnp.cos(x) + 1).lower(np.float32(0)).compile()
        assert len(list(folder.glob("*"))) > count  # a program that may be kept
    finally:
        jax.monitoring.unregister_event_duration_listener(spy)
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])
        compilation_cache.reset_cache()
    assert len(compiled) == 3
