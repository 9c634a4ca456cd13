"""Putting a subject's functions through the cases of their roles."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence

from onepolicy.errors import EngineError
from onepolicy.records.conform import Answer, Conformance, Explanation, Planted, Tried
from onepolicy.signal.conformance.case import Case, Observed
from onepolicy.signal.conformance.cases import CASES
from onepolicy.signal.conformance.compare import difference
from onepolicy.signal.conformance.roles import ROLES
from onepolicy.signal.conformance.subject import Call, Difference, Function, Subject
from onepolicy.visible import visible

_LONGEST_MESSAGE = 160


def run(subject: Subject) -> Conformance:
    """Every function in every case of its role, in the order of the roles, then the roles that it has none for.

    What a function raises is its answer: a trainer that is given such a batch would stop.
    Raises: EngineError if a reference does not work any more.
    """
    started = time.perf_counter()
    tried: list[Tried] = []
    for name in ROLES:
        functions = [one for one in subject.functions if one.role == name]
        cases = [case for case in CASES if case.role == name]
        tried += [one for function in functions for one in _answers(function, cases, subject.differences)]
        if not functions and name in subject.absent:
            tried.append(_absent(name, subject.absent[name]))
    named = {(one.role, one.explanation) for one in tried}
    roles = {one.role for one in tried if one.function}
    return Conformance(
        subject=subject.name,
        version=subject.version,
        explained=subject.explained,
        tried=tuple(tried),
        cases=tuple(_planted(case) for case in CASES if case.role in roles),
        explanations=tuple(_explained(one) for one in subject.differences if (one.role, one.name) in named),
        seconds=time.perf_counter() - started,
    )


def _answers(function: Function, cases: Sequence[Case], differences: Sequence[Difference]) -> Iterator[Tried]:
    known = [
        one for one in differences if one.role == function.role and (not one.labels or function.label in one.labels)
    ]
    for case in cases:
        yield _answer(function, case, known)


def _answer(function: Function, case: Case, known: Sequence[Difference]) -> Tried:
    about = {"role": case.role, "function": function.label, "case": case.name}
    try:
        found = _observed(case, function.call)
    except NotImplementedError as declined:
        return Tried(**about, answer=Answer.NOT_TRIED, found=_said(declined) or "the function declines this batch")
    text = _difference(found, _expected(case))
    if not text:
        return Tried(**about, answer=Answer.AGREES)
    open_to = (one for one in known if not one.cases or case.name in one.cases)
    explained = next((one for one in open_to if not _difference(found, _observed(case, one.like))), None)
    if explained is None:
        return Tried(**about, answer=Answer.WRONG, found=text)
    answer = Answer.WRONG if explained.is_wrong else Answer.DIFFERS
    return Tried(**about, answer=answer, found=text, explanation=explained.name)


def _observed(case: Case, call: Call) -> Observed | str:
    """What is observed, or what was raised. Raises: NotImplementedError as the function does."""
    try:
        return case.observe(call)
    except (NotImplementedError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever a stranger's function raises is its answer
        return f"raised {type(error).__name__}: {_said(error)}".rstrip(": ")


def _expected(case: Case) -> Observed:
    try:
        return case.observe(ROLES[case.role].reference if case.truth is None else lambda *_: case.truth)
    except Exception as error:
        raise EngineError(
            f"{case.role}, {case.name}: our own reference raised {type(error).__name__}: {_said(error)}. Nothing was "
            "decided. What was imported may have replaced a part of torch: run this on a module that does not."
        ) from error


def _said(error: BaseException) -> str:
    """What it says, in one line that can be shown; that of a stranger may not be a string."""
    text = str(traceback.TracebackException(type(error), error, None))
    return visible(" ".join(text.split()))[:_LONGEST_MESSAGE]


def _difference(found: Observed | str, expected: Observed | str) -> str:
    if isinstance(found, str):
        return "" if found == expected else found
    if isinstance(expected, str):
        return f"does not raise, should have {expected}"
    return difference(found, expected)


def _absent(role: str, why: str) -> Tried:
    return Tried(role=role, function="", case="", answer=Answer.NOT_TRIED, found=why)


def _planted(case: Case) -> Planted:
    return Planted(role=case.role, name=case.name, planted=case.planted, otherwise=case.otherwise)


def _explained(one: Difference) -> Explanation:
    return Explanation(role=one.role, name=one.name, why=one.why, example=one.example, prints=one.prints)
