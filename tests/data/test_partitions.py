"""Tables in partitions: the bits of the whole table on every engine, refusals before anything is spent, and losses."""

import contextlib
import itertools
import os
import signal
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.data import DataError, Levels, Range, Schema, partitions
from dpmcmc.data.partitions import find_partitions
from dpmcmc.engine import kept_partitions, processes
from dpmcmc.engine import partitions as engine_partitions
from dpmcmc.engine.partitions import PartitionedRecords
from dpmcmc.engine.workers import Cluster, Here, LostPartition, check_engine, is_safe, workers
from dpmcmc.errors import InputError
from dpmcmc.estimators import fitting
from dpmcmc.privacy.ledger import Ledger, LedgerError
from dpmcmc.privacy.query.record_sums import summed
from dpmcmc.storage.checkpoint import CheckpointError

#: Dask's own reader calls pandas in a way that it will lose.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
N = 300
SCHEMA = Schema(
    {"age": Range(17, 90), "job": Levels(["office", "field"]), "late": Levels(["no", "yes"])},
    label="late",
)
#: Where tables are cut: into 1, 3 and 7 partitions of uneven sizes, one of them empty.
CUTS = {1: [], 3: [7, 200], 7: [1, 40, 40, 41, 150, 299]}
PROMISE = {"epsilon": 1.0, "delta": 1e-4}


def people(seed=0):
    rng = np.random.default_rng(seed)
    age = rng.uniform(10, 95, N)  # some beyond the range
    job = rng.choice(["office", "field"], N)
    return pa.table({"age": age, "job": job, "late": np.where(rng.uniform(size=N) < age / 120, "yes", "no")})


TABLE = people()


def cut(folder, table, at, **options):
    """Write a table as one Parquet file for each part."""
    folder.mkdir()
    for number, (start, end) in enumerate(zip([0, *at], [*at, N], strict=True)):
        pq.write_table(table.slice(start, end - start), folder / f"{number}.parquet", **options)
    return folder


@pytest.fixture
def folder(tmp_path):
    return cut(tmp_path / "people", TABLE, CUTS[7])


def plan_of(mechanism=None, schema=SCHEMA, num_records=N):
    mechanism = dpmcmc.mechanisms.NoiseAware(draws=100, steps=4) if mechanism is None else mechanism
    return mechanism.plan(dpmcmc.targets.LogisticRegression(), num_records=num_records, schema=schema, **PROMISE)


@dataclass(frozen=True)
class Squares:
    """Records' squares, in whole numbers."""

    def __call__(self, records):
        x = np.rint(records["x"].astype(np.float64) * 2**20).astype(np.int64)
        return x.T @ x, np.array(records["y"].sum(), np.int64)


def fine(records):
    """Refuse no record."""


def total_of(data, engine=None, of=None):
    with workers(engine) as crew:
        records = PartitionedRecords(find_partitions(data, SCHEMA), crew).checked(fine, N)
        found = records.total(Squares() if of is None else of)
        records.forget()
    return found


def same(found, want):
    return all(np.array_equal(a, b) for a, b in zip(found, want, strict=True))


WHOLE = summed(Squares(), SCHEMA.encode(TABLE))


def test_totals_are_those_of_the_whole_table_however_it_is_cut(tmp_path, monkeypatch):
    dask = pytest.importorskip("dask.dataframe")
    monkeypatch.setattr(partitions, "LARGE", 1, raising=False)
    for count, at in CUTS.items():
        made = cut(tmp_path / str(count), TABLE, at)
        given = [made, f"{made}/*.parquet", pyarrow.dataset.dataset(made), dask.read_parquet(made)]
        for data in given:
            assert len(find_partitions(data, SCHEMA).parts) == count
            assert same(total_of(data), WHOLE)
    frame = dask.from_pandas(TABLE.to_pandas(), npartitions=4)
    assert same(total_of(frame), WHOLE)
    assert same(total_of(pyarrow.dataset.dataset(TABLE)), WHOLE)


def test_row_groups_of_a_large_file_are_partitions(tmp_path, monkeypatch):
    monkeypatch.setattr("dpmcmc.data.partitions.LARGE", 100)
    monkeypatch.setattr("dpmcmc.data.one_partition.ROWS", 7)
    path = tmp_path / "people.parquet"
    pq.write_table(TABLE, path, row_group_size=60)
    assert [part.name for part in find_partitions(path, SCHEMA).parts] == [
        "people.parquet from row group 0",
        "people.parquet from row group 2",
        "people.parquet from row group 4",
    ]
    assert same(total_of(path), WHOLE)
    monkeypatch.setattr("dpmcmc.data.partitions.LARGE", N)
    assert find_partitions(path, SCHEMA) is None  # one part, read as before


