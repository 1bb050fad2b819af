"""Fetch files out of wheels, once, with pip and the configuration that pip has here.

A file is in the cache complete and with the right hash, or not at all: it is extracted from the
wheel into a temporary directory inside the cache, checked, and renamed. A lock on the cache makes
a second process wait for the first one's download instead of repeating it, and distinguishes
leftovers of a killed process from files in use.

pip downloads, and not a library that takes URLs, because only pip knows the index, the mirror, the
proxy and the certificates that are configured here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import platformdirs
from filelock import FileLock

from hetero_lab.errors import SampleError

CACHE_VARIABLE = "HETERO_LAB_CACHE"
QUIET_S = 2.0  # a download that takes less shows no bar
_TEMPORARY = ".fetch-"
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


@dataclass(frozen=True)
class Member:
    """A file inside a wheel: its path there, the SHA-256 of its content, its size."""

    path: str
    sha256: str
    n_bytes: int

    @property
    def file_name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class Wheel:
    """A wheel of a package, and the members that are taken out of it.

    ``file_name`` is that of one fixed wheel. Only data is taken out of it, so the wheel for Linux
    and CPython 3.11 serves every machine.
    """

    package: str
    version: str
    file_name: str
    n_bytes: int
    members: tuple[Member, ...]

    @property
    def pip_arguments(self) -> tuple[str, ...]:
        """The arguments of ``python -m pip`` that download this wheel."""
        platforms = self.file_name.removesuffix(".whl").split("-")[-1].split(".")
        options = [part for name in platforms if name != "any" for part in ("--platform", name)]
        return (
            *("download", "--no-deps", "--only-binary", ":all:"),
            *("--implementation", "cp", "--python-version", "3.11", *options),
            f"{self.package}=={self.version}",
        )


def cache_dir() -> Path:
    """Return ``HETERO_LAB_CACHE``, else the user's directory for our files; it need not exist."""
    if path := os.environ.get(CACHE_VARIABLE):
        return Path(path).expanduser().absolute()
    return platformdirs.user_cache_path("hetero_lab", appauthor=False)


def cached_path(wheel: Wheel, member: Member) -> Path:
    """Return where a member is or will be in the cache."""
    return cache_dir() / f"{wheel.package}-{wheel.version}" / member.file_name


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def fetch(wheel: Wheel, member: Member) -> Path:
    """Return a member's path in the cache; fetch its wheel first if necessary.

    The member is copied from the installed package if that has the same file, else taken out of
    a wheel in the directory ``wheels`` of the cache, else out of one that pip downloads. All
    members of the wheel are kept, not just this one.

    SampleError, if the package is not available, its content is not the expected one, or the
    cache cannot be written. The message says how to proceed by hand.
    """
    target = cached_path(wheel, member)
    if file_digest(target) == member.sha256:
        return target
    with _cache_errors(), _temporary_directory() as temporary:
        if file_digest(target) == member.sha256:  # another process may have been faster
            return target
        if _copy_installed(wheel, member, temporary / "installed"):
            _move(temporary / "installed", target)
            return target
        archive = cache_dir() / "wheels" / wheel.file_name
        if not archive.is_file():
            archive = _download(wheel, temporary)
        paths = {m: _take_out(archive, m, temporary) for m in wheel.members}
        for each, path in paths.items():
            _move(path, cached_path(wheel, each))
    return target


def keep(path: Path, content: bytes) -> None:
    """Write a file into the cache, whole or not at all; SampleError if it cannot be written."""
    with _cache_errors(), _temporary_directory() as temporary:
        (temporary / "content").write_bytes(content)
        _move(temporary / "content", path)


def keep_directory(target: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write a directory of the cache, which appears whole or not at all."""
    with _cache_errors(), _temporary_directory() as temporary:
        draft = temporary / "directory"
        draft.mkdir(mode=0o700)
        fill(draft)
        for path in draft.iterdir():
            path.chmod(0o700 if path.is_dir() else 0o600)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.replace(draft, target)


def by_hand(wheel: Wheel) -> str:
    """Return instructions for downloading a wheel by hand, for a message."""
    command = " ".join(("python -m pip", *wheel.pip_arguments))
    return (
        f"By hand, where there is a network: `{command}`; then put {wheel.file_name} into "
        f"{cache_dir() / 'wheels'} and try again."
    )


@contextlib.contextmanager
def _cache_errors() -> Iterator[None]:
    """Turn errors of the file system into a SampleError that names the way out."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            fact = f"There is no space left for the cache {cache_dir()}"
        else:
            fact = f"The cache {cache_dir()} cannot be written ({error.strerror or error})"
        message = f"{fact}. Make room there or set {CACHE_VARIABLE} to another directory."
        raise SampleError(message) from error


@contextlib.contextmanager
def _temporary_directory() -> Iterator[Path]:
    """Lock the cache, remove leftovers of killed processes, and make a temporary directory."""
    cache = cache_dir()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # On a file system without locks, leftovers may belong to another process.
        with contextlib.suppress(NotImplementedError):
            stack.enter_context(FileLock(cache / ".lock", mode=0o600))
            for leftover in cache.glob(f"{_TEMPORARY}*"):
                shutil.rmtree(leftover, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=cache))
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        yield temporary


