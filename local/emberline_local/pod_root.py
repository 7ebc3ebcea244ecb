"""The first program of a container on a process node: makes a root of its own, then becomes the container's program.

    python -I -S pod_root.py PARENT_PID ROOT WORKING_DIR (MODE SOURCE TARGET)... -- PROGRAM [ARGUMENT...]

The root is a tmpfs with the host's top-level entries bound in and the volumes bound over them, in a mount namespace of
its own: no mount point is made on the host, and everything vanishes with the last process. As an ordinary user the same
happens in a user namespace that maps the user to itself. MODE is `rw` or `ro`. The process id stays, so signals and
exit codes are the program's. Exits 125 when the root cannot be made, 127 when the program cannot be started.

Every start of a container pays for what is imported here: only modules that cost nothing.
"""

# pathlib would double the time of a start, and becoming a program is the purpose.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH115, PTH120, PTH123, PTH211, S606

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SIGKILL, _SIGPIPE, _SIGXFSZ = 9, 13, 25
# A remount in a user namespace must repeat the flags that the mount is locked to (statvfs bit, mount bit).
_LOCKED_FLAGS = ((2, 2), (4, 4), (8, 8), (1024, 1024), (2048, 2048), (4096, 1 << 21))

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _check(
        _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]),
        f"mount {source} at {target}",
    )


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _own_namespaces() -> bool:
    """Enter a mount namespace, as an ordinary user inside a user namespace; tells whether it is one."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _check(_libc.unshare(_CLONE_NEWNS), "a mount namespace")
    else:
        _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "a user namespace (are they disabled on this machine?)")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    return user != 0


def _bind_host(root: str) -> None:
    """Bind what the host has at its top level; /run is left out, so that no socket of a host's daemon is in reach."""
    for entry in os.scandir("/"):
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), root + entry.path)
        elif entry.name == "run":
            os.mkdir(root + entry.path)
        elif entry.is_dir():
            os.mkdir(root + entry.path)
            _mount(entry.path, root + entry.path, None, _MS_BIND | _MS_REC)


def _nearest_existing(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _make_room(base: str, root: str, target: str, overlaid: set[str], is_user: bool) -> None:
    """Let a mount point that the host does not have be made inside the pod alone: an overlay over its nearest parent."""
    above = _nearest_existing(target)
    hidden = any(above == other or above.startswith(other + "/") for other in overlaid)
    if above in ("/", target) or above.startswith("/run") or hidden:
        return
    upper, work = f"{base}/u{len(overlaid)}", f"{base}/w{len(overlaid)}"
    os.mkdir(upper)
    os.mkdir(work)
    options = f"lowerdir={above},upperdir={upper},workdir={work}" + (",userxattr" if is_user else "")
    beneath = _mount_points_beneath(above)
    _mount("overlay", root + above, "overlay", 0, options)
    overlaid.add(above)
    for point in beneath:
        _mount(point, root + point, None, _MS_BIND | _MS_REC)


def _mount_points_beneath(folder: str) -> list[str]:
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file]
    return sorted(point for point in points if point.startswith(folder + "/"))


def _mount_volumes(base: str, root: str, mounts: Iterable[tuple[str, str, str]], is_user: bool) -> None:
    overlaid: set[str] = set()
    placed: set[str] = set()
    read_only: list[str] = []
    for mode, source, wanted in mounts:
        # A link such as /var/run -> /run would lead out of the new root.
        target = os.path.realpath(wanted)
        inside = root + target
        # What lies under another volume is made in that volume, as a kubelet would.
        if not any(target.startswith(other + "/") for other in placed):
            _make_room(base, root, target, overlaid, is_user)
        if os.path.isdir(source):
            os.makedirs(inside, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            if not os.path.exists(inside):
                _write(inside, "")
        _mount(source, inside, None, _MS_BIND | _MS_REC)
        placed.add(target)
        if mode == "ro":
            read_only.append(inside)
    for inside in read_only:
        present = os.statvfs(inside).f_flag
        kept = sum(mount_bit for stat_bit, mount_bit in _LOCKED_FLAGS if present & stat_bit)
        _mount("none", inside, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)


def _parse(arguments: list[str]) -> tuple[int, str, str, list[tuple[str, str, str]], list[str]]:
    parent, base, working_dir, *rest = arguments
    end = rest.index("--")
    mounts = [(rest[i], rest[i + 1], rest[i + 2]) for i in range(0, end, 3)]
    return int(parent), base, working_dir, mounts, rest[end + 1 :]


def main(arguments: list[str]) -> int:
    """Become the program; returns only when that fails."""
    parent, base, working_dir, mounts, program = _parse(arguments)
    try:
        is_user = _own_namespaces()
        _mount("pod", base, "tmpfs", 0, "size=64m,mode=0755")
        root = base + "/r"
        os.mkdir(root)
        _bind_host(root)
        _mount_volumes(base, root, mounts, is_user)
        os.chroot(root)
        os.chdir(working_dir)
        # After the last change of credentials, which would clear it.
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
        _check(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "the parent's death signal")
        if os.getppid() != parent:
            return 125  # the node died before it could be watched
    except OSError as error:
        sys.stderr.write(f"emberline-local: cannot make the container's root: {error}\n")
        return 125
    # Python ignores these two, and a program inherits that.
    _libc.signal(_SIGPIPE, None)
    _libc.signal(_SIGXFSZ, None)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"emberline-local: cannot start {program[0]!r}: {error}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
