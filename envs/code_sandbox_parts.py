"""The two parts that are played in the sandbox: *solve* holds the solution, *check* holds the tests.

The solution's process never sees a test or a result: it is asked for values, call by call, over a wire, and answers
with plain data. The process with the tests never runs a line of the solution: what it compares are numbers, texts and
containers of its own making. So nothing that a solution does to its interpreter (leaving early, printing, replacing
``assert``, ``check`` or ``==``) can turn a wrong value into a right one.

Loaded by the script :mod:`provgym.envs.code_sandbox_child`; standard library only. A message is its length in 4 bytes
and JSON.
"""

from __future__ import annotations

import builtins
import json
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

MAX_MESSAGE_BYTES = 16 * 2**20
MAX_DETAIL_CHARACTERS = 300
_MAX_DEPTH = 200


class WireClosed(Exception):
    """The other side is gone."""


class SolutionError(RuntimeError):
    """The solution raised something that is no built-in exception, or answered with what is no plain data."""


def play(job: Mapping[str, Any]) -> None:
    """Play the part that a job names."""
    if job["part"] == "solve":
        solve(job["wire"], job["program"], job["entry_point"])
    else:
        check(job)


# --- plain data over a wire


def encode(value: object, depth: int = 0) -> list[Any]:
    """Return plain data as tagged JSON lists; instances of subclasses become what they are made of.

    Raises:
        TypeError: If it is no plain data.

    Example:
        >>> decode(encode({(1, 2.5): [None, True, "a", {b"b"}]}))
        {(1, 2.5): [None, True, 'a', {b'b'}]}
    """
    if depth > _MAX_DEPTH:
        raise TypeError(f"a value is nested more than {_MAX_DEPTH} deep")
    if value is None or isinstance(value, (bool, str)):
        return ["plain", value if value is None or isinstance(value, bool) else str.__str__(value)]
    if isinstance(value, int):
        return ["int", hex(value)]  # no limit on digits
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, complex):
        return ["complex", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, dict):
        return ["dict", [[encode(key, depth + 1), encode(each, depth + 1)] for key, each in value.items()]]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return [kind.__name__, [encode(each, depth + 1) for each in value]]
    raise TypeError(f"a {type(value).__name__} is no plain data")


def decode(data: Any) -> Any:
    """Reverse :func:`encode`.

    Raises:
        ValueError: If it is nothing that ``encode`` returns.
    """
    try:
        tag, *rest = data
        if tag == "plain" and (rest[0] is None or isinstance(rest[0], (bool, str))):
            return rest[0]
        if tag == "dict":
            return {decode(key): decode(each) for key, each in rest[0]}
        return _DECODERS[tag](*rest)
    except (TypeError, KeyError, IndexError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"no encoded value: {error}") from error


_DECODERS: dict[str, Any] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "bytes": bytes.fromhex,
    "list": lambda items: [decode(each) for each in items],
    "tuple": lambda items: tuple(decode(each) for each in items),
    "set": lambda items: {decode(each) for each in items},
    "frozenset": lambda items: frozenset(decode(each) for each in items),
}


def send(wire: int, message: list[Any]) -> None:
    """Write one message.

    Raises:
        WireClosed: If nobody reads it.
    """
    data = json.dumps(message).encode("ascii")
    left = memoryview(struct.pack(">I", len(data)) + data)
    try:
        while left:
            left = left[os.write(wire, left) :]
    except OSError as error:
        raise WireClosed from error


def receive(wire: int) -> Any:
    """Read one message.

    Raises:
        WireClosed: If there is none to come.
        ValueError: If it is too long or no JSON.
    """
    (size,) = struct.unpack(">I", _read(wire, 4))
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"an answer of {size} bytes is longer than {MAX_MESSAGE_BYTES}")
    data = _read(wire, size)
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("an answer is nested too deep") from error


