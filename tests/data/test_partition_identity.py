"""What is read is what was checked: no record counts twice, however files, links, workers or code change a table."""

import contextlib
import os
import shutil
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import dpmcmc
from dpmcmc.data import DataError, Levels, Range, Schema, one_partition
from dpmcmc.data import partitions as partitions_of_data
from dpmcmc.data.conversion import to_rows
from dpmcmc.data.encoded_partitions import EncodedPartition, EncodedPartitions
from dpmcmc.data.partitions import find_partitions
from dpmcmc.engine import chains, kept_partitions, life
from dpmcmc.engine.partitions import Answer, PartitionedRecords
from dpmcmc.engine.workers import Here, LostPartition, workers
from dpmcmc.errors import InputError
from dpmcmc.privacy.query.record_sums import summed
from tests.data.test_partitions import (
    CUTS,
    SCHEMA,
    TABLE,
    WHOLE,
    N,
    Squares,
    cut,
    fine,
    ledger_at,
    people,
    plan_of,
    same,
)

#: Dask's own reader calls pandas in a way that it will lose.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
#: The refusal of records that are not those of the first pass.
OTHER = "has other records than when it was checked"


@pytest.fixture
def folder(tmp_path):
    return cut(tmp_path / "people", TABLE, CUTS[7])


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    """Let every pass read its rows anew."""
    monkeypatch.setenv(kept_partitions.KEEP_MB, "0")
    monkeypatch.setattr(kept_partitions, "KEPT", kept_partitions._Kept())


def total(data, num_records=N, between=lambda: None):
    """Return a sum of the records, after something has happened between the first pass and the second."""
    with workers() as engine:
        records = PartitionedRecords(find_partitions(data, SCHEMA), engine).checked(fine, num_records)
        between()
        return records.total(Squares())


def rewritten(path, table, keep_times=True):
    """Write other rows in the place of a file's, with its times as they were."""
    before = path.stat()
    pq.write_table(table, path)
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("given", ["folder", "glob", "dataset"])
def test_files_that_change_while_a_run_reads_them_end_it(folder, given, replaced):
    """A file gets another one's rows, as many and of the same size and times, so that they would count twice."""
    two = cut(folder.parent / "two", pa.concat_tables([TABLE.slice(0, 150)] * 2), [150])
    data = {"folder": two, "glob": f"{two}/*.parquet", "dataset": pyarrow.dataset.dataset(two)}[given]

    def change():
        if replaced:
            shutil.copy2(two / "0.parquet", two / "new")
            pq.write_table(TABLE.slice(150, 150), two / "new")
            os.replace(two / "new", two / "1.parquet")
        else:
            rewritten(two / "1.parquet", TABLE.slice(150, 150))

    said = "1.parquet" if given == "dataset" else f"1.parquet {OTHER}"  # Arrow may find the file damaged
    with pytest.raises(LostPartition, match=said):
        total(data, between=change)
    assert total(two) is not None


def test_rows_in_another_order_and_rows_that_are_kept(folder, monkeypatch):
    """Kept rows are those that were checked, whatever became of their file; another order is another reading."""
    order = np.random.default_rng(0).permutation(109)
    with pytest.raises(LostPartition, match=OTHER):
        total(folder, between=lambda: rewritten(folder / "4.parquet", TABLE.slice(41, 109).take(order)))
    rewritten(folder / "4.parquet", TABLE.slice(41, 109))
    monkeypatch.setenv(kept_partitions.KEEP_MB, "64")
    assert same(total(folder, between=lambda: shutil.rmtree(folder)), WHOLE)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_change_after_the_run_has_begun_says_that_its_budget_is_spent(folder, tmp_path, monkeypatch, checkpoint):
    ledger = ledger_at(tmp_path / "ledger")
    begin = life.Life.begin

    def begun(self):
        begin(self)
        rewritten(folder / "4.parquet", TABLE.slice(150, 109))

    monkeypatch.setattr(life.Life, "begin", begun)
    kept = tmp_path / "checkpoint" if checkpoint else None
    with pytest.raises(LostPartition) as caught:
        dpmcmc.sample(plan_of(), folder, ledger=ledger, checkpoint=kept, out=tmp_path / "out")
    said = str(caught.value)
    assert f"4.parquet {OTHER}" in said
    assert "nothing was released; its budget is spent" in said
    assert ledger.state().spent > 0
    assert not list((tmp_path / "out").rglob("*"))


