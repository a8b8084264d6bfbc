"""The child's side of the sandbox: a guard that confines one process, waits for its end, and leaves none behind.

Run as a script by a fresh ``python -I``; it imports the standard library alone. The guard never runs foreign code: it
forks the *inmate*, which gives up all that it can before it plays its part (:mod:`provgym.envs.code_sandbox_parts`).

Where the system allows it, the inmate has namespaces of its own: no network, no other process in sight, a file system
that is read-only but for one empty folder; as root it also becomes a user that nobody else is. Where the system does
not, sockets can't be imported, and limits are all there is.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

CPU_USED_UP = 77
"""Exit status of a guard whose inmate used all of its CPU seconds."""

_NEW_USER, _NEW_REST = 0x10000000, 0x20000000 | 0x40000000 | 0x08000000  # CLONE_NEWUSER; NEWPID, NEWNET, NEWIPC
_NEW_MOUNTS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 1
_SET_SUBREAPER, _SET_DEATH_SIGNAL, _SET_DUMPABLE, _NO_NEW_PRIVILEGES = 36, 1, 4, 38  # options of prctl(2)
_KEYCTL, _JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine), 1
_FOLDER = b"mode=700,size=64m,nr_inodes=4096"  # of the inmate's own: what it writes is memory, and gone with it
_SHARED_MEMORY = ("shmall", "msgmni")  # of its own namespace: pages and queues that outlive a process, under no limit
_CAPABILITIES_3 = 0x20080522
_POLL_S = 0.02
_FIRST_UID, _NOBODY = 1_000_000_000, 65_534


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def main() -> None:
    """Guard one inmate, as the job on standard input says."""
    job: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    parts = ModuleType("code_sandbox_parts")
    SourceFileLoader(parts.__name__, job["parts"]).exec_module(parts)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)  # whoever the inmate leaves behind becomes the guard's child
    job["is_apart"] = job["may_unshare"] and _unshare(libc)
    uid = _FIRST_UID + os.getpid()  # alone with its limit on processes, and no owner of anything
    inmate = os.fork()
    if inmate == 0:
        os.close(job["stop"])
        _confine(libc, job, uid)
        parts.play(job)
        os._exit(0)
    for name in ("wire", "result"):
        if job[name] is not None:
            os.close(job[name])
    is_killed, cpu_s = _watch(inmate, job["stop"])
    # The kernel counts by ticks where it kills and exactly where it reports: these differ on a busy machine.
    os._exit(CPU_USED_UP if is_killed and cpu_s >= 0.5 * job["limits"]["cpu_s"] else 0)


def _watch(inmate: int, stop: int) -> tuple[bool, float]:
    """Wait until the inmate ends or the parent closes the pipe (also by dying), and end all.

    Returns:
        Whether the inmate was killed, and the CPU seconds that it used.
    """
    while not select.select([stop], [], [], _POLL_S)[0]:
        done, status, usage = os.wait4(inmate, os.WNOHANG)
        if done:
            break
    else:
        os.kill(inmate, signal.SIGKILL)
        _, status, usage = os.wait4(inmate, 0)
    _end_all()
    is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return is_killed, usage.ru_utime + usage.ru_stime


def _end_all() -> None:
    """Kill children until none is left; an orphan becomes our child before its parent can be waited for."""
    while True:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended meanwhile
            found += [int(name)] if parent == own else []
    return found


def _unshare(libc: ctypes.CDLL) -> bool:
    """Ask for namespaces without processes and network of others, for children; return whether they were granted."""
    if os.geteuid() == 0 and libc.unshare(_NEW_REST) == 0:
        return True
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_USER | _NEW_REST) != 0:
        return False
    if uid != 0:  # a user without a name there can make no file in a folder of its own
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with suppress(OSError), open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    return True


def _confine(libc: ctypes.CDLL, job: dict[str, Any], uid: int) -> None:
    """Give up what can be given up; from here on the process may be told to run anything."""
    os.setsid()
    if _KEYCTL is not None:
        libc.syscall(_KEYCTL, _JOIN_SESSION_KEYRING, None)  # the parent's keys stay the parent's
    if job["is_apart"]:
        _hide_the_rest(libc, job["folder"], job["library"])
    else:  # no wall: code that wants to can undo it, as docs/humaneval.md and a warning say
        sys.modules["_socket"] = sys.modules["socket"] = None  # type: ignore[assignment]
    os.chdir(job["folder"])
    if os.geteuid() == 0 and not _become(uid, job["folder"]):
        libc.unshare(_NEW_USER)  # root in name only: every capability is gone
    elif os.geteuid() != 0:  # in a namespace of its own it could make all places writable again
        libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)())
    _limit(job["limits"], job["is_apart"])
    libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # of its guard
    libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)  # nobody of the same user reads its memory or its open files
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def _hide_the_rest(libc: ctypes.CDLL, folder: str, library: str) -> None:
    """Show only the namespace's own processes, and make all but one folder read-only; each step as far as it goes."""
    if libc.unshare(_NEW_MOUNTS) != 0 or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        return
    libc.mount(b"proc", b"/proc", b"proc", 0, None)
    for name in _SHARED_MEMORY:
        with suppress(OSError), open(f"/proc/sys/kernel/{name}", "w", encoding="ascii") as file:
            file.write("0")
    own = os.fsencode(folder)
    if not _mount_own(libc, own):
        libc.mount(own, own, None, _MS_BIND, None)
    standard = os.path.dirname(os.__file__)  # shown where any user may read it, such as not below /root
    if libc.mount(os.fsencode(standard), os.fsencode(library), None, _MS_BIND, None) == 0:
        _import_from(standard, library)
    for place, depth, attributes in (
        (b"/", _AT_RECURSIVE, _MountAttributes(_ATTR_RDONLY, 0, 0, 0)),
        (own, 0, _MountAttributes(0, _ATTR_RDONLY, 0, 0)),
    ):
        libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, place, depth, ctypes.byref(attributes), ctypes.sizeof(attributes))


