"""Answers come out in parts, whole and checked; what was answered before a failure is not lost."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from onepolicy.errors import EngineError
from onepolicy.records.canary import MOST_MEAN_D, Canary
from onepolicy.workflow import answers
from onepolicy.workflow.answers import MOST, PART, chunks, in_flight
from onepolicy.workflow.same_model import SameModel, canary_of


def done(value) -> Future:
    future: Future = Future()
    future.set_result(value)
    return future


def failed(message="gone") -> Future:
    future: Future = Future()
    future.set_exception(EngineError(message))
    return future


def gathered(parts):
    """What came out, and the error that ended it."""
    found = []
    try:
        for asked, answers in parts:
            found.append(list(zip(asked, answers, strict=True)))
    except (EngineError, KeyboardInterrupt) as error:
        return found, error
    return found, None


def test_every_input_comes_out_once_beside_its_own_answer():
    with ThreadPoolExecutor(8) as pool:
        waits = np.random.default_rng(0).permutation(300)
        parts = in_flight(
            range(300), lambda i: pool.submit(lambda: threading.Event().wait(waits[i] / 1e4) or -i), window=16
        )
        found, error = gathered(parts)
    assert error is None
    assert sorted(pair for part in found for pair in part) == [(i, -i) for i in range(300)]
    assert all(len(part) >= PART for part in found[:-1])


def test_nothing_to_ask_is_nothing_and_checks_nothing():
    checked = []
    assert list(in_flight([], done, window=4, check=lambda: checked.append(1))) == []
    assert checked == []


def test_no_more_than_the_window_is_submitted_and_inputs_are_taken_as_they_are_needed():
    waiting, taken, most = set(), [], 0

    def inputs():
        for i in range(200):
            taken.append(i)
            yield i

    def submit(i):
        nonlocal most
        future: Future = Future()
        waiting.add(future)
        most = max(most, len(waiting))
        if len(waiting) == 10 or i == 199:
            one = waiting.pop()
            one.set_result(i)
        return future

    parts = in_flight(inputs(), submit, window=10)
    worker = threading.Thread(target=lambda: next(parts))
    worker.start()
    while worker.is_alive():
        for one in list(waiting):
            waiting.discard(one)
            one.set_result(0)
        worker.join(0.001)
    assert most <= 10
    assert len(taken) <= MOST + 20
    parts.close()


@pytest.mark.parametrize("at", [0, 1, 30, PART + 5])
def test_what_was_answered_before_a_failure_comes_out_before_the_error(at):
    found, error = gathered(in_flight(range(200), lambda i: failed() if i == at else done(i), window=1))
    assert str(error) == "gone"
    assert [pair for part in found for pair in part] == [(i, i) for i in range(at)]


def test_answers_that_come_together_with_a_failure_are_not_lost():
    found, error = gathered(in_flight(range(8), lambda i: failed() if i % 2 else done(i), window=8))
    assert error is not None
    assert sorted(pair for part in found for pair in part) == [(i, i) for i in range(0, 8, 2)]


@pytest.mark.parametrize("error", [EngineError("no ids"), KeyboardInterrupt()])
def test_what_was_answered_before_the_inputs_failed_comes_out_as_well(error):
    def inputs():
        yield from range(5)
        raise error

    found, ended = gathered(in_flight(inputs(), done, window=1))
    assert ended is error
    assert [pair for part in found for pair in part] == [(i, i) for i in range(5)]


def test_what_is_still_asked_for_when_it_ends_is_cancelled():
    asked = [failed(), *(Future() for _ in range(7))]
    found, error = gathered(in_flight(range(8), asked.__getitem__, window=8))
    assert (found, str(error)) == ([], "gone")
    assert all(future.cancelled() for future in asked[1:])


def test_a_failure_is_heard_at_once_and_not_with_the_next_answers(monkeypatch):
    monkeypatch.setattr(answers, "SECONDS", 1000.0)
    asked = {i: Future() for i in range(80)}
    parts = in_flight(range(80), asked.__getitem__, window=80)
    threading.Timer(0.05, lambda: asked[3].set_exception(EngineError("gone"))).start()
    with pytest.raises(EngineError, match="gone"):
        next(parts)


def test_a_whole_part_does_not_wait_long_for_more(monkeypatch):
    monkeypatch.setattr(answers, "SECONDS", 0.05)
    asked = {i: done(i) for i in range(PART)} | {i: Future() for i in range(PART, PART + 9)}
    parts = in_flight(range(PART + 9), asked.__getitem__, window=PART + 9)
    assert next(parts)[0] == list(range(PART))
    parts.close()


def test_a_consumer_that_stops_cancels_what_is_in_flight(monkeypatch):
    monkeypatch.setattr(answers, "SECONDS", 0.05)
    asked = {i: done(i) for i in range(PART)} | {i: Future() for i in range(PART, PART + 9)}
    parts = in_flight(range(PART + 9), asked.__getitem__, window=PART + 9)
    next(parts)
    parts.close()
    assert all(asked[i].cancelled() for i in range(PART, PART + 9))


def test_each_part_is_checked_before_it_comes_out():
    log = []
    for asked, _ in in_flight(range(2 * MOST + 3), done, window=1, check=lambda: log.append("check")):
        log.append(len(asked))
    assert log == ["check", "check", MOST, "check", MOST, "check", 3]


def test_a_part_that_fails_its_check_does_not_come_out():
    checks = iter([None, None, EngineError("another model")])

    def check():
        if (error := next(checks)) is not None:
            raise error

    found, error = gathered(in_flight(range(3 * MOST), done, window=1, check=check))
    assert str(error) == "another model"
    assert [len(part) for part in found] == [MOST]


def test_chunks_are_full_but_for_the_last():
    assert list(chunks(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]


# -- the same model ---------------------------------------------------------------------------------------------------


class Server:
    """Says in turn what it is given."""

    class info:  # noqa: N801
        name, model = "server", "m"

    def __init__(self, *canaries: Canary) -> None:
        self._canaries = iter(canaries)

    def canary(self, token_ids):
        assert token_ids.tolist() == [1, 2, 3]
        return next(self._canaries)


def canary(*values, version="", ids=(1, 2, 3)) -> Canary:
    return Canary(token_ids=ids, weight_version=version, logprobs={str(i): v for i, v in enumerate(values)})


BEGAN = canary(-1.0, -2.0, -3.0, -4.0)
NOISE = canary(-1.05, -1.9, -3.1, -4.0)
OTHER = canary(-1.5, -1.0, -3.9, -4.2)


def test_noise_is_the_same_model_and_a_mean_beyond_the_limit_is_not():
    assert BEGAN.mean_abs_d(NOISE) == pytest.approx(0.0625)
    assert BEGAN.is_of_the_model_of(NOISE)
    assert BEGAN.mean_abs_d(OTHER) == pytest.approx(0.65)
    assert not BEGAN.is_of_the_model_of(OTHER)
    just = canary(*(value + MOST_MEAN_D * 0.999 for value in BEGAN.logprobs.values()))
    assert BEGAN.is_of_the_model_of(just)


def test_one_odd_token_among_many_is_noise_and_a_list_of_other_tokens_is_another_model():
    long = canary(*[-1.0] * 40)
    assert long.is_of_the_model_of(canary(*[-1.0] * 39, -5.0))
    other = Canary(token_ids=(1, 2, 3), logprobs={f"next {i}": -1.0 for i in range(4)})
    assert not BEGAN.is_of_the_model_of(other)
    assert not BEGAN.is_of_the_model_of(canary())


def test_a_server_that_says_nothing_comparable_is_not_accused():
    assert canary().is_of_the_model_of(BEGAN)


@pytest.mark.parametrize("of_versions", [True, False])
def test_another_model_under_one_name_is_an_error(of_versions):
    same = SameModel(Server(NOISE, OTHER), BEGAN, of_versions=of_versions)
    same.check()
    with pytest.raises(EngineError, match=r"another model answers .* differ by 0.65 nats .*--resume"):
        same.check()


def test_a_named_version_is_no_fault_where_it_is_kept_beside_the_numbers():
    first = canary(-1.0, -2.0, version="a")
    second, again = canary(-5.0, -6.0, version="b"), canary(-5.01, -6.0, version="b")
    same = SameModel(Server(second, again, canary(-1.0, -2.0, version="b")), first, of_versions=True)
    same.check()
    same.check()
    with pytest.raises(EngineError, match="another model"):
        same.check()


def test_a_named_version_is_an_error_where_a_reading_is_of_one_model():
    same = SameModel(Server(canary(-1.0, version="b")), canary(-1.0, version="a"), of_versions=False)
    with pytest.raises(EngineError, match="its weights were 'a' when this reading began and are 'b' now"):
        same.check()


def test_an_engine_that_cannot_become_another_is_not_asked():
    SameModel(object(), None, of_versions=False).check()
    assert canary_of(object(), np.asarray([1, 2, 3])) is None
    assert canary_of(Server(), None) is None