@pytest.mark.parametrize("numbers", [[0.0, -0.0], [0, 0], [-0.0, -0.0], [1.5, 1.5], [0.1, 0.2], [np.nan, np.nan]])
def test_what_is_kept_is_the_same_to_the_sign_of_a_zero(numbers):
    array = np.array(numbers)
    found = kept_partitions.Packed.of(array).array
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


def test_draws_are_those_of_the_whole_table(folder):
    plan = plan_of()
    want = dpmcmc.sample(plan, TABLE, key=3).draws
    np.testing.assert_array_equal(dpmcmc.sample(plan, folder, key=3).draws, want)
    data = pyarrow.dataset.dataset(folder)
    np.testing.assert_array_equal(dpmcmc.sample(plan, data, key=3).draws, want)


def refused(data, plan=None, **options):
    with pytest.raises(InputError) as caught:
        dpmcmc.sample(plan_of() if plan is None else plan, data, **options)
    return caught.value


def test_errors_name_the_partition_and_no_value(folder, tmp_path):
    bad = TABLE.slice(41, 109).to_pandas()
    bad.loc[5, "job"] = "secret"
    pq.write_table(pa.Table.from_pandas(bad), folder / "4.parquet")
    said = refused(folder)
    assert isinstance(said, DataError)
    assert said.rows == (5,)
    assert "4.parquet: column 'job'" in str(said)
    assert "secret" not in str(said)
    pq.write_table(TABLE.slice(41, 109).drop_columns("age"), folder / "4.parquet")
    assert "4.parquet: the table has 0 columns 'age'" in str(refused(folder))
    (folder / "4.parquet").write_bytes(b"PAR1 secret")
    assert "4.parquet is damaged" in str(refused(folder))
    (folder / "4.parquet").unlink()
    assert "another number of rows than the plan's num_records 300" in str(refused(folder))
    assert "no such file" in str(refused(tmp_path / "none" / "*.parquet"))
    data = pyarrow.dataset.dataset(folder).filter(pyarrow.compute.field("age") > 20)
    assert "filtered" in str(refused(data))


def test_rows_beyond_a_public_bound_are_refused_by_the_name_of_their_partition(folder):
    plan = plan_of()
    plan = replace(plan, target=replace(plan.target, row_bound=0.9))
    assert "1.parquet: data['x']: some rows have a norm beyond the public row_bound 0.9" in str(refused(folder, plan))


def test_who_needs_rows_reads_a_folder_whole_and_says_so_of_an_engine(folder):
    chain = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(),
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=0.1),
        steps=4,
        schema=SCHEMA,
        privacy=None,
    )
    want = dpmcmc.sample(chain, TABLE, key=0).draws
    np.testing.assert_array_equal(dpmcmc.sample(chain, folder, key=0).draws, want)
    np.testing.assert_array_equal(dpmcmc.sample(chain, pyarrow.dataset.dataset(folder), key=0).draws, want)
    assert "leave it out" in str(refused(folder, chain, engine="dask://127.0.0.1:1"))
    assert "leave it out" in str(refused(TABLE, engine="dask://127.0.0.1:1"))
    dask = pytest.importorskip("dask.dataframe")
    assert "compute() returns" in str(refused(dask.read_parquet(folder), chain))


def test_workers_that_round_differently_are_refused(folder, monkeypatch):
    kinds = iter(range(100))
    monkeypatch.setattr(engine_partitions, "rounding_facts", lambda: str(next(kinds)))
    assert "differ in their processors" in str(refused(folder))


@contextlib.contextmanager
def breaking(call):
    """Lose the worker of a call."""
    count, results = itertools.count(1), Here.results

    def lost(self, function, items, names):
        for name in names:
            if next(count) == call:
                raise LostPartition(f"engine: a worker was lost with {name}")
        return results(self, function, items, names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Here, "results", lost)
        yield