def test_a_file_that_changes_before_all_have_been_read_is_refused(folder, tmp_path, monkeypatch):
    """A file takes the place of another one during the first pass, of which every later pass has the same digests."""
    ledger = ledger_at(tmp_path / "ledger")
    batches = EncodedPartition.batches

    def moving(self, more=()):
        yield from batches(self, more)
        if self.name == "0.parquet":
            os.replace(folder / self.name, folder / "5.parquet")

    shutil.rmtree(folder)
    cut(folder, TABLE, [149, 149, 150, 150, 151])
    monkeypatch.setattr(EncodedPartition, "batches", moving)
    with pytest.raises(InputError, match=r"0.parquet has changed since it was first looked at"):
        dpmcmc.sample(plan_of(), folder, ledger=ledger)
    assert ledger.state().spent == 0


def test_a_ledger_knows_the_records_that_were_checked(folder, tmp_path, monkeypatch):
    """Its pass over the columns reads files too, and so does that of a table in memory."""
    with workers() as engine:
        records = PartitionedRecords(find_partitions(folder, SCHEMA), engine).checked(fine, N)
        rewritten(folder / "4.parquet", TABLE.slice(150, 109))
        with pytest.raises(DataError, match=OTHER):
            records.known_columns()
    path = tmp_path / "people.csv"
    TABLE.to_pandas().to_csv(path, index=False)
    given = {"config": {}, "num_records": N, "schema": SCHEMA}
    data = dpmcmc.data.load(path=path, **given)
    assert plan_of().columns_of(data)
    people(1).to_pandas().to_csv(path, index=False)
    with pytest.raises(DataError, match="has changed since"):
        plan_of().columns_of(data)


def linked(kind, old, new):
    new.parent.mkdir(exist_ok=True)
    if kind == "hard":
        os.link(old, new)
    elif kind == "symbolic":
        new.symlink_to(old)
    else:
        new.symlink_to(os.path.relpath(old, new.parent))


