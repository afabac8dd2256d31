"""dpmcmc's private step against what users would otherwise run, on one model, with one batch size, drawn in the loop.

blackjax is not private. It comes with no batches, so these draw theirs within the scan: by ``jax.random.choice``
without replacement, as its documentation does, and by ``jax.random.randint`` with replacement, the cheapest there is.
``blackjax.sghmc`` takes ten gradients on one batch and forgets its momentum after them, so it is timed per gradient;
beside it stands its integrator alone, one gradient a batch, as our SGHMC. (With one gradient a step blackjax.sghmc
throws the gradient away with the momentum, and the compiler with it.) jax-privacy and Opacus are private training, not
sampling: a clipped gradient, a Gaussian, a descent step, with float32 sums and float32 noise. jax-privacy's batches are
drawn with replacement as well; Opacus has its own Poisson loader, or the rows of a random index.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpmcmc
from benchmarks.opacus_worker import Worker, WorkerError
from benchmarks.problem import CLIP, STEP_SIZE, Size, make_plan, records, sampled
from benchmarks.report import Table
from benchmarks.timing import Clock, in_turn, ratio, scanned
from dpmcmc.engine.sizes import ONE_THREAD

#: Calls of these programs take a fraction of the steps: choice permutes all N records at every step.
_SLOW = 60

DrawBatch = Callable[[jax.Array, int, int], jax.Array]


def without_replacement(key: jax.Array, num_records: int, batch: int) -> jax.Array:
    """(batch,) distinct indices, as blackjax's documentation draws them."""
    return jax.random.choice(key, num_records, (batch,), replace=False)


def with_replacement(key: jax.Array, num_records: int, batch: int) -> jax.Array:
    """(batch,) independent indices."""
    return jax.random.randint(key, (batch,), 0, num_records)


DRAWS: dict[str, DrawBatch] = {"choice, no replacement": without_replacement, "randint": with_replacement}
TEN = "SGHMC, ten gradients a batch, per gradient"
SAMPLERS = {
    "SGLD": dpmcmc.SGLD(step_size=STEP_SIZE),
    "SGHMC": dpmcmc.SGHMC(step_size=4.0, friction=0.2),
    "SGNHT": dpmcmc.SGNHT(step_size="auto", friction=0.1),
    "SGFS, Fisher from gradients": dpmcmc.SGFS(step_size=STEP_SIZE, prior_precision=1.0),
    "SGFS, Fisher queried": dpmcmc.SGFS(step_size=STEP_SIZE, prior_precision=1.0, fisher="query"),
}