def test_links_that_are_neither_local_nor_encrypted_are_refused():
    safe = ["inproc://1", "tcp://127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:1", "tls://10.0.0.2:8786"]
    bare = ["tcp://10.0.0.2:8786", "tcp://host:8786", "ucx://127.0.0.1:1", "tcp://0.0.0.0:1", "tcp://127.e.org:1", ""]
    assert all(map(is_safe, safe))
    assert not any(map(is_safe, bare))
    for scheduler, worker in [(safe[1], bare[0]), (bare[0], safe[1]), (safe[4], bare[0])]:
        client = SimpleNamespace(
            scheduler=SimpleNamespace(address=scheduler),
            scheduler_info=lambda n_workers, s=scheduler, w=worker: {"address": s, "workers": {w: {}}},
        )
        with pytest.raises(InputError, match=r"neither on this machine's loopback nor encrypted.*trusted_network"):
            Cluster(client, False)
        Cluster(client, True)
    for url in ("dask://host", "http://host:1", "dask://:8786", "dask://host:x", "cluster", "processes:0"):
        with pytest.raises(InputError, match="Dask scheduler"):
            check_engine(url)
    with pytest.raises(InputError, match="a int is none"):
        workers(3)


def test_processes_that_may_meet_over_a_network_need_a_word(monkeypatch):
    for name in (processes.COORDINATOR, processes.PROCESSES, processes.PROCESS):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"SLURM or Open MPI.*trusted_network"):
        processes.connect()
    monkeypatch.setenv(processes.COORDINATOR, "node7:1234")
    monkeypatch.setenv(processes.PROCESSES, "2")
    monkeypatch.setenv(processes.PROCESS, "0")
    with pytest.raises(InputError, match=r"is node7.*trusted_network"):
        processes.connect()


def test_processes_that_meet_on_loopback_listen_there_alone(monkeypatch):
    given = []

    def initialize(**who):
        given.append(who.get("coordinator_bind_address"))
        raise ValueError

    monkeypatch.setattr(processes.jax.distributed, "initialize", initialize)
    monkeypatch.setattr(processes.jax.config, "update", lambda *_: None)
    monkeypatch.setenv(processes.PROCESSES, "2")
    monkeypatch.setenv(processes.PROCESS, "0")
    for address in ("127.0.0.1:1234", "node7:1234"):
        monkeypatch.setenv(processes.COORDINATOR, address)
        with pytest.raises(InputError, match="no saying which processes"):
            processes.connect(trusted_network=True)
    assert given == ["127.0.0.1:1234", None]


def ledger_at(path):
    terms = {"name": "people", "num_records": N, "adjacency": "replace_one", "epsilon": 1.2, "delta": 1e-3}
    return Ledger.init(path, **terms)


def test_a_loss_before_the_run_begins_costs_nothing_and_one_after_costs_it(folder, tmp_path):
    ledger = ledger_at(tmp_path / "ledger")
    plan = plan_of()
    with breaking(3), pytest.raises(LostPartition, match=r"lost with 2.parquet; .*nothing is spent"):
        dpmcmc.sample(plan, folder, ledger=ledger)
    assert ledger.state().spent == 0
    checkpoint = tmp_path / "checkpoint"
    options = {"key": 3}
    with breaking(30), pytest.raises(LostPartition, match=r"its budget is spent.*goes on from its checkpoint"):
        dpmcmc.sample(plan, folder, checkpoint=checkpoint, **options)
    again = dpmcmc.sample(plan, folder, checkpoint=checkpoint, **options)
    np.testing.assert_array_equal(again.draws, dpmcmc.sample(plan, TABLE, key=3).draws)
    with breaking(50), pytest.raises(LostPartition, match="without a checkpoint another run costs it again"):
        dpmcmc.sample(plan, folder, ledger=ledger)
    assert ledger.state().spent > 0
    with pytest.raises(LedgerError, match="is refused"):
        dpmcmc.sample(plan, folder, ledger=ledger)


def test_workers_that_round_differently_are_another_platform_for_a_run_that_goes_on(folder, tmp_path, monkeypatch):
    """Or a copy of its checkpoint would add the same noise to other integers."""
    plan = plan_of()
    options = {"checkpoint": tmp_path / "checkpoint"}
    with breaking(30), pytest.raises(LostPartition, match="goes on from its checkpoint"):
        dpmcmc.sample(plan, folder, **options)
    monkeypatch.setattr(engine_partitions, "rounding_facts", lambda: "another kind")
    with pytest.raises(CheckpointError, match="another platform"):
        dpmcmc.sample(plan, folder, **options)


