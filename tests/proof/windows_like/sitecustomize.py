"""What Windows refuses, refused on Linux to the code of hetero_lab: an audit hook and a few wraps.

Python loads this file by its name in every process whose PYTHONPATH has this directory, so workers
and programs that a test starts are held to it, too. The code that is responsible for a call is the
nearest one outside of the standard library: OpenVINO, other packages, tests and Python itself may
do what they like.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import stat
import subprocess
import sys
import sysconfig
import threading
from typing import Any

PACKAGE = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../../hetero_lab")) + os.sep
_TESTS = os.path.join(os.path.dirname(PACKAGE[:-1]), "tests") + os.sep
_HERE = __file__
_LIBRARY = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_PACKAGES = ("site-packages", "dist-packages")
ENCODING = "cp1252"
# Not resource, whose use stands behind a question for the system: pyright proves that.
POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "syslog", "termios", "tty"}
_ELSEWHERE = ("/dev", "/etc", "/proc", "/run", "/sys")  # directories that Windows lacks
_NAME = re.compile(r'[^<>:"|?*\\\x00-\x1f]*[^<>:"|?*\\\x00-\x1f. ]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.I)
_LONGEST = 259
_FORK_SERVER = "hetero_lab.fork_server"
_inside = threading.local()
refused: list[str] = []  # what was refused since the last look, for a report


def _responsible() -> str:
    """Return the file of the nearest code outside of the standard library."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        is_library = name.startswith(_LIBRARY) and not any(p in name for p in _PACKAGES)
        if name.startswith("<frozen importlib"):  # a module that is imported answers for itself
            return ""
        if not (is_library or name == _HERE or name.startswith("<frozen")):
            return os.path.abspath(name)
        frame = frame.f_back
    return ""


def is_of_hetero_lab() -> bool:
    """Tell whether hetero_lab makes a call, perhaps through the standard library."""
    return _responsible().startswith(PACKAGE)


def _refuse(error: BaseException, what: str) -> None:
    refused.append(what)
    raise error


def _path(path: Any, folder: Any = -1) -> str:
    """Return an absolute path of an event's arguments; empty for a descriptor."""
    if isinstance(path, int) or path is None:
        return ""
    name = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    return os.path.abspath(name)


def _is_elsewhere(path: str) -> bool:
    if path == os.devnull:  # NUL there
        return False
    return any(path == folder or path.startswith(folder + "/") for folder in _ELSEWHERE)


def _check_there(path: str) -> None:
    if path and _is_elsewhere(path) and is_of_hetero_lab():
        _refuse(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path), f"read {path}")


def _check_name(path: str) -> None:
    """Refuse to make a file that has no name there, or another one that is the same there."""
    if not path or _is_elsewhere(path) or path == os.devnull:
        return
    folder, name = os.path.split(path)
    is_name = _NAME.fullmatch(name) and not _RESERVED.fullmatch(name)
    if not is_name or len(path) > _LONGEST:
        if is_of_hetero_lab():
            _refuse(OSError(errno.EINVAL, "Invalid argument", path), f"make {path}")
        return
    if _exists(path) or not os.path.isdir(folder):
        return
    alike = [other for other in os.listdir(folder) if other.lower() == name.lower()]
    if alike and is_of_hetero_lab():
        _refuse(FileExistsError(errno.EEXIST, f"as {alike[0]}", path), f"make {path}")