def _read(wire: int, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        try:
            more = os.read(wire, size - len(found))
        except OSError as error:
            raise WireClosed from error
        if not more:
            raise WireClosed
        found += more
    return bytes(found)


# --- the solution's part


def solve(wire: int, program: str, entry_point: str) -> None:
    """Run a program, then answer calls of one of its functions until the wire closes."""
    send(wire, ["ready"])
    namespace: dict[str, Any] = {"__name__": "solution"}
    problem = _run(program, namespace)
    try:
        while True:
            _, args, kwargs = receive(wire)
            send(wire, problem or _answer(namespace, entry_point, decode(args), decode(kwargs)))
    except (WireClosed, ValueError):
        return


def _run(program: str, namespace: dict[str, Any]) -> list[Any] | None:
    try:
        exec(compile(program, "solution.py", "exec"), namespace)
    except BaseException as error:  # a solution that leaves is one that raised
        return _problem(error)
    return None


def _answer(namespace: dict[str, Any], entry_point: str, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    try:
        return ["value", encode(namespace[entry_point](*args, **kwargs))]
    except BaseException as error:
        return _problem(error)


def _problem(error: BaseException) -> list[Any]:
    try:
        said = str(error)[:MAX_DETAIL_CHARACTERS]
    except BaseException:  # a __str__ of the solution's own
        said = ""
    return ["raised", type(error).__name__, said]


# --- the tests' part


class Candidate:
    """Stands in the tests for the function: every call is answered by the other process.

    Attributes:
        calls: How often it was called.
        is_gone: Whether the other process ended.
    """

    def __init__(self, wire: int) -> None:
        self._wire = wire
        self.calls = 0
        self.is_gone = False

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Return what the solution returns.

        Raises:
            Exception: Of the same built-in type as the solution's.
            SolutionError: For any other, for those that end loops, and for answers that are no plain data.
            WireClosed: If the other process ended.
        """
        self.calls += 1
        try:
            send(self._wire, ["call", encode(list(args)), encode(kwargs)])
            reply = receive(self._wire)
        except WireClosed:
            self.is_gone = True
            raise
        except ValueError as error:
            raise SolutionError(str(error)) from error
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == "raised":
            raise _exception(str(reply[1]), str(reply[2]))
        if isinstance(reply, list) and len(reply) == 2 and reply[0] == "value":
            try:
                return decode(reply[1])
            except ValueError as error:
                raise SolutionError(str(error)) from error
        raise SolutionError("the solution's process answered with something else than a value")


_ENDS_LOOPS = (StopIteration, StopAsyncIteration)  # in a test's map() these would end the loop, and no test would fail


def _exception(name: str, said: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS_LOOPS):
        try:
            return kind(said)
        except TypeError:  # such as UnicodeDecodeError, which takes five arguments
            return SolutionError(f"{name}: {said}")
    return SolutionError(f"{name}: {said}")


def check(job: Mapping[str, Any]) -> None:
    """Run the tests against the other process, and report over the result pipe: ``begun``, then one line of JSON."""
    if receive(job["wire"]) != ["ready"]:
        return
    os.write(job["result"], b"begun\n")
    outcome, detail = _tested(Candidate(job["wire"]), job)
    detail = detail[:MAX_DETAIL_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
    report = {"nonce": job["nonce"], "outcome": outcome, "detail": detail, "is_apart": job["is_apart"]}
    os.write(job["result"], json.dumps(report).encode("ascii") + b"\n")


def _tested(candidate: Candidate, job: Mapping[str, Any]) -> tuple[str, str]:
    """Return outcome and detail."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(job["prompt"], "prompt.py", "exec"), namespace)  # helpers that the tests may call
        namespace[job["entry_point"]] = candidate
        exec(compile(job["tests"], "tests.py", "exec"), namespace)
        tests = namespace["check"]
    except Exception as error:  # the tests are foreign code too: whatever they raise is told, nothing is hidden
        detail = f"{type(error).__name__}: {error}"
        if not candidate.calls:
            return "unusable", detail
    else:
        detail = _problem_of(tests, candidate)
    if candidate.is_gone:
        return "crashed", "the solution's process ended"
    if detail:
        return "failed", detail
    return ("passed", "") if candidate.calls else ("unusable", "the tests never call the function")


def _problem_of(tests: Callable[[Candidate], object], candidate: Candidate) -> str:
    try:
        tests(candidate)
    except Exception as error:  # a failed assert, or whatever a value made the tests raise
        return f"{type(error).__name__}: {error}"
    return ""
