"""The user's own functions, in the roles of `onepolicy conform`: each is found by its name."""

from __future__ import annotations

import inspect
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.integrations.callable.function import load_module, named_in
from onepolicy.signal.conformance.general import GENERAL
from onepolicy.signal.conformance.roles import ROLES, Role
from onepolicy.signal.conformance.subject import Function, Subject
from onepolicy.visible import visible


def subject(target: str, *, role: str | None) -> Subject:
    """Functions of a module that are named as roles, or the one that `MODULE:FUNCTION` names, as `role`.

    Raises: UsageError if there is none, or it cannot be called as its role is; EngineError if importing fails.
    """
    where, colon, name = target.rpartition(":")
    module = load_module(where if colon else target, named=repr(target))
    if colon and not name:
        raise UsageError(f"{target} names no function. Write {target}FUNCTION, or {where} for all named as roles.")
    if not colon:
        if role is not None:
            raise UsageError(f"--as {role} is for one function, and {target} names none. Write {target}:FUNCTION.")
        names = {one: one for one in ROLES if callable(named_in(module, one))}
    else:
        names = {name: _role_of(name, role, target)}
    if not names:
        raise UsageError(f"{target} has no function that is named as a role. {roles_told()}")
    functions = [_function(module, one, ROLES[as_role], target) for one, as_role in names.items()]
    version = visible(str(named_in(module, "__version__") or ""))
    return Subject(name=visible(target), version=version, functions=functions, differences=GENERAL)


def roles_told() -> str:
    """The roles and how each is called, in lines."""
    return "Roles, and what they are called with:\n" + "\n".join(f"  {one.signature}" for one in ROLES.values())


def _role_of(name: str, role: str | None, target: str) -> str:
    found = name if role is None else role
    if found not in ROLES:
        what = f"there is no role {found!r}" if role is not None else f"{name} is no role, so {target} needs --as ROLE"
        raise UsageError(f"{what}. {roles_told()}")
    return found


def _function(module: Any, name: str, role: Role, target: str) -> Function:
    call: Any = named_in(module, name)
    if not callable(call):
        raise UsageError(f"{target}: the module has no function {name!r}.")
    function = Function(role=role.name, label=name, call=call)
    try:
        signature = inspect.signature(call)
    except (ValueError, TypeError):  # some functions written in C have none, and some objects a false one
        return function
    try:
        signature.bind(*range(role.parameters))
    except TypeError as error:
        raise UsageError(
            f"{target}: {name}{signature} cannot be called with {role.parameters} arguments by position ({error}). "
            f"As {role.name} it is called with {role.signature.partition('(')[2].rstrip(')')}."
        ) from error
    return function
