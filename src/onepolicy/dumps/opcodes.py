"""What each opcode of a pickle does to the machine of `pickles.py`. Source: pickletools of Python."""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onepolicy.errors import DumpError

if TYPE_CHECKING:
    from onepolicy.dumps.pickles import Machine

MAX_MARKS = 1000
"""groups that are open at once; a recording has about ten"""
MAX_INT_BYTES = 64
"""of one whole number"""
_INTS = {0x4B: (1, struct.Struct("<B")), 0x4D: (2, struct.Struct("<H")), 0x4A: (4, struct.Struct("<i"))}
_FLOAT = struct.Struct(">d")
_U4, _U8, _I4 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<i")


class StopPickleError(Exception):
    """The opcode that ends a pickle."""

    def __init__(self, found: object) -> None:
        self.found = found


def _ints(machine: Machine) -> None:
    data, at, push = machine.data, machine.at - 1, machine.stack.append
    form = _INTS.get(data[at])
    while form is not None:
        push(form[1].unpack_from(data, at + 1)[0])
        at += form[0] + 1
        form = _INTS.get(data[at])
    machine.at = at


def _floats(machine: Machine) -> None:
    data, at, push, unpack = machine.data, machine.at - 1, machine.stack.append, _FLOAT.unpack_from
    while data[at] == 0x47:
        push(unpack(data, at + 1)[0])
        at += 9
    machine.at = at


def _stop(machine: Machine) -> None:
    raise StopPickleError(machine.pop())


def _proto(machine: Machine) -> None:
    version = machine.take(1)[0]
    if not 2 <= version <= 5:
        raise DumpError(f"a pickle of protocol {version}; 2 to 5 are read")


def _frame(machine: Machine) -> None:
    machine.take(8)  # the length of a frame helps who reads from a stream


def _mark(machine: Machine) -> None:
    if len(machine.marks) >= MAX_MARKS:
        raise DumpError(f"the pickle is nested deeper than {MAX_MARKS} levels")
    machine.count()
    machine.marks.append(machine.stack)
    machine.stack = []


def _pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()


def _pop_mark(machine: Machine) -> None:
    machine.pop_mark()


def _dup(machine: Machine) -> None:
    machine.count()
    machine.stack.append(machine.stack[-1])


def _long(read: Callable[[Machine], int]) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        width = read(machine)
        if width > MAX_INT_BYTES:
            raise DumpError(f"a whole number of {width} bytes; a recording has none beyond {MAX_INT_BYTES}")
        machine.stack.append(int.from_bytes(machine.take(width), "little", signed=True))

    return push


def _text(read: Callable[[Machine], int], encoding: str) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        machine.stack.append(machine.take(read(machine)).decode(encoding))

    return push


def _blob(read: Callable[[Machine], int], kind: Callable[[bytes], object]) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        machine.stack.append(kind(machine.take(read(machine))))

    return push


def _width(form: struct.Struct) -> Callable[[Machine], int]:
    return lambda machine: machine.number(form)


def _constant(value: object) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


def _empty(kind: Callable[[], object]) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        machine.count()
        machine.stack.append(kind())

    return push


def _tuple(length: int) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        machine.count()
        stack = machine.stack
        if len(stack) < length:
            raise IndexError
        stack[-length:] = [tuple(stack[-length:])]

    return push


def _tuple_since_mark(machine: Machine) -> None:
    machine.count()
    found = tuple(machine.pop_mark())
    machine.stack.append(found)


def _append(machine: Machine) -> None:
    _extend(machine, [machine.pop()])


def _appends(machine: Machine) -> None:
    _extend(machine, machine.pop_mark())


