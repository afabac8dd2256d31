"""The reader of compiled programs counts operations and bytes as they are: by hand on a program of a few lines."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from gpu_programs.hlo import Cost, Module, bytes_of

#: A loop of five rounds that gathers 8 of 1,000 rows of 4 numbers and sets them in a buffer of 40 rows; a conditional.
TEXT = """HloModule made_up

%gathering (p: f32[1000,4], i: s32[8], old: f32[40,4]) -> f32[40,4] {
  %p = f32[1000,4]{1,0} parameter(0)
  %i = s32[8]{0} parameter(1)
  %old = f32[40,4]{1,0} parameter(2)
  %same = f32[1000,4]{1,0} bitcast(%p)
  %taken = f32[8,4]{1,0} gather(%same, %i), offset_dims={1}, slice_sizes={1,4}
  %zero = s32[] constant(0)
  ROOT %set = f32[40,4]{1,0} dynamic-update-slice(%old, %taken, %zero, %zero)
}

%body (t: (s32[8], f32[40,4], f32[1000,4])) -> (s32[8], f32[40,4], f32[1000,4]) {
  %t = (s32[8]{0}, f32[40,4]{1,0}, /*index=2*/f32[1000,4]{1,0}) parameter(0)
  %i.1 = s32[8]{0} get-tuple-element(%t), index=0
  %old.1 = f32[40,4]{1,0} get-tuple-element(%t), index=1
  %p.1 = f32[1000,4]{1,0} get-tuple-element(%t), index=2
  %fused = f32[40,4]{1,0} fusion(%p.1, %i.1, %old.1), kind=kLoop, calls=%gathering
  %next = s32[8]{0} copy(%i.1)
  ROOT %out = (s32[8]{0}, f32[40,4]{1,0}, f32[1000,4]{1,0}) tuple(%next, %fused, %p.1)
}

%more (t.1: (s32[8], f32[40,4], f32[1000,4])) -> pred[] {
  %t.1 = (s32[8]{0}, f32[40,4]{1,0}, f32[1000,4]{1,0}) parameter(0)
  ROOT %asked = pred[] custom-call(), custom_call_target="ask"
}

%cheap (a: f32[2]) -> f32[2] {
  ROOT %a = f32[2]{0} parameter(0)
}

%dear (b: f32[2]) -> f32[2] {
  %b = f32[2]{0} parameter(0)
  ROOT %b.1 = f32[2]{0} copy(%b)
}

ENTRY %main (s: (s32[8], f32[40,4], f32[1000,4]), w: s32[], v: f32[2]) -> f32[2] {
  %s = (s32[8]{0}, f32[40,4]{1,0}, f32[1000,4]{1,0}) parameter(0)
  %w = s32[] parameter(1)
  %v = f32[2]{0} parameter(2)
  %round = (s32[8]{0}, f32[40,4]{1,0}, f32[1000,4]{1,0}) while(%s), condition=%more, body=%body, MORE
  ROOT %either = f32[2]{0} conditional(%w, %v, %v), branch_computations={%cheap, %dear}
}
"""
NAMED = 'metadata={op_name="a/b"}'
FIVE_ROUNDS = NAMED + ', backend_config={"known_trip_count":{"n":"5"}}'
#: A gather reads its 8 rows and their places, an update writes them, and a copy reads and writes 8 places.
ROUND = Cost(2, (8 * 16 + 8 * 4 + 4 * 0) + 8 * 16 + 2 * 32)


def test_a_gather_counts_with_its_rows_and_an_update_with_what_it_sets():
    assert Module(TEXT).cost("body") == ROUND


def test_loops_count_as_often_as_they_go_round_and_conditionals_with_the_dearest_branch():
    module = Module(TEXT.replace("MORE", FIVE_ROUNDS))
    assert module.cost(module.entry) == ROUND.times(5).plus(Cost(1, 16, 1))
    assert [(loop.op_name, rounds) for loop, rounds in module.loops()] == [("a/b", 5)]
    assert module.operations(module.entry) == {"fused": 5, "next": 5}


def test_a_loop_of_unknown_length_counts_once_and_as_a_conditional():
    module = Module(TEXT.replace("MORE", NAMED))
    assert module.cost(module.entry) == ROUND.plus(Cost(1, 1, 1)).plus(Cost(1, 16, 1))


def test_bytes_of_a_shape_are_those_of_its_arrays():
    assert bytes_of("(f32[2,3]{1,0}, /*index=1*/pred[5]{0}, s32[])") == 24 + 5 + 4
    assert bytes_of("bf16[10]{0}") == 20