def _move(path: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o600)
    os.replace(path, target)


def _copy_installed(wheel: Wheel, member: Member, target: Path) -> bool:
    """Copy the member from the installed package, whatever its version, if it is the same."""
    try:
        installed = importlib.metadata.distribution(wheel.package).locate_file(member.path)
    except importlib.metadata.PackageNotFoundError:
        return False
    if file_digest(Path(str(installed))) != member.sha256:
        return False
    shutil.copyfile(str(installed), target)
    return file_digest(target) == member.sha256


def _take_out(archive: Path, member: Member, directory: Path) -> Path:
    """Take a member out of a wheel and check it."""
    target = directory / f"member-{member.sha256}"
    try:
        with zipfile.ZipFile(archive) as contents:
            is_right = contents.getinfo(member.path).file_size == member.n_bytes
            if is_right:  # else it may unpack to far more than it should
                with contents.open(member.path) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError) as error:
        message = f"{archive.name} is not the wheel it should be: it has no sound {member.path}."
        raise SampleError(message) from error
    if not is_right or file_digest(target) != member.sha256:
        raise SampleError(
            f"{member.path} of {archive.name} is not the file it should be: its SHA-256 is not "
            f"{member.sha256}. Nothing was kept. Is the package index that pip uses here a copy "
            f"with changed files, or is the wheel in {cache_dir() / 'wheels'} broken?"
        )
    return target


def _download(wheel: Wheel, temporary: Path) -> Path:
    """Let pip download a wheel into a temporary directory."""
    check_space(wheel)
    wheels = temporary / "wheels"
    for directory in (wheels, temporary / "pip"):
        directory.mkdir()
    log = temporary / "pip.log"
    command = [sys.executable or "python", "-m", "pip", *wheel.pip_arguments, "--dest", str(wheels)]
    # pip's own temporary files go here too: the bar counts them, and they are removed together.
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary / "pip"))
    quiet = dict.fromkeys(("PIP_NO_INPUT", "PIP_DISABLE_PIP_VERSION_CHECK"), "1")
    safe = {"PYTHONSAFEPATH": "1"}  # or `-m` would look for pip in the current directory first
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **places, **quiet, **safe},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
    except OSError as error:
        message = f"There is no Python interpreter to run pip with. {by_hand(wheel)}"
        raise SampleError(message) from error
    try:
        _wait(process, wheel, temporary)
    finally:
        if process.poll() is None:  # interrupted
            process.kill()
            process.wait()
    archives = sorted(wheels.glob("*.whl"))
    if process.returncode == 0 and archives:
        return archives[0]
    output = log.read_text("utf-8", errors="replace")
    if "No space left on device" in output or "Errno 28" in output:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise SampleError(
        f"pip could not download {wheel.package} {wheel.version}{_reason(output)}. {by_hand(wheel)}"
    )


def _wait(process: subprocess.Popen[bytes], wheel: Wheel, temporary: Path) -> None:
    """Wait for pip; show a bar of the bytes that have arrived if that takes long."""
    from tqdm.auto import tqdm

    with tqdm(
        total=wheel.n_bytes,
        desc=f"{wheel.package} {wheel.version}",
        unit="B",
        unit_scale=True,
        delay=QUIET_S,
        leave=False,
    ) as bar:
        while True:
            try:
                process.wait(timeout=0.2)
                return
            except subprocess.TimeoutExpired:
                # pip copies the finished download once more, so the sum is capped at the whole.
                places = (temporary / "pip", temporary / "wheels")
                arrived = min(sum(map(_n_bytes_below, places)), wheel.n_bytes)
                bar.update(max(arrived - bar.n, 0))


def _n_bytes_below(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def check_space(wheel: Wheel) -> None:
    """Raise OSError where the disk is too full for a wheel."""
    # pip has the wheel twice for a moment, and the members are taken out beside it.
    needed = 2 * wheel.n_bytes + sum(member.n_bytes for member in wheel.members)
    if shutil.disk_usage(cache_dir()).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reason(output: str) -> str:
    """Return the last error in pip's output, for a message."""
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    if "No module named pip" in output:
        return " (this Python has no pip: `python -m ensurepip` installs it)"
    if "connection broken by" in output:
        return " (the package index could not be reached)"
    if not errors:
        return ""
    text = "".join(c for c in errors[-1].removeprefix("ERROR: ") if c.isprintable())
    return f" ({text[:300]})"