READERS = {
    "folder": lambda folder: total(folder, 2 * N),
    "glob": lambda folder: total(f"{folder}/**/*.parquet", 2 * N),
    "dataset": lambda folder: total(pyarrow.dataset.dataset(folder), 2 * N),
    "in memory": lambda folder: SCHEMA.encode(folder),
    "dataset in memory": lambda folder: SCHEMA.encode(pyarrow.dataset.dataset(folder)),
    "filtered dataset": lambda folder: SCHEMA.encode(
        pyarrow.dataset.dataset(folder).filter(pyarrow.compute.field("age") > 0)
    ),
    "converted": lambda folder: to_rows(folder, folder.parent / "rows", x="age", y="job"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["symbolic", "relative", "hard"])
@pytest.mark.parametrize("place", ["again.parquet", "below/0.parquet"])
def test_two_names_of_one_file_are_refused(tmp_path, kind, place, reader):
    made = cut(tmp_path / "people", TABLE, [])
    linked(kind, made / "0.parquet", made / place)
    with pytest.raises(DataError, match="are one file, whose records would count twice"):
        READERS[reader](made)
    (made / place).unlink()
    shutil.copy(made / "0.parquet", made / place)
    with contextlib.suppress(DataError):  # what is no number
        READERS[reader](made)  # a copy is another file


def test_a_dataset_that_names_a_file_twice_is_refused(tmp_path):
    made = cut(tmp_path / "people", TABLE, [])
    path = made / "0.parquet"
    pq.write_table(TABLE, path, row_group_size=100)
    one = pyarrow.dataset.dataset(path)
    below = pyarrow.fs.SubTreeFileSystem(str(made), pyarrow.fs.LocalFileSystem())
    (whole,) = one.get_fragments()
    groups = whole.split_by_row_group()
    made_of = lambda parts: pyarrow.dataset.FileSystemDataset(parts, one.schema, one.format, one.filesystem)  # noqa: E731
    for data in (
        pyarrow.dataset.dataset([str(path), str(path)]),
        pyarrow.dataset.dataset([one, one]),
        pyarrow.dataset.dataset([one, pyarrow.dataset.dataset("0.parquet", filesystem=below)]),
        made_of([*groups, groups[1]]),
        made_of([whole, groups[0]]),
    ):
        for use in (lambda data: find_partitions(data, SCHEMA), SCHEMA.encode):
            with pytest.raises(DataError, match="are one file"):
                use(data)
    assert same(total(made_of(groups)), WHOLE)
    assert find_partitions(made_of(groups), SCHEMA).assumption == ""


def swapping(patch, calls, wrong):
    """Compute another partition in place of one, after some calls."""
    before = []
    results = Here.results

    def swapped(self, function, items, names):
        given = []
        for item in items:
            before.append(item)
            given.append(before[-2] if len(before) > calls and item.number == wrong else item)
        return results(self, function, given, names)

    patch.setattr(Here, "results", swapped)


@pytest.mark.parametrize("calls", [0, 7, 14])
def test_a_worker_that_computes_another_partition_is_refused(folder, tmp_path, calls, monkeypatch):
    """Share 0 in place of share 1: in the first pass, in one of the ledger, or after the budget is spent."""
    for ledger in (ledger_at(tmp_path / "ledger"), None):
        with monkeypatch.context() as patch:
            swapping(patch, calls, 1)
            with pytest.raises(LostPartition, match="has answered for another partition than it was asked for"):
                dpmcmc.sample(plan_of(), folder, ledger=ledger)


@pytest.mark.parametrize("planted", ["twice", "dropped", "none", "other run", "other digest", "turned round"])
def test_a_partition_that_counts_twice_or_not_at_all_is_refused(folder, monkeypatch, planted):
    def wrong(answers):
        if planted == "other run":
            return [*answers[:-1], Answer(("another", 6), answers[6].rounding, answers[6].value, answers[6].digest)]
        if planted == "other digest":
            return [*answers[:-1], Answer(answers[6].share, answers[6].rounding, answers[6].value, "x 0")]
        changes = {"twice": [*answers, answers[-1]], "dropped": answers[1:], "none": [], "turned round": answers[::-1]}
        return changes[planted]

    results = Here.results
    with workers() as crew:
        records = PartitionedRecords(find_partitions(folder, SCHEMA), crew).checked(fine, N)
        assert same(records.total(Squares()), WHOLE)
        monkeypatch.setattr(Here, "results", lambda *given: wrong(results(*given)))
        with pytest.raises(LostPartition, match="twice, or not at all"):
            records.total(Squares())
        if planted != "other digest":
            with pytest.raises(LostPartition, match="twice, or not at all"):
                records.checked(fine, N)


class Own(Executor):
    """An executor of somebody's own."""

    def submit(self, function, /, *args, **kwargs):
        done = Future()
        done.set_result(function(*args, **kwargs))
        return done


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("kind", [Own, ThreadPoolExecutor, ProcessPoolExecutor, "client", "executor"])
def test_executors_of_ones_own_are_refused(folder, kind, trusted):
    if isinstance(kind, str):
        distributed = pytest.importorskip("distributed")
        Client = type("Client", (distributed.Client,), {"__init__": lambda self: None, "__del__": lambda self: None})
        given = (
            Client()
            if kind == "client"
            else distributed.cfexecutor.ClientExecutor.__new__(distributed.cfexecutor.ClientExecutor)
        )
    else:
        given = kind()
    for use in (
        lambda: dpmcmc.sample(plan_of(), folder, engine=given, trusted_network=trusted),
        lambda: dpmcmc.fit("late ~ age", folder, SCHEMA, epsilon=1.0, engine=given, trusted_network=trusted),
    ):
        with pytest.raises(InputError, match="executors and clients of one's own are not taken"):
            use()


class Drawn:
    """A partition whose rows are drawn anew at each reading, out of one table."""

    def __init__(self, table, count, name="drawn", anew=True):
        self.table = table
        self.rows = count
        self.name = name
        self.rng = np.random.default_rng(0)
        self.anew = anew

    def count(self):
        return self.rows

    def tables(self, columns):
        rng = self.rng if self.anew else np.random.default_rng(0)
        yield self.table.take(rng.permutation(N)[: self.rows]).select(columns)


def drawn_frame(anew):
    dask = pytest.importorskip("dask")
    frames = pytest.importorskip("dask.dataframe")
    frame = TABLE.to_pandas()
    rng = np.random.default_rng(0)

    @dask.delayed(pure=False)
    def part(number):
        order = rng.permutation(N) if anew else np.random.default_rng(1).permutation(N)
        return frame.iloc[order[number::3]]

    return frames.from_delayed([part(number) for number in range(3)], meta=frame.iloc[:0])


@pytest.mark.parametrize("kept", ["0", "64"])
def test_rows_that_are_drawn_anew_at_each_reading_are_refused(tmp_path, monkeypatch, kept):
    """They are read twice before anything is spent, whatever workers keep."""
    monkeypatch.setenv(kept_partitions.KEEP_MB, kept)
    ledger = ledger_at(tmp_path / "ledger")
    parts = tuple(EncodedPartition(Drawn(TABLE, N // 2), SCHEMA) for _ in range(2))
    for data in (drawn_frame(True), EncodedPartitions(parts, SCHEMA)):
        with pytest.raises(DataError, match=OTHER):
            dpmcmc.sample(plan_of(), data, ledger=ledger)
    assert ledger.state().spent == 0


def test_a_guarantee_says_where_nobody_sees_what_the_rows_are(folder, tmp_path):
    """Of Dask, of partitions of one's own and of other file systems, and not of files of this machine."""
    dask = pytest.importorskip("dask.dataframe")
    parts = (EncodedPartition(Drawn(TABLE, N, anew=False), SCHEMA),)

    class Handler(pyarrow.fs.FSSpecHandler):
        pass

    fsspec = pytest.importorskip("fsspec")
    other = pyarrow.fs.PyFileSystem(Handler(fsspec.filesystem("file")))
    unseen = {
        "dask": dask.read_parquet(folder),
        "computed": drawn_frame(False),
        "own": EncodedPartitions(parts, SCHEMA),
        "other file system": pyarrow.dataset.dataset(str(folder), filesystem=other),
    }
    for name, data in unseen.items():
        found = dpmcmc.sample(plan_of(), data, checkpoint=tmp_path / name)
        assert partitions_of_data.UNSEEN in found.guarantee.assumptions
        assert partitions_of_data.UNSEEN in str(found.guarantee)
        again = dpmcmc.sample(plan_of(), data, checkpoint=tmp_path / name)
        assert again.guarantee.assumptions.count(partitions_of_data.UNSEEN) == 1
    for data in (folder, pyarrow.dataset.dataset(folder), pyarrow.dataset.dataset(TABLE), TABLE):
        assert dpmcmc.sample(plan_of(), data).guarantee.assumptions == plan_of().guarantee.assumptions


@pytest.mark.parametrize("when", ["read", "begun", "replaced"])
def test_memory_mapped_rows_that_change_end_the_run(tmp_path, monkeypatch, when):
    count = 400
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(count, 3)).astype(np.float32) / 3, "y": rng.integers(0, 2, count).astype(np.int32)}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    records = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in arrays}
    plan = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(),
        num_records=count,
        sampler=dpmcmc.SGLD(step_size=0.1),
        sampling=dpmcmc.Poisson(20),
        steps=20,
        privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5, accountant="rdp"),
    )

    def change():
        path = tmp_path / "x.npy"
        before = path.stat()
        if when == "replaced":
            np.save(tmp_path / "other.npy", arrays["x"][::-1])
            os.replace(tmp_path / "other.npy", path)
            return
        with path.open("r+b") as stream:
            stream.seek(-12, os.SEEK_END)
            stream.write(arrays["x"][0].tobytes())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    name = "read" if when == "read" else "begin"
    real = getattr(chains.Chains, name)

    def changing(self, *given):
        found = real(self, *given)
        change()
        return found

    assert dpmcmc.sample(plan, records) is not None
    monkeypatch.setattr(chains.Chains, name, changing)
    if when == "read":
        with pytest.raises(DataError, match=r"x.npy has changed since"):
            dpmcmc.sample(plan, records)
    else:
        with pytest.raises(LostPartition, match=r"x.npy has changed since.*nothing was released; its budget is spent"):
            dpmcmc.sample(plan, records)