@dataclass(frozen=True)
class Dies:
    """Work of a worker that is killed."""

    def __call__(self, item):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_cluster_has_the_draws_of_the_whole_table_and_a_killed_worker_costs_a_run_once(folder, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    frame = pytest.importorskip("dask.dataframe").read_parquet(folder)
    plan = plan_of()
    want = dpmcmc.sample(plan, TABLE, key=3).draws
    ledger = ledger_at(tmp_path / "ledger")
    options = {"ledger": ledger, "checkpoint": tmp_path / "checkpoint"}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        url = cluster.scheduler_address.replace("tcp", "dask")
        for data, engine in ((folder, url), (frame, client)):
            np.testing.assert_array_equal(dpmcmc.sample(plan, data, key=3, engine=engine).draws, want)
        with pytest.raises(DataError, match="is persisted"):
            find_partitions(frame.persist(), SCHEMA)
        results = Cluster.results

        def killed(self, function, items, names):
            # The pass after the check, and that of the fingerprint.
            kills = isinstance(function.do, engine_partitions._Summed) and self._passes == 3
            return results(self, Dies() if kills else function, items, names)

        monkeypatch.setattr(Cluster, "results", killed)
        with pytest.raises(LostPartition, match=r"lost with .*\(KilledWorker\).*its budget is spent.*its checkpoint"):
            dpmcmc.sample(plan, folder, engine=client, **options)
        spent = ledger.state().spent
        assert spent > 0
    assert dpmcmc.sample(plan, folder, **options).draws.shape == want.shape
    assert ledger.state().spent == spent


def test_a_ledger_knows_a_table_however_it_is_cut(tmp_path):
    ledger = ledger_at(tmp_path / "ledger")
    small = dpmcmc.mechanisms.NoiseAware(draws=100, steps=4).plan(
        dpmcmc.targets.LogisticRegression(), num_records=N, schema=SCHEMA, epsilon=0.2, delta=1e-4
    )
    folder = cut(tmp_path / "three", TABLE, CUTS[3])
    dpmcmc.sample(small, TABLE, ledger=ledger)
    dpmcmc.sample(small, folder, ledger=ledger)
    order = np.random.default_rng(1).permutation(N)
    dpmcmc.sample(small, cut(tmp_path / "seven", TABLE.take(order), CUTS[7]), ledger=ledger)
    with pytest.raises(LedgerError, match="not the data"):
        dpmcmc.sample(small, cut(tmp_path / "other", people(1), CUTS[3]), ledger=ledger)
    one = TABLE.to_pandas()
    one.loc[250, "age"] += 1.0
    with pytest.raises(LedgerError, match="not the data"):
        dpmcmc.sample(small, cut(tmp_path / "one", pa.Table.from_pandas(one), CUTS[3]), ledger=ledger)


def test_a_fit_along_a_path_is_that_of_the_whole_table(folder, monkeypatch):
    """Under the same keys, which a fit draws anew: a table in partitions has the bits of the table in memory."""
    keyed = fitting.sample
    monkeypatch.setattr(fitting, "sample", lambda *given, **more: keyed(*given, **more, key=5))
    fit = lambda data: dpmcmc.fit("late ~ age + job", data, SCHEMA, epsilon=1.0, sampler="sghmc")  # noqa: E731
    whole = fit(TABLE)
    assert np.array_equal(fit(folder).draws, whole.draws)
    assert whole.plan.mechanism.sampler == "sghmc"


def test_a_config_takes_a_glob_and_an_engine(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = {
        "name": "people",
        "data": {"path": "people/*.parquet", "num_records": N, "schema": SCHEMA.to_yaml()},
        "target": {"name": "logistic_regression"},
        "mechanism": {"name": "noise_aware", "draws": 100, "steps": 4},
        "privacy": {"epsilon": 1.0, "delta": 1e-4},
    }
    (tmp_path / "people.yaml").write_text(yaml.safe_dump(config))
    assert main(["run", "people.yaml", "--out", "made"]) == 0
    assert (tmp_path / "made" / "draws.nc").exists()
    capsys.readouterr()
    for changes, said in (
        (["run.engine=dask://10.0.0.1:x"], "run.engine: 'dask://10.0.0.1:x' is none"),
        (
            ["data.test_fraction=0.1", "data.num_records=270", "run.engine=dask://127.0.0.1:1"],
            "engine: workers compute on a table in partitions",
        ),
    ):
        given = [word for change in changes for word in ("--set", change)]
        assert main(["run", "people.yaml", "--out", "other", *given]) != 0
        assert said in capsys.readouterr().err
