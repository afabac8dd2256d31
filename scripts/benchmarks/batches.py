"""An exact clipped sum against the two products that it stands for, over sizes of batches; shipped shapes first.

The sum is the query's own, of a batch that is given: margins, residuals, norms, clipping, and the sum in integers.
Beside it stands what a step without privacy computes of the same rows: their gather, and the two products with them,
as blackjax has them. Selection and noise are in neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problem import CLIP, Size
from benchmarks.report import Table
from benchmarks.timing import in_turn, ratio, scanned
from dpmcmc.engine.sizes import compiler_options
from dpmcmc.privacy.query.exact_sums import fraction_bits
from dpmcmc.privacy.query.platforms import traced_for
from dpmcmc.privacy.query.query import GradientQuery, StepRandomness
from dpmcmc.targets import LogisticRegression, PoissonRegression, SoftmaxRegression

#: Numbers that a timed call reads, about, and its fewest and most steps.
_READ, _FEWEST, _MOST = 1 << 27, 4, 600
_CLASSES = 10


class Shape(NamedTuple):
    """One row of a table; ``batch`` equal to ``num_records`` is the whole table in every step."""

    model: str
    num_records: int
    features: int
    batch: int
    chains: int = 1
    label_blind: bool = False


#: Linear models of the shipped configurations, by their names.
SHIPPED = {
    "adult (512)": Shape("logistic", 32_561, 109, 512),
    "adult, 640 slots": Shape("logistic", 32_561, 109, 640),
    "adult_prediction_sgnht, adult_hybrid (all records)": Shape("logistic", 32_561, 109, 32_561),
    "adult (all records, label-blind)": Shape("logistic", 32_561, 109, 32_561, label_blind=True),
    "abalone (all records)": Shape("logistic", 3_133, 10, 3_133),
    "breast_cancer (all records)": Shape("logistic", 426, 30, 426),
}
BATCHES = (64, 180, 512, 1_024, 2_048, 4_096)


def tables(size: Size) -> list[Table]:
    """Shipped shapes; batch sizes by features, for one chain and 16; other families."""
    n = size.num_records
    batches = (64, 600) if size.quick else BATCHES
    widths = (8, size.features) if size.quick else (8, 20, 50, size.features, 250, 500, 1_000)
    shipped = {"quick": Shape("logistic", n, size.features, 600)} if size.quick else SHIPPED
    grid = [Shape("logistic", n, d, batch) for d in widths for batch in batches]
    several = [Shape("logistic", n, d, batch, 16) for d in widths[::2] for batch in batches[:-1]]
    others = [Shape(model, n, d, batch) for model in ("poisson", "softmax") for d in (20, 109) for batch in batches]
    blind = [Shape("logistic", n, size.features, batch, label_blind=True) for batch in batches]
    note = (
        "Time of the exact clipped sum over that of the gather and the two products, median and quartiles of paired "
        "repeats: 1 is a sum that costs nothing beside them. Both are compiled for as many threads as the engine "
        f"would take. Softmax has {_CLASSES} classes."
    )
    return [
        _table("Shapes of shipped configurations", note, shipped, size.repeats),
        _table("One chain, logistic regression", note, dict(enumerate(grid)), size.repeats),
        _table("16 chains, logistic regression", note, dict(enumerate(several)), size.repeats),
        _table("Other sums", note, dict(enumerate([*others, *blind])), size.repeats),
    ]


def _table(title: str, note: str, shapes: dict[Any, Shape], repeats: int) -> Table:
    table = Table(title, note)
    for name, shape in shapes.items():
        reads = shape.chains * shape.batch * shape.features * (_CLASSES if shape.model == "softmax" else 1)
        steps = max(_FEWEST, min(_MOST, _READ // reads))
        clocks = {which: scanned(make(shape, steps), steps) for which, make in (("sum", exact_sum), ("bare", products))}
        times = in_turn(clocks, repeats)
        row = {"configuration": name} if isinstance(name, str) else {}
        table.rows.append(
            row
            | {"model": shape.model + ", label-blind" * shape.label_blind, "d": shape.features, "batch": shape.batch}
            | {"µs": float(np.median(times["sum"])), "÷ products": ratio(times["sum"], times["bare"])}
        )
    return table


@functools.lru_cache(maxsize=1)
def _records(shape: Shape) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((shape.num_records, shape.features), dtype=np.float32) * np.float32(shape.features**-0.5)
    classes = _CLASSES if shape.model == "softmax" else 2
    return {"x": jnp.asarray(x), "y": jnp.asarray(rng.integers(0, classes, shape.num_records, dtype=np.int32))}


def _batches(shape: Shape, steps: int) -> jax.Array | None:
    """Places of the rows of every step and chain in order, as a Poisson batch has them; None for all records."""
    if shape.batch == shape.num_records:
        return None
    drawn = np.random.default_rng(1).integers(0, shape.num_records, (steps, shape.chains, shape.batch), dtype=np.int32)
    return jnp.asarray(np.sort(drawn))


def exact_sum(shape: Shape, steps: int) -> Callable[[], Any]:
    """So many steps along the query's exact sums."""
    kinds: dict[str, Any] = {"logistic": LogisticRegression, "poisson": PoissonRegression, "softmax": SoftmaxRegression}
    target = kinds[shape.model](num_features=shape.features)
    if shape.model == "softmax":
        target = SoftmaxRegression(num_features=shape.features, num_classes=_CLASSES)
    bits = fraction_bits(1.0)
    how = (shape.num_records, float(shape.batch), CLIP, None, bits)
    query = GradientQuery(target, *how, label_blind=shape.label_blind)
    every = jnp.ones(shape.batch, bool)

    def move(theta: jax.Array, records: Any, batch: jax.Array | None) -> jax.Array:
        chosen = (None, None) if batch is None else (batch, every)
        total = query.gradient_sum(theta, records, StepRandomness(chosen, None, None, None))
        return theta - 1e-6 * total.to_float(CLIP, bits)

    records = jax.jit(target.prepared)(_records(shape))
    start = jnp.zeros((shape.chains, *jax.eval_shape(target.init, jax.random.key(0)).shape))
    with traced_for(jax.default_backend()):
        return _compiled(move, shape, steps, start, records)


def products(shape: Shape, steps: int) -> Callable[[], Any]:
    """So many steps along the gather of the rows and the two products."""

    def move(theta: jax.Array, x: jax.Array, batch: jax.Array | None) -> jax.Array:
        rows = x if batch is None else x[batch]
        return theta - 1e-6 * (rows.T @ (rows @ theta))

    columns = (_CLASSES,) if shape.model == "softmax" else ()
    start = jnp.zeros((shape.chains, shape.features, *columns))
    return _compiled(move, shape, steps, start, _records(shape)["x"])


def _compiled(
    move: Callable[..., jax.Array], shape: Shape, steps: int, start: jax.Array, data: Any
) -> Callable[[], Any]:
    """A scan of moves, compiled as the engine compiles so much work on one lane."""
    batches = _batches(shape, steps)
    along = jax.vmap(move, in_axes=(0, None, None if batches is None else 0))

    def run(thetas: jax.Array, data: Any, batches: jax.Array | None) -> jax.Array:
        return jax.lax.scan(lambda at, batch: (along(at, data, batch), None), thetas, batches, length=steps)[0]

    work = shape.chains * shape.batch * shape.features * 4
    options = compiler_options(work, 1, jax.default_backend())
    compiled = jax.jit(run).lower(start, data, batches).compile(options)
    return functools.partial(compiled, start, data, batches)