def _held() -> set[tuple[int, int]]:
    """Return device and inode of the files that this process has open or mapped."""
    held = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            there = _stat(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if stat.S_ISREG(there.st_mode):
            held.add((there.st_dev, there.st_ino))
    with _open("/proc/self/maps", "rb") as file:
        for line in file:
            device, inode = line.split(maxsplit=5)[3:5]
            major, minor = device.split(b":")
            held.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    return held


def _check_free(*paths: str) -> None:
    """Refuse to move, replace or remove files that are open or mapped, or directories of such."""
    there = [path for path in paths if path and _exists(path)]
    if not there or not is_of_hetero_lab():
        return
    held = _held()
    for path in there:
        files = [path]
        for parent, _, names in os.walk(path) if os.path.isdir(path) else ():
            files += [os.path.join(parent, name) for name in names]
        for file in files:
            found = _stat(file, follow_symlinks=False)
            if (found.st_dev, found.st_ino) in held:
                error = PermissionError(errno.EACCES, "Access is denied (it is in use)", path)
                _refuse(error, f"move, replace or remove {file}, which is in use")


def _exists(path: str) -> bool:
    try:
        _stat(path)
    except (OSError, ValueError):
        return False
    return True


def _on_open(path: Any, mode: str | None, flags: int) -> None:
    _check_there(_path(path))
    if flags & os.O_CREAT or (mode or "r")[0] in "wax":
        _check_name(_path(path))


def _on_mkdir(path: Any, _mode: int, folder: int) -> None:
    _check_there(_path(path, folder))
    _check_name(_path(path, folder))


def _on_rename(source: Any, target: Any, from_folder: int, to_folder: int) -> None:
    _check_name(_path(target, to_folder))
    _check_free(_path(source, from_folder), _path(target, to_folder))


def _on_link(*_: Any) -> None:
    if is_of_hetero_lab():
        _refuse(OSError(errno.EINVAL, "links need a privilege"), "a link")
    if "pytest" in sys.modules and _responsible().startswith(_TESTS):
        sys.modules["pytest"].skip("links need a privilege on Windows")


def _on_fork() -> None:
    if is_of_hetero_lab():
        _refuse(OSError(errno.ENOSYS, "there is no fork"), "fork")


def _on_popen(_program: Any, words: Any, *_: Any) -> None:
    if _FORK_SERVER in words:
        _on_fork()


def _on_dlopen(name: Any) -> None:
    if name is None and is_of_hetero_lab():
        _refuse(TypeError("a library needs a name"), "CDLL(None)")


_ON = {
    "open": _on_open,
    "os.listdir": lambda path: _check_there(_path(path)),
    "os.scandir": lambda path: _check_there(_path(path)),
    "os.mkdir": _on_mkdir,
    "os.remove": lambda path, folder: _check_free(_path(path, folder)),
    "os.rename": _on_rename,
    "os.link": _on_link,
    "os.symlink": _on_link,
    "os.fork": _on_fork,
    "os.forkpty": _on_fork,
    "subprocess.Popen": _on_popen,
    "ctypes.dlopen": _on_dlopen,
}


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event in _ON and not getattr(_inside, "hook", False):
        _inside.hook = True  # what it does itself is free
        try:
            _ON[event](*args)
        finally:
            _inside.hook = False


def _wrapped_stat(of: Any) -> Any:
    def wrapped(path: Any, *args: Any, **options: Any) -> Any:
        _check_there(_path(path))
        return of(path, *args, **options)

    return wrapped


def _wrapped_access(path: Any, mode: int, **options: Any) -> bool:
    try:
        _check_there(_path(path))
    except FileNotFoundError:
        return False
    return _access(path, mode, **options)


def _wrapped_import(name: str, scope: Any = None, *args: Any, **options: Any) -> Any:
    if name in POSIX_MODULES and str((scope or {}).get("__file__")).startswith(PACKAGE):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _import(name, scope, *args, **options)


def _wrapped_popen(self: Any, *args: Any, **options: Any) -> None:
    """Text is in the encoding of the system, which hetero_lab has to choose itself."""
    is_text = any(options.get(name) for name in ("text", "universal_newlines", "errors"))
    if is_text and options.get("encoding") is None:
        if is_of_hetero_lab():
            raise EncodingWarning("'encoding' argument not specified")
        options["encoding"] = ENCODING
    _popen(self, *args, **options)


def _wrapped_open(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
    encoding = args[1] if len(args) > 1 else options.get("encoding")
    if "b" not in mode and encoding in (None, "locale") and is_of_hetero_lab():
        raise EncodingWarning("'encoding' argument not specified")
    return _open(file, mode, *args, **options)


def encodable(stream: io.TextIOWrapper, text: str) -> None:
    """Raise UnicodeEncodeError for text that hetero_lab prints and the encoding cannot express."""
    if is_of_hetero_lab():
        text.encode(ENCODING, stream.errors or "strict")


if "_stat" not in globals():  # once, though it may be loaded under two names
    _stat, _access, _open, _import = os.stat, os.access, builtins.open, builtins.__import__
    _popen = subprocess.Popen.__init__


def install() -> None:
    """Hold this process to what Windows refuses."""
    if getattr(sys, "_windows_like", None):
        return
    sys._windows_like = sys.modules[__name__]  # type: ignore[attr-defined]
    sys.addaudithook(_hook)
    os.stat, os.lstat = _wrapped_stat(os.stat), _wrapped_stat(os.lstat)  # type: ignore[assignment]
    os.access = _wrapped_access  # type: ignore[assignment]
    builtins.__import__ = _wrapped_import
    builtins.open = io.open = _wrapped_open  # type: ignore[assignment]
    subprocess.Popen.__init__ = _wrapped_popen  # type: ignore[method-assign]


install()