def _mount_own(libc: ctypes.CDLL, folder: bytes) -> bool:
    """Put a folder of bounded size in place of the one on the disk; return whether files can be made in it."""
    if libc.mount(b"tmpfs", folder, b"tmpfs", _MS_NOSUID | _MS_NODEV, _FOLDER) != 0:
        return False
    try:
        os.mkdir(probe := os.path.join(folder, b"probe"))
        os.rmdir(probe)
    except OSError:  # a user that has no name in its namespace
        libc.umount2(folder, _MNT_DETACH)
        return False
    return True


def _import_from(standard: str, library: str) -> None:
    """Let later imports, also those of packages that are loaded already, find the library at its new place."""
    sys.path[:] = [library, os.path.join(library, "lib-dynload")]
    sys.path_importer_cache.clear()
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if places is not None:
            module.__path__ = [place.replace(standard, library, 1) for place in places]


def _become(uid: int, folder: str) -> bool:
    """Stop being root, where other users can read the standard library; return whether it is done."""
    if not all(_is_open_to_all(place) for place in sys.path if os.path.isdir(place)):
        return False
    for number in (uid, _NOBODY):
        try:
            os.chown(folder, number, number)
            os.setgroups([])
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
        except OSError:
            continue  # no such user in this container
        return True
    return False


def _is_open_to_all(folder: str) -> bool:
    place = os.path.realpath(folder)
    while os.stat(place).st_mode & 0o5 == 0o5:
        if place == "/":
            return True
        place = os.path.dirname(place)
    return False


def _limit(limits: dict[str, int], is_apart: bool) -> None:
    others = 0 if is_apart or os.geteuid() >= _FIRST_UID else _threads_of_user()
    for kind, value in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NPROC, others + limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def _threads_of_user() -> int:
    """Count what the limit on processes counts: all threads of this user."""
    count, own = 0, os.geteuid()
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == own:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has ended meanwhile
    return count


if __name__ == "__main__":
    main()
