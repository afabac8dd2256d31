"""The engine's programs, compiled for an H100 that is not there: what must hold of them, and what a step costs.

Run by ``scripts/test_gpu_compile.sh``, or with the extra ``gpu-check``: ``JAX_PLATFORMS=cpu pytest -m gpu_compile``.
"""

import functools
import os
import re
import sys
from pathlib import Path

import pytest

from dpmcmc.engine import compilation
from dpmcmc.privacy.query import exact_sums

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from gpu_cost import HEADER, row
from gpu_programs.programs import PROGRAMS, Unavailable, compiled

pytestmark = [pytest.mark.gpu_compile, pytest.mark.optimised]

#: Most device operations a step, conditionals a step, bytes a step over what a step must move, and megabytes of
#: temporaries. A step's share of the randomness that is drawn for a group of 32 steps counts, and what hardly ever
#: happens counts with its chance. The host waits for a conditional or a loop of unknown length, which counts as one:
#: SGFS has one a step (whether it factorises anew, which counts as if it did), and integer noise one a group (for keys
#: that tie).
#: docs/performance.md shows the limits, and what the least of the bytes is.
LIMITS = {
    "one chain": (17, 1 / 32, 4.85, 8),
    "batch 512": (17, 1 / 32, 3.6, 8),
    "batch 2,048": (18, 1 / 32, 3.2, 8),
    "1,024 chains": (20, 1 / 32, 5.0, 256),
    "SGFS": (38, 1 + 1 / 32, 14.5, 8),
    "digits network": (60, 1 / 32, 79, 32),
}


@functools.cache
def program(name):
    """A program, compiled once."""
    try:
        return compiled(PROGRAMS[name]())
    except Unavailable as error:
        if os.environ.get("DPMCMC_GPU_CHECK") == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_norm_and_what_it_scales_are_still_of_one_computation(name):
    found = program(name)
    loops = found.held()
    assert loops, "the compiler has taken the loop of fixed_point.held apart"
    in_step = {loop.name for loop, rounds in found.module.loops() if rounds > found.steps}
    assert in_step.issuperset(loop.name for loop in loops)


def test_the_gate_sees_a_norm_that_is_not_held_to_its_vector(monkeypatch):
    program("one chain")  # skips where it cannot be compiled
    monkeypatch.setattr(exact_sums, "materialised", lambda tree, then=lambda kept: kept: then(tree))
    compilation._compile_cached.cache_clear()
    planted = compiled(PROGRAMS["one chain"]())
    compilation._compile_cached.cache_clear()
    assert planted.held() == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_asks_the_host_and_no_sum_depends_on_its_order(name):
    found = program(name)
    called = {each.target for each in found.module.instructions() if each.target}
    assert not [target for target in called if re.search("callback|python|host", target, re.IGNORECASE)]
    opcodes = {each.opcode for each in found.module.instructions()}
    assert opcodes.isdisjoint({"infeed", "outfeed", "send", "recv", "select-and-scatter"})
    added = [each for each in found.module.instructions() if each.opcode == "scatter"]
    assert not [each.shape for each in added if not each.shape.startswith(("s32", "u32", "pred"))]
    # Additions in an order of their own: an addition in memory, or an exchange in memory that is tried again.
    assert found.kernels.count(".entry") > 5
    assert not re.findall(r"\b(?:atom|red)\.[\w.:]*(?:f16|f32|f64|cas)[\w.]*", found.kernels)
    assert "f64[" not in found.text


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_costs_no_more_than_is_written_down(name, capsys):
    with capsys.disabled():
        print(f"\n{HEADER}\n{row(name, program(name))}")
    found, (operations, conditionals, ratio, megabytes) = program(name), LIMITS[name]
    cost = found.cost
    assert cost.conditionals <= conditionals
    assert cost.operations <= operations
    assert cost.bytes <= ratio * found.necessary
    assert found.temporaries <= megabytes * 1_000_000