def tables(size: Size) -> list[Table]:
    """Two tables: every program's time over dpmcmc's step of the same sampler, and each sampler's over SGLD's."""
    data = records(size.num_records, size.features)
    about = f"N {size.num_records:,}, d {size.features}, batch {size.batch}"
    table = Table(
        f"A private step against others ({about})",
        "Logistic regression. The last column is the time of the row over that of dpmcmc's private step of the same "
        "sampler (of SGLD, for those that have none), median and quartiles of paired repeats: above 1, dpmcmc is "
        "faster. Steps of dpmcmc are those of `dpmcmc.sample`, which keeps every position on the host; blackjax keeps "
        "them on the device. On a CPU dpmcmc's small steps stay on one thread; the effect of that compiler option on "
        "the others is shown too. SGFS has no counterpart there.",
    )
    clocks: dict[tuple[str, str, str, str], Clock] = {}
    on_cpu = jax.default_backend() == "cpu"
    for name, sampler in SAMPLERS.items():
        plan = make_plan(size.num_records, size.features, size.batch, size.steps, sampler=sampler)
        clocks["dpmcmc", name, "yes", "Poisson"] = sampled(plan, data)
    clocks["none: the two products alone", "x·θ, r·x", "no", "given"] = scanned(bare_products(data, size), size.steps)
    if find_spec("blackjax"):
        for name in ("SGLD", "SGHMC", TEN, "SGNHT"):
            for draw in DRAWS:
                steps = size.steps if draw == "randint" else max(size.steps // _SLOW, 10)
                program = blackjax_scan(name, DRAWS[draw], data, size, steps // 10 if name == TEN else steps)
                clocks["blackjax", name, "no", draw] = scanned(program, steps)
        if on_cpu:
            program = blackjax_scan("SGLD", with_replacement, data, size, size.steps, ONE_THREAD)
            clocks["blackjax, one thread", "SGLD", "no", "randint"] = scanned(program, size.steps)
    else:
        table.skipped.append("blackjax: not installed.")
    if find_spec("jax_privacy"):
        program = jax_privacy_scan(data, size)
        clocks["jax-privacy", "DP-SGD", "yes", "randint"] = scanned(program, size.steps)
        if on_cpu:
            program = jax_privacy_scan(data, size, ONE_THREAD)
            clocks["jax-privacy, one thread", "DP-SGD", "yes", "randint"] = scanned(program, size.steps)
    else:
        table.skipped.append("jax-privacy: not installed.")
    with Worker(size) as worker:
        try:
            steps = max(size.steps // 10, 20)
            for draw in worker.variants():
                clocks["Opacus", "DP-SGD", "yes", draw] = functools.partial(worker.time, draw, steps)
        except WorkerError as error:
            table.skipped.append(f"Opacus: {error}.")
        times = in_turn(clocks, size.repeats)
    for at in clocks:
        library, sampler_name, private, batches = at
        base = ("dpmcmc", "SGHMC" if sampler_name == TEN else sampler_name, "yes", "Poisson")
        base = base if base in times else ("dpmcmc", "SGLD", "yes", "Poisson")
        table.rows.append(
            {
                "library": library,
                "step": sampler_name,
                "private": private,
                "batch by": batches,
                "µs a step": float(np.median(times[at])),
                "÷ dpmcmc": ratio(times[at], times[base]),
            }
        )
    return [table, among(times, size)]


def among(times: dict[tuple[str, str, str, str], np.ndarray], size: Size) -> Table:
    """dpmcmc's samplers against its SGLD, from the times of one run."""
    table = Table(
        "Samplers against SGLD",
        f"Private steps of dpmcmc, from the runs above: {size.steps:,} steps a run. SGFS divides by a "
        f"{size.features} × {size.features} matrix. It factorises it after 1, 2, …, 8, 10, 12, … estimates of the "
        "Fisher information, at most 128 apart, and asks for a second moment in one step of ten where that is queried.",
    )
    for name in SAMPLERS:
        here, base = (times["dpmcmc", each, "yes", "Poisson"] for each in (name, "SGLD"))
        table.rows.append({"step": name, "µs a step": float(np.median(here)), "÷ SGLD": ratio(here, base)})
    return table


def bare_products(data: Any, size: Size) -> Callable[[], Any]:
    """The least that a step does: gather the rows of a given batch, and multiply by them twice; on one thread."""

    def step(theta: jax.Array, rows: jax.Array) -> jax.Array:
        return theta - 1e-3 * ((rows @ theta) @ rows)

    return over_given_batches(data["x"], size.batch, size.steps, 1.0, step)


def over_given_batches(
    x: jax.Array, batch: int, steps: int, start: float, step: Callable[[jax.Array, jax.Array], jax.Array]
) -> Callable[[], Any]:
    """Steps (vector, rows of a batch) -> vector in one compiled scan, from a constant one; batches are drawn before.

    The rows are as long as dpmcmc's own, a multiple of eight numbers.
    """
    num_records, features = x.shape
    x = jnp.pad(x, ((0, 0), (0, -features % 8)))
    batches = jax.random.randint(jax.random.key(0), (steps, batch), 0, num_records)

    @functools.partial(jax.jit, compiler_options=ONE_THREAD if jax.default_backend() == "cpu" else None)
    def run(vector: jax.Array, x: jax.Array, batches: jax.Array) -> Any:
        def body(vector: jax.Array, batch: jax.Array) -> tuple[jax.Array, None]:
            return step(vector, x.at[batch].get(mode="clip")), None

        return jax.lax.scan(body, vector, batches)[0]

    return functools.partial(run, jnp.full(x.shape[1], start), x, batches)


def log_prior(theta: jax.Array) -> jax.Array:
    """θ ~ N(0, I)."""
    return -0.5 * jnp.sum(jnp.square(theta))


def log_likelihood(theta: jax.Array, record: dict[str, jax.Array]) -> jax.Array:
    """Log-likelihood of one record, as dpmcmc's LogisticRegression has it."""
    margin = record["x"] @ theta
    return record["y"] * margin - jax.nn.softplus(margin)


def blackjax_scan(
    name: str, draw: DrawBatch, data: Any, size: Size, steps: int, options: dict[str, Any] | None = None
) -> Callable[[], Any]:
    """``steps`` steps of a blackjax sampler in one compiled scan, with these compiler options."""
    import blackjax
    from blackjax.base import SamplingAlgorithm
    from blackjax.sgmcmc.diffusions import sghmc
    from blackjax.sgmcmc.gradients import grad_estimator

    gradient = grad_estimator(log_prior, log_likelihood, size.num_records)
    step_size = STEP_SIZE / size.num_records
    theta = jnp.zeros(size.features)
    if name == "SGLD":
        algorithm, state = blackjax.sgld(gradient), theta
    elif name == TEN:
        algorithm, state = blackjax.sghmc(gradient, num_integration_steps=10), theta
    elif name == "SGHMC":
        integrator = sghmc(alpha=0.01)

        def step(key: jax.Array, state: Any, minibatch: Any, step_size: float) -> Any:
            return integrator(key, *state, gradient(state[0], minibatch), step_size)

        algorithm, state = SamplingAlgorithm(lambda position: position, step), (theta, theta)
    else:
        algorithm = blackjax.sgnht(gradient)
        state = algorithm.init(theta, jax.random.key(1))
        # Its first thermostat is a Python float, which a scan's carry cannot be.
        state = jax.tree.map(jnp.float32, state)

    @functools.partial(jax.jit, compiler_options=options)
    def run(state: Any, key: jax.Array, data: Any) -> Any:
        def body(state: Any, key: jax.Array) -> tuple[Any, Any]:
            batch_key, step_key = jax.random.split(key)
            indices = draw(batch_key, size.num_records, size.batch)
            minibatch = jax.tree.map(lambda leaf: leaf[indices], data)
            state = algorithm.step(step_key, state, minibatch, step_size)
            return state, state[0] if name in ("SGHMC", "SGNHT") else state

        return jax.lax.scan(body, state, jax.random.split(key, steps))

    return functools.partial(run, state, jax.random.key(0), data)


def jax_privacy_scan(data: Any, size: Size, options: dict[str, Any] | None = None) -> Callable[[], Any]:
    """DP-SGD from jax-privacy's clipped gradient and ``jax.random.normal``, in one compiled scan, likewise."""
    from jax_privacy.clipping import clipped_grad

    clipped = clipped_grad(
        lambda theta, record: -log_likelihood(theta, record),
        l2_clip_norm=CLIP,
        batch_argnums=1,
        keep_batch_dim=False,
    )
    plan = make_plan(size.num_records, size.features, size.batch, size.steps)
    assert plan.noise_multipliers is not None
    noise, scale, learning_rate = float(plan.noise_multipliers[0]) * CLIP, 1 / size.batch, STEP_SIZE

    @functools.partial(jax.jit, compiler_options=options)
    def run(theta: jax.Array, key: jax.Array, data: Any) -> Any:
        def body(theta: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            batch_key, noise_key = jax.random.split(key)
            indices = with_replacement(batch_key, size.num_records, size.batch)
            minibatch = jax.tree.map(lambda leaf: leaf[indices], data)
            total = clipped(theta, minibatch) + noise * jax.random.normal(noise_key, theta.shape)
            theta = theta - learning_rate * (scale * total + theta / size.num_records)
            return theta, theta

        return jax.lax.scan(body, theta, jax.random.split(key, size.steps))

    return functools.partial(run, jnp.zeros(size.features), jax.random.key(0), data)
