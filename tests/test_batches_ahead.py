"""Batches made ahead: the order, how far ahead, refreshes, errors, and an end of the thread."""

import contextlib
import threading
import traceback
from collections.abc import Callable

import pytest

from retrieval_jax.batches_ahead import BatchesAhead

END = 12
THREAD = "batches_ahead"


class Plans:
  """Batches (step, plan): the plan in force is counted up by every refresh, as the steps `at` want it."""

  def __init__(self, *at: int):
    self.at = at
    self.plan = 0
    self.begun: list[tuple[int, int]] = []
    self.now = -1

  def make(self, step: int) -> tuple[int, int]:
    self.begun.append((step, self.now))
    return step, self.plan

  def due(self, step: int) -> bool:
    return step in self.at

  def refresh(self, step: int) -> bool:
    self.now = step
    self.plan += step in self.at
    return step in self.at


def started(make: Callable, *, ahead: int, due: Callable = lambda step: False) -> contextlib.closing:
  return contextlib.closing(BatchesAhead(make, due=due, ahead=ahead, end=END))


def threads() -> int:
  return sum(thread.name.startswith(THREAD) for thread in threading.enumerate())


@pytest.mark.parametrize("ahead", [0, 1, 2, 5, 100])
def test_batches_come_in_the_order_of_the_steps_and_no_more_than_so_many_are_begun_ahead(ahead):
  plans = Plans()
  with started(plans.make, ahead=ahead) as batches:
    for step in range(END):
      plans.refresh(step)
      assert batches.take(step) == (step, 0)
  assert [step for step, _ in plans.begun] == list(range(END))
  assert all(step - now <= ahead for step, now in plans.begun)


@pytest.mark.parametrize("ahead", [0, 1, 2, 100])
def test_a_batch_is_of_the_plan_that_holds_at_its_step(ahead):
  plans = Plans(0, 3, 4, 9)
  with started(plans.make, due=plans.due, ahead=ahead) as batches:
    taken = []
    for step in range(END):
      plans.refresh(step)
      taken.append(batches.take(step))
  assert [plan for _, plan in taken] == [1, 1, 1, 2, 3, 3, 3, 3, 3, 4, 4, 4]
  assert [step for step, _ in plans.begun] == list(range(END))  # none twice: none was made for nothing


def test_batches_are_made_while_the_one_before_is_used():
  made = threading.Event()

  def make(step: int) -> int:
    if step == 1:
      made.set()
    return step

  with started(make, ahead=1) as batches:
    batches.take(0)
    assert made.wait(timeout=60)


@pytest.mark.parametrize("forgets", [True, False])
def test_after_an_unforeseen_refresh_what_was_made_ahead_is_left_out_if_it_is_said(forgets):
  plans, both = Plans(1), threading.Event()

  def make(step: int) -> tuple[int, int]:
    found = plans.make(step)
    if step == 2:
      both.set()
    return found

  with started(make, ahead=2) as batches:  # nobody says that step 1 is due
    batches.take(0)
    assert both.wait(timeout=60)
    plans.refresh(1)
    if forgets:
      batches.forget()
    assert [batches.take(1), batches.take(2)] == ([(1, 1), (2, 1)] if forgets else [(1, 0), (2, 0)])


def test_another_order_makes_the_batch_anew():
  with started(lambda step: step, ahead=3) as batches:
    assert [batches.take(step) for step in (0, 7, 8, 2, 3)] == [0, 7, 8, 2, 3]


def test_an_error_comes_out_at_the_step_that_it_belongs_to_with_its_traceback():
  def unreadable(step: int) -> int:
    if step >= 3:
      raise OSError(f"row of step {step}")
    return step

  with started(unreadable, ahead=2) as batches:
    assert [batches.take(step) for step in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="row of step 3") as raised:
      batches.take(3)
  assert "in unreadable" in "".join(traceback.format_exception(raised.value))
  assert threads() == 0


@pytest.mark.parametrize("ahead", [1, 100])
def test_closing_ends_the_thread_also_when_the_training_fails_and_nothing_is_taken_any_more(ahead):
  begun, go_on = threading.Event(), threading.Event()
  steps = []

  def make(step: int) -> int:
    steps.append(step)
    if step == 1:
      begun.set()
      assert go_on.wait(timeout=60)
    return step

  def training() -> None:
    with started(make, ahead=ahead) as batches:
      batches.take(0)
      assert begun.wait(timeout=60)
      threading.Timer(0.05, go_on.set).start()
      raise ZeroDivisionError

  with pytest.raises(ZeroDivisionError):
    training()
  assert threads() == 0
  assert steps == [0, 1]  # what was asked for and not begun is not made


def test_without_batches_ahead_there_is_no_thread():
  with started(lambda step: threading.current_thread().name, ahead=0) as batches:
    assert batches.take(0) == threading.current_thread().name
  with started(lambda step: threading.current_thread().name, ahead=1) as batches:
    assert batches.take(0).startswith(THREAD)