def _extend(machine: Machine, entries: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not list:
        raise DumpError(f"the pickle appends to {_named(target)}, which is no list")
    target.extend(entries)


def _setitem(machine: Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _update(machine, [key, value])


def _setitems(machine: Machine) -> None:
    _update(machine, machine.pop_mark())


def _update(machine: Machine, pairs: list[Any]) -> None:
    target = machine.stack[-1]
    entries = target if type(target) is dict else machine.names.entries(target)
    if entries is None or len(pairs) % 2:
        raise DumpError(f"the pickle sets entries of {_named(target)}, which is no dict")
    for at in range(0, len(pairs), 2):
        machine.check_key(pairs[at])
        entries[pairs[at]] = pairs[at + 1]


def _additems(machine: Machine) -> None:
    members = machine.pop_mark()
    target = machine.stack[-1]
    if type(target) is not set:
        raise DumpError(f"the pickle adds members to {_named(target)}, which is no set")
    target.update(_checked(machine, members))


def _frozenset(machine: Machine) -> None:
    machine.count()
    members = machine.pop_mark()
    machine.stack.append(frozenset(_checked(machine, members)))


def _checked(machine: Machine, members: list[Any]) -> list[Any]:
    for member in members:
        machine.check_key(member)
    return members


def _get(read: Callable[[Machine], int]) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        key = read(machine)
        if key not in machine.memo:
            raise DumpError(f"the pickle refers back to object {key}, which it does not have")
        machine.stack.append(machine.memo[key])

    return push


def _put(read: Callable[[Machine], int]) -> Callable[[Machine], None]:
    return lambda machine: machine.remember(read(machine))


def _memoize(machine: Machine) -> None:
    machine.remember(len(machine.memo))


def _line(machine: Machine) -> str:
    """A name up to the end of its line; none is longer than a few hundred characters."""
    head = bytes(machine.data[machine.at : machine.at + 1024])
    end = head.find(b"\n")
    if end < 0:
        raise DumpError(f"a name at byte {machine.at} of the pickle does not end")
    machine.at += end + 1
    return head[:end].decode("utf-8")


def _global(machine: Machine) -> None:
    module, name = _line(machine), _line(machine)
    machine.stack.append(machine.names.find(module, name))


def _stack_global(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if type(name) is not str or type(module) is not str:
        raise DumpError("the pickle asks for something whose name is no string")
    machine.stack.append(machine.names.find(module, name))


def _instance(machine: Machine) -> None:
    module, name = _line(machine), _line(machine)
    machine.names.find(module, name)
    _refuse(machine, 0x69)


def _reduce(machine: Machine) -> None:
    machine.count()
    args, found = machine.pop(), machine.pop()
    machine.stack.append(machine.names.call(machine, found, args))


def _newobj(machine: Machine) -> None:
    machine.count()
    args, found = machine.pop(), machine.pop()
    machine.stack.append(machine.names.make(found, args, {}))


def _newobj_ex(machine: Machine) -> None:
    machine.count()
    named, args, found = machine.pop(), machine.pop(), machine.pop()
    machine.stack.append(machine.names.make(found, args, named))


def _build(machine: Machine) -> None:
    state = machine.pop()
    machine.names.fill(machine, machine.stack[-1], state)


def _binpersid(machine: Machine) -> None:
    key = machine.pop()
    if machine.persistent is None:
        raise DumpError("the pickle refers to objects outside of it (persistent ids), and this is no torch file")
    machine.stack.append(machine.persistent(key))


def _unknown(machine: Machine) -> None:
    _refuse(machine, machine.data[machine.at - 1])


def _refuse(machine: Machine, opcode: int) -> None:
    known = {op.code: op for op in pickletools.opcodes}.get(chr(opcode))
    what = f"the opcode {known.name}" if known else f"the byte {opcode:#04x}, which is no opcode,"
    raise DumpError(
        f"{what} at byte {machine.at - 1} of the pickle is not read. Save plain data again with protocol 2 or later"
    )


def _named(found: object) -> str:
    return str(getattr(found, "name", type(found).__name__))[:80]


def _byte(machine: Machine) -> int:
    return machine.take(1)[0]


_u4, _u8 = _width(_U4), _width(_U8)
HANDLERS: list[Callable[[Machine], None]] = [_unknown] * 256
for _code, _handler in {
    b".": _stop, b"\x80": _proto, b"\x95": _frame, b"(": _mark, b"0": _pop, b"1": _pop_mark, b"2": _dup,
    b"N": _constant(None), b"\x88": _constant(True), b"\x89": _constant(False), b")": _constant(()),
    b"K": _ints, b"M": _ints, b"J": _ints, b"\x8a": _long(_byte), b"\x8b": _long(_width(_I4)), b"G": _floats,
    b"X": _text(_u4, "utf-8"), b"\x8c": _text(_byte, "utf-8"), b"\x8d": _text(_u8, "utf-8"),
    b"T": _text(_u4, "ascii"), b"U": _text(_byte, "ascii"),
    b"B": _blob(_u4, bytes), b"C": _blob(_byte, bytes), b"\x8e": _blob(_u8, bytes), b"\x96": _blob(_u8, bytearray),
    b"]": _empty(list), b"}": _empty(dict), b"\x8f": _empty(set),
    b"a": _append, b"e": _appends, b"s": _setitem, b"u": _setitems, b"\x90": _additems, b"\x91": _frozenset,
    b"t": _tuple_since_mark, b"\x85": _tuple(1), b"\x86": _tuple(2), b"\x87": _tuple(3),
    b"h": _get(_byte), b"j": _get(_u4), b"q": _put(_byte), b"r": _put(_u4), b"\x94": _memoize,
    b"c": _global, b"\x93": _stack_global, b"i": _instance, b"R": _reduce, b"\x81": _newobj, b"\x92": _newobj_ex,
    b"b": _build, b"Q": _binpersid,
}.items():  # fmt: skip
    HANDLERS[_code[0]] = _handler