def test_a_release_reads_a_map_once(tmp_path, monkeypatch):
    """Its rows are within their bound when they are checked, and are not read again."""
    records = SCHEMA.encode(TABLE)
    np.save(tmp_path / "x.npy", records["x"])
    mapped = {"x": np.load(tmp_path / "x.npy", mmap_mode="r"), "y": records["y"]}
    want = dpmcmc.sample(plan_of(), records, key=3).draws
    begin = life.Life.begin

    def begun(self):
        begin(self)
        np.load(tmp_path / "x.npy", mmap_mode="r+")[:] = 1e6

    monkeypatch.setattr(life.Life, "begin", begun)
    np.testing.assert_array_equal(dpmcmc.sample(plan_of(), mapped, key=3).draws, want)


def stored(table, path, rng):
    """Write a table as one of the kinds of files, with its name's end."""
    if rng.uniform() < 0.5:
        made = path.with_suffix(str(rng.choice([".parquet", ".pq"])))
        pq.write_table(
            table, made, row_group_size=int(rng.integers(1, 60)), compression=str(rng.choice(["none", "zstd"]))
        )
        return made
    made = path.with_suffix(str(rng.choice([".arrow", ".feather", ".ipc"])))
    with pa.OSFile(str(made), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=int(rng.integers(1, 60)))
    return made


