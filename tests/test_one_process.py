"""Interactive streams answer in their own process alone, and one question at a time."""

import contextlib
import os
import threading
import warnings
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from dpmcmc.privacy.interactive import (
    AboveThreshold,
    BudgetSpent,
    EarlyStopping,
    Halted,
    LaplaceAnswers,
    Thresholdout,
    TreeCounter,
    above_threshold,
)
from dpmcmc.privacy.interactive.above_threshold import Once, WholeNumbers

Ask = Callable[[], object]
#: Seconds that an answer waits for another one that is being given.
PATIENCE = 1.0


def holdout(budget: int = 1) -> Thresholdout:
    """A holdout that disagrees with the training records, so that every question is a hit."""
    return Thresholdout({"y": np.zeros(50)}, {"y": np.ones(50)}, threshold=0.1, tolerance=0.001, budget=budget)


def questions() -> dict[str, Ask]:
    """One question to each kind of stream, whose noise is drawn where there is any to share.

    ``GaussianAnswers`` shares the code of ``LaplaceAnswers``; its noise is JAX's, which may hang in a forked process.
    """
    above, stopping = AboveThreshold(0.5, 1.0, 1e-3), EarlyStopping(epsilon=1.0, sensitivity=1e-3, reach=9)
    desk = holdout()
    whole = WholeNumbers(9, Fraction(1), 1)
    records = {"y": np.ones(50)}
    sums = LaplaceAnswers(records, 1.0, 1.0, 2)
    counter = TreeCounter(9, 1.0)
    above.begin()
    stopping.stop(0.0)
    return {
        "AboveThreshold": lambda: above.above(0.0),
        "begin": above.begin,
        "EarlyStopping": lambda: stopping.stop(0.0),
        "Thresholdout": lambda: desk.ask(lambda record: record["y"]),
        "WholeNumbers": lambda: whole.above(-99),
        "LaplaceAnswers": lambda: sums.ask(lambda record: record["y"]),
        "TreeCounter": lambda: counter.add(1.0),
    }


def said_in_a_child(asks: list[Ask]) -> list[str]:
    """Return the answer to a forked process: an error, or that it was answered."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's and Python's own, of forking
        child = os.fork()
    if child == 0:
        try:
            for ask in asks:
                try:
                    ask()
                    os.write(write, b"answered\n")
                except ValueError as error:
                    os.write(write, f"{error}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        return file.read().splitlines()


def answers_at_once(ask: Ask, patch: pytest.MonkeyPatch) -> int:
    """How many of two threads are answered, if each that draws noise first waits for the other to draw some too."""
    start, together = threading.Barrier(2), threading.Barrier(2)
    answers: list[object] = []

    def sample(scale: Fraction) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(PATIENCE)
        return 0

    def one() -> None:
        start.wait()
        with contextlib.suppress(Halted, BudgetSpent):
            answers.append(ask())

    patch.setattr(above_threshold, "sample", sample)
    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(answers)


def last_answers() -> dict[str, Ask]:
    """Questions whose streams have one answer left."""
    above, desk = AboveThreshold(0.5, 1.0, 1e-3), holdout()
    above.begin()
    return {"AboveThreshold": lambda: above.above(9.0), "Thresholdout": lambda: desk.ask(lambda record: record["y"])}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_gets_no_answer_and_its_parent_does():
    asked = questions()
    for name, said in zip(asked, said_in_a_child(list(asked.values())), strict=True):
        assert "forked" in said, name
    for ask in asked.values():
        ask()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_stream_without_the_process_is_caught(monkeypatch):
    """Planted fault."""
    monkeypatch.setattr(Once, "_answering", lambda self: self._taken)
    assert said_in_a_child(list(questions().values())) == ["answered"] * 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_is_refused_while_another_thread_is_answered():
    """The lock that it has a copy of is held for ever."""
    stream = AboveThreshold(0.5, 1.0, 1e-3)
    said: list[str] = []
    stream.above(lambda: said.extend(said_in_a_child([lambda: stream.above(0.0)])) or 0.0)
    assert "forked" in said[0]


@pytest.mark.parametrize("name", ["AboveThreshold", "Thresholdout"])
def test_two_threads_share_the_last_answer(name, monkeypatch):
    assert answers_at_once(last_answers()[name], monkeypatch) == 1


@pytest.mark.parametrize("name", ["AboveThreshold", "Thresholdout"])
def test_a_stream_without_a_lock_is_caught(name, monkeypatch):
    """Planted fault."""
    monkeypatch.setattr(Once, "_answering", lambda self: contextlib.nullcontext())
    assert answers_at_once(last_answers()[name], monkeypatch) == 2


def test_a_question_that_asks_itself_spends_no_more_than_there_is(monkeypatch):
    monkeypatch.setattr(above_threshold, "sample", lambda scale: 0)
    stream, desk = AboveThreshold(0.5, 1.0, 1e-3), holdout(budget=2)
    with pytest.raises(Halted):
        stream.above(lambda: stream.above(9.0))
    first = iter([lambda: desk.ask(lambda record: record["y"])])
    with pytest.raises(Halted):
        desk.ask(lambda record: next(first, lambda: record["y"])())
    assert desk.budget == 1
