"""Shared by the tests of second moments."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.privacy import Full, Privacy
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query.metric import PublicMatrix
from dpmcmc.privacy.query.query import GradientQuery, StepRandomness
from dpmcmc.privacy.query.second_moment import SecondMoment, asked, multiples
from dpmcmc.privacy.query.selection import selector
from dpmcmc.samplers import SGFS

D = 5
SPLIT = {"b": ((), 1), "w": ((2, 2), 4)}  # the same five parameters as a nested pytree


class Given:
    """−∇ log-likelihood of a record is its g, whatever the parameters; the prior is flat."""

    gradient_bound = None
    zeros_are_absent = True

    def init(self, key):
        return jnp.zeros(D)

    def log_prior(self, params):
        return 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))

    def log_likelihood(self, params, record):
        return -record["g"] @ jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])


def nested_zeros():
    return {"outer": {name: jnp.zeros(shape) for name, (shape, _) in SPLIT.items()}}


def charged(second: SecondMoment, z: float = 1.0) -> list[float]:
    """Noise multiplier of each event of a step whose gradient has z."""
    return [z * multiple / (1 + KAPPA) for multiple in multiples(second)]


#: A step so large that the sampler's own noise never suffices.
LARGE = 1e9


def query_plan(sampling=None, *, steps=40, chains=1, n=400, ratio=3.0, own=False, every=1, sampler=None, **privacy):
    privacy = {"epsilon": 2.0, "delta": 1e-4, "adjacency": "replace_one"} | privacy
    return dpmcmc.plan(
        Given(), num_records=n, sampling=sampling, steps=steps, chains=chains, privacy=Privacy(**privacy),
        sampler=sampler or SGFS(step_size=LARGE, fisher="query", noise_ratio=ratio, own_batch=own, query_every=every),
    )  # fmt: skip


def queries_of(plan) -> list:
    return [e for e in plan.guarantee.events if e.noise_multiplier]


def one_event_per_minibatch(plan) -> None:
    """Assert all that a plan with a second query must satisfy, from first principles."""
    second = asked(plan.sampler.queries)
    z = plan.noise_multipliers
    assert np.all(z == z[0])
    asking = len(range(0, plan.steps, second.every))
    expected = [(multiple, asking) for multiple in charged(second, float(z[0]))]
    if asking < plan.steps:
        expected.append((float(z[0]) / (1 + KAPPA), plan.steps - asking))
    counts = collections.Counter()  # a minibatch of the gradient alone costs the same in a step with another one
    for multiplier, count in expected:
        counts[multiplier] += count * plan.chains
    queries = queries_of(plan)
    assert sorted(e.noise_multiplier for e in queries) == pytest.approx(sorted(counts), rel=1e-12)
    assert [e.count for e in queries] == [counts[m] for m in sorted(counts)]
    assert all(e.rate >= plan.sampling.rate(plan.num_records) for e in queries)


def rotation(seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0]


METRICS = {
    "identity": None,
    "number": PublicMatrix(7.0),
    "diagonal": PublicMatrix(np.array([1.0, 1e-3, 30.0, 0.5, 1e2])),
    "dense": PublicMatrix(np.random.default_rng(1).normal(size=(D, D)) + 2 * np.eye(D)),
    "ill-conditioned": PublicMatrix(rotation(1) @ np.diag([1.0, 1e-1, 1e-2, 1e-4, 2e-5]) @ rotation(2)),
}


def worst_rows() -> dict[str, np.ndarray]:
    """Whitened gradients of the changed record."""
    e, axis = np.ones(D) / math.sqrt(D), np.eye(D)
    across = (axis[0] - axis[1]) / math.sqrt(2)
    bad_nan, bad_inf = e.copy(), e.copy()
    bad_nan[1], bad_inf[2] = np.nan, -np.inf
    return {
        "zero": np.zeros(D),
        "aligned": 3 * e,
        "opposite": -3 * e,
        "orthogonal": 2 * across,
        "axis": 5 * axis[3],
        "at the clip": e,
        "inside": 0.5 * e,
        "huge": 1e17 * e,
        "beyond float32 squares": 1e30 * across,
        "tiny": 1e-30 * e,
        "denormal": 1e-42 * e,
        "mixed": np.array([1e17, -1e-17, 1e9, 1.0, -1e-30]),
        "nan": bad_nan,
        "inf": bad_inf,
    }


def as_raw(white: np.ndarray, metric: PublicMatrix | None) -> np.ndarray:
    f = 1.0 if metric is None else metric.array
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return np.asarray(white @ f.T if np.ndim(f) == 2 else white * f, np.float32)


def background(n, rng) -> np.ndarray:
    return rng.normal(size=(n, D)) * 10.0 ** rng.uniform(-3, 3, size=(n, 1))


class MomentReplay:
    """Exact sums and releases of one query under fixed keys, for every value of one record that takes part."""

    def __init__(self, second, metric=None, sampling=None, nested=False):
        n, z, sampling = 151, 0.25, sampling or Full()
        slots = sampling.capacity(n, 1e-9)[0]
        select = selector(sampling, n, slots)
        self.second, self.n, self.clip = second, n, 0.7
        b = float(n) if select is None else float(sampling.batch_size)
        self.scale = np.float32(n / b)
        self.query = GradientQuery(Given(), n, b, self.clip, select, second=second, metric=metric)
        self.metric = metric
        self.params = nested_zeros() if nested else jnp.zeros(D)
        self.std = jnp.float32(z * self.clip * self.scale)
        self.batch_key, self.noise_key = jax.random.key(5), jax.random.key(6)
        self.at, self.left_out = self._positions(select)
        self.rows = as_raw(background(n, np.random.default_rng(n)) * self.clip, metric)
        self._sums = jax.jit(self._exact)
        self._release = jax.jit(lambda r: self.query(self.params, r, self.batch_key, self.noise_key, self.std))

    def _keys(self):
        if self.second.own_batch:
            return tuple(jax.random.split(self.batch_key))
        return self.batch_key, None

    def _positions(self, select):
        """(the last record that takes part, which padding would repeat; one that does not, or None)."""
        if select is None:
            return self.n - 1, None
        batches = []
        for key in self._keys():
            if key is not None:
                indices, mask = (np.asarray(v) for v in jax.jit(select)(key))
                batches.append(indices[mask].tolist())
        at = [i for i in batches[0] if all(i in batch for batch in batches)][-1]
        return at, min(set(range(self.n)).difference(*batches))

    def _exact(self, records):
        batch, second = (None if key is None else self.query._batch(key) for key in self._keys())
        return self.query.sums(self.params, records, StepRandomness(batch, second, None, None))

    def records(self, white, at):
        rows = self.rows.copy()
        rows[at] = as_raw(white * self.clip, self.metric)
        return {"g": jnp.asarray(rows)}

    def sums(self, white, at=None) -> tuple[np.ndarray, np.ndarray]:
        """(gradient sum / C, second-moment sum / C² in coordinates of unit Frobenius norm), float64, exact."""
        gradient, moment = self._sums(self.records(white, self.at if at is None else at))
        flat = np.concatenate([np.ravel(v) for v in jax.tree.leaves(gradient.to_float64(1.0, self.query.bits))])
        entries = moment.to_float64(1.0, self.query.second_bits)
        if len(entries) > D:
            row, column = np.triu_indices(D)
            entries = entries * np.where(row == column, 1.0, math.sqrt(2))
        return flat, entries

    def release(self, white, at=None) -> np.ndarray:
        """Everything that is released, raveled."""
        out = self._release(self.records(white, self.at if at is None else at))
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((out.value, out.releases, out.noise_std))])

    def excess(self) -> dict[str, float]:
        """Largest whitened distance over what each event allows, of a record zeroed and of one replaced."""
        ratio = self.second.ratio
        sums = {name: self.sums(white) for name, white in worst_rows().items()}
        out = {"zeroed": 0.0, "replaced": 0.0}
        for i, (name, (g, v)) in enumerate(sums.items()):
            for other, (h, w) in list(sums.items())[:i]:
                distances = [np.linalg.norm(g - h), np.linalg.norm(v - w) / ratio]
                if not self.second.own_batch:
                    distances = [math.hypot(*distances)]
                # Event z says: the sum moves by 1/z noise stds where a record goes, by 2/z where one is replaced.
                share = max(d * z for d, z in zip(distances, charged(self.second), strict=True))
                kind = "zeroed" if "zero" in (name, other) else "replaced"
                out[kind] = max(out[kind], share if kind == "zeroed" else share / 2)
        return out