def random_folder(folder, rng):
    """Write the table's rows in a random order to random files, some of them empty or in folders below."""
    table = TABLE.take(rng.permutation(N))
    ends = np.sort(rng.integers(0, N + 1, rng.integers(0, 5)))
    folder.mkdir()
    made = []
    for number, (start, end) in enumerate(zip([0, *ends], [*ends, N], strict=True)):
        below = folder / str(rng.choice([".", "a", "b/c"]))
        below.mkdir(parents=True, exist_ok=True)
        part = table.slice(start, end - start)
        made.append((stored(part, below / f"{rng.integers(10)}{number}", rng), part))
    return made


def change_of(files, rng):
    """Return (what makes a folder illegal before it is read, or between two passes; None) by chance."""
    path, rows = files[rng.integers(len(files))]
    other = path.with_name(f"other{path.suffix}")
    kind = rng.choice(["symbolic", "hard", "rewritten", "swapped", "one value", "reordered", "longer", "gone"])
    if kind in ("symbolic", "hard"):
        return lambda: linked(kind, path, other), None
    if kind in ("swapped", "gone"):
        filled = [one for one, part in files if part.num_rows]
        one = filled[0]
        if kind == "gone":
            return None, one.unlink
        return None, lambda: shutil.copyfile(stored(people(1), one.with_name("x"), rng), one)
    path, rows = max(files, key=lambda file: file[1].num_rows)
    frame = rows.to_pandas()
    if kind == "one value":
        frame.loc[rng.integers(len(frame)), "age"] = 41.0
    elif kind == "reordered":
        frame = frame.iloc[::-1]
    elif kind == "longer":
        frame = pd.concat([frame, frame.iloc[:1]])
    else:
        frame.iloc[-1] = frame.iloc[0]
    changed = pa.Table.from_pandas(frame, schema=rows.schema, preserve_index=False)
    before = path.stat()

    def rewrite():
        shutil.copyfile(stored(changed, path.with_name("x"), rng), path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return None, rewrite


@pytest.mark.parametrize("seed", range(40))
def test_a_legal_folder_has_the_sums_of_the_whole_table(tmp_path, monkeypatch, seed):
    """However a table is cut and stored; and whatever makes a record count twice, or changes one, is refused."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(partitions_of_data, "LARGE", int(rng.choice([20, 1 << 20])))
    monkeypatch.setattr(one_partition, "ROWS", int(rng.choice([7, 1 << 16])))
    made = tmp_path / "people"
    files = random_folder(made, rng)
    data = made if rng.uniform() < 0.7 else f"{made}/**/*"
    wholly = len(files) == 1 and isinstance(data, str) and find_partitions(data, SCHEMA) is None
    if not wholly:
        assert same(total(data), WHOLE)
    assert same(summed(Squares(), SCHEMA.encode(made)), WHOLE)
    before, between = change_of(files, rng)
    if before is not None:
        before()
    with pytest.raises((DataError, LostPartition)) as caught:
        total(made, 2 * N if before else N, between or (lambda: None))
    assert "41" not in str(caught.value).replace(str(tmp_path), "")


def random_lines(rng, width):
    """Return lines of fields, some of them empty, and some lines wholly so where there is one column."""
    count = int(rng.integers(1, 12))
    words = rng.choice(["1", "", "2.5", " ", '""', "-3"], (count, width))
    return [",".join(line) for line in words]


@pytest.mark.parametrize("seed", range(60))
def test_a_csv_has_as_many_rows_as_lines(tmp_path, seed):
    rng = np.random.default_rng(seed)
    width = int(rng.integers(1, 4))
    lines = random_lines(rng, width)
    names = [f"c{number}" for number in range(width)]
    end = str(rng.choice(["\n", "\r\n"]))
    path = tmp_path / "t.csv"
    last = str(rng.choice(["", end])) if lines[-1] else end  # an empty line is one where something ends it
    path.write_bytes((end.join([",".join(names), *lines]) + last).encode())
    schema = Schema({name: Range(-5, 5, missing=True) for name in names} | {"n": Levels([0, 1])}, label="n")
    found = dpmcmc.data.tables.load_table(path)
    assert all(len(column) == len(lines) for column in found.values())
    values = [[one or None for one in (field.strip().strip('"') for field in line.split(","))] for line in lines]
    assert [list(row) for row in zip(*found.values(), strict=True)] == values
    assert len(schema.encode_features({**found, "n": [0] * len(lines)})) == len(lines)


@pytest.mark.parametrize(("end", "text"), [("csv", "c\n1\n\n2\n"), ("json", '{"c": 1}\n{"c": 2}\n')])
def test_a_dataset_of_text_is_refused(tmp_path, end, text):
    """Arrow drops empty lines of a CSV, and guesses types from rows."""
    (tmp_path / f"t.{end}").write_text(text)
    data = pyarrow.dataset.dataset(tmp_path / f"t.{end}", format=end)
    schema = Schema({"c": Range(0, 5)}, label="c")
    for given in (data, data.filter(pyarrow.compute.field("c") > 0), pyarrow.dataset.dataset([data, data])):
        with pytest.raises(DataError, match=f"the dataset reads {end} files"):
            schema.encode(given)
    with pytest.raises(DataError, match=f"the dataset reads {end} files"):
        find_partitions(data, schema)


@pytest.mark.parametrize(
    ("text", "rows"), [("a,b\n1,2\n\n3,4\n", (1,)), ("a,b\n1,2\n3,4\n\n", (2,)), ("a,b\n1,2\n \n", (1,))]
)
def test_an_empty_line_among_several_columns_is_refused(tmp_path, text, rows):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match="also an empty line, needs the fields of the header") as caught:
        dpmcmc.data.tables.load_table(tmp_path / "t.csv")
    assert caught.value.rows == rows


def test_the_only_column_of_a_csv_keeps_its_missing_values(tmp_path):
    """The number of rows, which is public, depends on no value."""
    (tmp_path / "t.csv").write_text("age\n40\n\n50\n\n")
    schema = Schema({"age": Range(0, 90)}, label="age")
    with pytest.raises(DataError) as caught:
        schema.encode(tmp_path / "t.csv")
    assert caught.value.rows == (1, 3)
    assert len(dpmcmc.data.tables.load_table(tmp_path / "t.csv")["age"]) == 4
