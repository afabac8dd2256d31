"""A cache that somebody else can change is refused, in every mode and with a sentence."""

import os

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.mechanisms import OutputPerturbation
from dpmcmc.privacy.calibration import remembered
from dpmcmc.storage import cache, compiled_programs
from dpmcmc.storage.cache import UnsafeCache, refuse_unsafe
from dpmcmc.storage.compiled_programs import refuse_unsafe_caches
from dpmcmc.targets import LogisticRegression

NUM = 40
RECORDS = {"x": np.full((NUM, 2), 0.5, np.float32), "y": np.arange(NUM) % 2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of one's own, which ``DPMCMC_CACHE`` names."""
    made = tmp_path / "cache"
    made.mkdir(mode=0o755)
    monkeypatch.setenv("DPMCMC_CACHE", str(made))
    return made


@pytest.fixture
def programs(tmp_path):
    """A folder of one's own, which JAX is told to keep programs in; it gets its own one back."""
    before = jax.config.jax_compilation_cache_dir
    made = tmp_path / "programs"
    made.mkdir(mode=0o755)
    jax.config.update("jax_compilation_cache_dir", str(made))
    yield made
    jax.config.update("jax_compilation_cache_dir", before)
    refuse_unsafe_caches()


def refused(path, *words):
    with pytest.raises(UnsafeCache) as found:
        refuse_unsafe(path, "NAMED")
    for word in ("NAMED", *words):
        assert word in str(found.value)


def test_a_folder_of_ones_own_below_sticky_ones_is_taken(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "mine").mkdir(mode=0o755)
    shared.chmod(0o1777)
    refuse_unsafe(shared / "mine", "NAMED")
    refuse_unsafe(shared / "not there yet", "NAMED")
    refuse_unsafe(shared / "mine" / ".." / "mine", "NAMED")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
def test_a_folder_that_others_write_to_is_refused(tmp_path, mode):
    made = tmp_path / "cache"
    made.mkdir()
    made.chmod(mode)
    refused(made, str(made), "chmod go-w")


@pytest.mark.parametrize("below", ["cache", "cache/not there yet", "cache/../cache"])
def test_a_folder_below_one_that_others_write_to_is_refused(tmp_path, below):
    shared = tmp_path / "shared"
    (shared / "cache").mkdir(parents=True)
    shared.chmod(0o777)
    refused(shared / below, str(shared))


def test_the_way_through_links_is_checked(tmp_path):
    safe, shared = tmp_path / "safe", tmp_path / "shared"
    safe.mkdir(mode=0o755)
    (shared / "cache").mkdir(parents=True)
    (safe / "link").symlink_to(shared / "cache")
    refuse_unsafe(safe / "link", "NAMED")
    shared.chmod(0o777)
    refused(safe / "link", str(shared))
    # A link that others can put in the place of this one.
    (shared / "link").symlink_to(safe)
    refused(shared / "link", str(shared))
    (safe / "loop").symlink_to("loop")
    refused(safe / "loop", "links")


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    # All above belong to the owner too, who is nobody to this user, unless that is root.
    refused(tmp_path, f"belongs to user {owner}", f"user {owner + 1}")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives a folder away")
@pytest.mark.parametrize("mode", [0o777, 0o755, 0o700])
def test_a_folder_of_nobody_is_refused_to_root_too(tmp_path, mode):
    made = tmp_path / "cache"
    made.mkdir()
    made.chmod(mode)
    os.chown(made, 65534, 65534)
    refused(made, "belongs to user 65534")
    (tmp_path / "link").symlink_to(tmp_path)
    os.lchown(tmp_path / "link", 65534, 65534)
    refused(tmp_path / "link", "belongs to user 65534")


def test_a_missing_cache_is_made_for_its_user_alone(folder):
    cache.make_private(folder / "a" / "b")
    assert [p.stat().st_mode & 0o777 for p in (folder / "a", folder / "a" / "b")] == [0o700, 0o700]


def plan():
    return dpmcmc.plan(
        LogisticRegression(num_features=2, row_bound=1.0), num_records=NUM, sampler=dpmcmc.SGLD(step_size=1.0), steps=3,
        privacy=dpmcmc.Privacy(epsilon=2.0, delta=1e-3, accountant="rdp"),
    )  # fmt: skip


def test_every_way_to_run_refuses_the_library_s_own_cache(folder):
    made = plan()
    mechanism = OutputPerturbation().plan(made.target, num_records=NUM, epsilon=1.0, delta=1e-3)
    folder.chmod(0o777)
    for attempt in (
        lambda: dpmcmc.sample(made, RECORDS),
        lambda: dpmcmc.sample(made, RECORDS, key=0),
        lambda: dpmcmc.sample(mechanism, RECORDS),
        lambda: remembered.recall({}),
        compiled_programs.keep_compiled_programs,
    ):
        with pytest.raises(UnsafeCache, match="DPMCMC_CACHE"):
            attempt()


def test_every_way_to_run_refuses_a_folder_that_jax_was_given(folder, programs):
    made = plan()
    programs.chmod(0o777)
    with pytest.raises(UnsafeCache, match="JAX_COMPILATION_CACHE_DIR"):
        dpmcmc.sample(made, RECORDS)
    jax.config.update("jax_compilation_cache_dir", "gs://somewhere/cache")
    with pytest.raises(UnsafeCache, match="local folder"):
        dpmcmc.sample(made, RECORDS)


def test_jax_does_not_stay_with_the_folder_that_it_first_had(folder, programs):
    from jax._src import compilation_cache

    refuse_unsafe_caches()
    jax.jit(lambda x: x + 1)(np.ones(3))
    assert str(compilation_cache._cache._path) == str(programs)
    other = programs.with_name("other")
    jax.config.update("jax_compilation_cache_dir", str(other))
    refuse_unsafe_caches()
    assert compilation_cache._cache is None
    jax.jit(lambda x: x + 2)(np.ones(3))
    assert str(compilation_cache._cache._path) == str(other)
    assert other.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_the_user_gave_to_jax_stays_and_without_one_the_library_s_own_is_used(folder, programs):
    compiled_programs.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == str(programs)
    programs.chmod(0o777)
    with pytest.raises(UnsafeCache, match="JAX_COMPILATION_CACHE_DIR"):
        compiled_programs.keep_compiled_programs()
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        for _ in range(2):
            compiled_programs.keep_compiled_programs()
            assert jax.config.jax_compilation_cache_dir == str(folder / "compiled")
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)


def test_a_program_that_others_can_have_written_is_refused(folder, programs):
    entry = programs / "jit_chunk-0123-cache"
    entry.write_bytes(b"")
    entry.chmod(0o666)
    with pytest.raises(UnsafeCache, match="jit_chunk"):
        refuse_unsafe_caches()
    programs.chmod(0o700)  # where nobody else gets at it, whatever the umask of JAX
    refuse_unsafe_caches()


def test_the_command_says_so_and_ends_with_2(folder, tmp_path, capsys, monkeypatch):
    folder.chmod(0o777)
    assert main(["run", "configs/two_normals.yaml", "--out", str(tmp_path / "run"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: DPMCMC_CACHE: others may write to")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_calibration_that_others_can_have_written_is_refused(folder, what):
    remembered.remember({"epsilon": 1.0}, 2.0)
    assert remembered.recall({"epsilon": 1.0}) == 2.0
    path = remembered._path({"epsilon": 1.0})
    (path.parent if what == "folder" else path).chmod(0o777)
    with pytest.raises(UnsafeCache, match="calibrations"):
        remembered.recall({"epsilon": 1.0})
