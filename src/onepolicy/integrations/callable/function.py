"""The user's function: finding it, calling it, and keeping its traceback if it fails."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.callable.answers import logprobs_of
from onepolicy.integrations.callable.batch import Batch
from onepolicy.records.tokens import Float64

_KEPT_LINES = 16
"""of a traceback: the call that failed and a few around it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFunction:
    """A function that scores: `score(token_ids: list[list[int]]) -> list of 1-d arrays`.

    Array i has one entry for each token of sequence i: the natural logarithm of its probability given the
    tokens before it. The first entry is ignored. A function with a keyword `temperature` is given one.
    """

    name: str
    call: Callable[..., object]
    version: str = ""

    @property
    def takes_temperature(self) -> bool:
        """Whether it can score logits / temperature."""
        return "temperature" in inspect.signature(self.call).parameters

    def score(self, batch: Batch) -> list[Float64]:
        """One array [T] for each sequence. Raises EngineError if it fails or breaks its contract."""
        return logprobs_of(self.answer(batch), batch, name=self.name)

    def answer(self, batch: Batch) -> object:
        """Whatever it returns. Raises EngineError with the end of its traceback if it raises."""
        arguments = {"temperature": batch.temperature} if self.takes_temperature else {}
        return self.called([ids.tolist() for ids in batch.token_ids], label=batch.label, **arguments)

    def called(self, argument: object, *, label: str, **named: object) -> object:
        """Whatever it returns. label: what it is called on. Raises: EngineError likewise."""
        try:
            return self.call(argument, **named)
        except (Exception, SystemExit) as error:  # whatever a stranger's code raises is theirs to mend
            raise EngineError(f"{self.name} failed on {label}:\n{_end_of_traceback(error)}") from error

    def close(self) -> None:
        """Nothing is held."""


def load_function(target: str) -> UserFunction:
    """The function that `my_pkg.scoring:score` or `path/to/file.py:score` names.

    Dotted names are looked up in the working directory first, then where Python finds modules.
    Raises: UsageError if there is no such function, EngineError if importing its module fails.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(
            f"callable:{target} names no function. Write callable:my_pkg.scoring:score or "
            f"callable:path/to/file.py:score."
        )
    module = load_module(where, named=f"callable:{target}")
    function = named_in(module, name)
    if not callable(function):
        raise UsageError(f"callable:{target}: {where} has no function {name!r}. {_functions_of(module)}")
    return UserFunction(name=target, call=function, version=str(getattr(module, "__version__", "")))


def load_module(where: str, *, named: str) -> ModuleType:
    """The module `my_pkg.scoring`, or the file `path/to/file.py` as one. named: what a person wrote, for messages.

    Raises: UsageError if there is no such file or module, EngineError if importing it fails.
    """
    is_file = where.endswith(".py")
    if is_file and not Path(where).is_file():
        raise UsageError(f"{named}: there is no file {where} in {os.getcwd()}.")
    if not is_file and not all(where.split(".")):  # importlib asks for a package, or for a name
        raise UsageError(f"{named} names no module. Write my_pkg.scoring, or path/to/file.py.")
    try:
        return _from_file(Path(where).resolve()) if is_file else _from_name(where)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a stranger's module raises is theirs to mend
        if isinstance(error, ModuleNotFoundError) and f"{where}.".startswith(f"{error.name}."):
            raise UsageError(
                f"{named}: there is no module {where} in {os.getcwd()} or on sys.path. {_next(where)}"
            ) from error
        raise EngineError(f"{named}: importing {where} failed:\n{_end_of_traceback(error)}") from error


def named_in(module: ModuleType, name: str) -> object:
    """What a module has of this name; None if nothing. Raises: EngineError if its own `__getattr__` fails."""
    try:
        return getattr(module, name, None)
    except (Exception, SystemExit) as error:  # as above
        raise EngineError(f"{module.__name__}: looking up {name} failed:\n{_end_of_traceback(error)}") from error


def _next(where: str) -> str:
    """What the name of a module that is not there may have been meant for: a function of one, or a file."""
    parent, _, last = where.rpartition(".")
    if last in getattr(sys.modules.get(parent), "__dict__", {}):
        return f"Did you mean {parent}:{last}?"
    is_file = Path(f"{where}.py").is_file()
    return f"Did you mean {where}.py?" if is_file else "Check the name, or give a file: path/to/file.py."


def _from_name(name: str) -> ModuleType:
    _look_first_in(os.getcwd())
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    """The file as a module, imported once for each path. Its neighbours can be imported, as from a script."""
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    _look_first_in(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _look_first_in(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _functions_of(module: ModuleType) -> str:
    found = [name for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"]
    return f"It has: {', '.join(found)}." if found else "It has no functions."


def _end_of_traceback(error: BaseException) -> str:
    """The last lines, without the frame of the caller here."""
    own = error.__traceback__
    theirs = own.tb_next if own is not None and own.tb_next is not None else own
    lines = "".join(traceback.format_exception(type(error), error, theirs)).rstrip().splitlines()
    return "\n".join(f"  {line}" for line in lines[-_KEPT_LINES:])
