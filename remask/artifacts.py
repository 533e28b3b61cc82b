"""Stage folders: written aside, checksummed, published by one rename, refused when damaged.

In: a function that fills a folder. Out: the folder under its final name with `manifest.json` (stage, version,
config, fingerprints of the inputs, counts, size and sha256 of each file), written last. A folder without a manifest
does not exist for any reader. Also here: files that are never overwritten (`put_new`, `write_page`), work that goes on
after a stop (`work_on`), one run per folder (`lock`), and finding the newest good one of several (`newest`). Not here:
what is inside any stage's files.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from remask.errors import (
    ConfigError,
    DataError,
    DiskError,
    MissingInputError,
    OutputError,
    RemaskError,
    UnavailableError,
)
from remask.schema import Json, Values

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
_CHUNK = 1 << 20
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
_AT_FDCWD, _RENAME_NOREPLACE, _RENAME_EXCHANGE = -100, 1, 2  # of Linux's renameat2
# Stands in every page that remask writes: such a page may be replaced, any other file may not.
PAGE_MARK = '<meta name="generator" content="remask">'


@dataclass(frozen=True)
class Artifact:
    """A published folder whose manifest was read and whose files have the sizes it says."""

    folder: Path
    manifest: Values

    @property
    def fingerprint(self) -> str:
        """What this artifact is, for whoever is made from it: the sha256 of its manifest's contents."""
        return self.manifest["fingerprint"]

    @property
    def counts(self) -> Values:
        return self.manifest["counts"]

    def path(self, name: str) -> Path:
        if name not in self.manifest["files"]:
            raise DataError(f"{self.folder}: has no file {name}; it holds {', '.join(sorted(self.manifest['files']))}")
        return self.folder / name


# ------------------------------------------------------------------------------------------------- writing


def publish(
    folder: Path,
    stage: str,
    fill: Callable[[Path], Values | None],
    *,
    config: object = None,
    inputs: Mapping[str, str] | None = None,
    replace: bool = False,
    key: str | None = None,
) -> Artifact:
    """Fill a new folder through `fill` (which returns counts), then publish it whole or not at all.

    `fill` gets a folder beside the final one; what an earlier attempt left there is removed first. `key`: of everything
    that went in. A folder that was published under the same key is the result: of a command that was ended before it
    could say so, or that is given again.
    """
    aside = folder.with_name(f".{folder.name}.partial")
    if key is not None:
        inputs = {**(inputs or {}), "key": key}
        if (done := _published(folder, stage, key)) is not None:
            return done
    with output_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _restore(folder)
        if not replace:
            check_free(folder)
        with _alone(aside):
            counts = dict(fill(aside) or {})
            return publish_filled(aside, folder, stage, counts=counts, config=config, inputs=inputs)


def _published(folder: Path, stage: str, key: str) -> Artifact | None:
    """What stands there, if it is whole and was made under this key."""
    try:
        done = open_artifact(folder, stage, verify=True)
    except RemaskError:
        return None
    return done if done.manifest.get("inputs", {}).get("key") == key else None


@contextlib.contextmanager
def _alone(aside: Path) -> Iterator[None]:
    """An empty folder for one process. What a killed one left there goes; what a living one fills stays its own."""
    if aside.is_dir():
        with _held(aside):
            shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
    except FileExistsError:
        raise _in_use(aside) from None
    with _held(aside):
        yield


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """A lock on a folder itself, which is no file in it and goes with it when it is renamed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise _in_use(folder) from None
    finally:
        os.close(handle)


def _in_use(folder: Path) -> UnavailableError:
    return UnavailableError(f"{folder}: another remask is running there; wait for it or choose another --out")


def publish_filled(
    aside: Path,
    folder: Path,
    stage: str,
    *,
    counts: Values,
    config: object = None,
    inputs: Mapping[str, str] | None = None,
) -> Artifact:
    """Checksum and sync a filled folder, write its manifest last and rename it into place (same file system)."""
    with output_errors(folder):
        (aside / MANIFEST).unlink(missing_ok=True)  # of an attempt that was killed just before the rename
        files = {}
        for path in sorted(p for p in aside.rglob("*") if p.is_file()):
            sync_file(path)
            files[path.relative_to(aside).as_posix()] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
        manifest: Json = {
            "stage": stage,
            "version": MANIFEST_VERSION,
            "config": config,
            "inputs": dict(inputs or {}),
            "counts": dict(counts),
            "files": files,
        }
        manifest["fingerprint"] = _fingerprint(manifest)
        write_json(aside / MANIFEST, manifest)
        for inner in sorted(p for p in aside.rglob("*") if p.is_dir()):
            _sync_folder(inner)
        _sync_folder(aside)
        if folder.exists():
            _replace(aside, folder)
        else:
            aside.rename(folder)
        _sync_folder(folder.parent)
        return Artifact(folder, manifest)


def _replace(aside: Path, folder: Path) -> None:
    """The new folder under the name of the old one, which is there at every moment where the system can exchange two
    names; elsewhere a kill between two renames leaves the old one as `.NAME.retired`, for `_restore`."""
    retired = _retired(folder)
    shutil.rmtree(retired, ignore_errors=True)
    if _exchange(aside, folder):
        aside.rename(retired)
    else:
        folder.rename(retired)
        aside.rename(folder)
    shutil.rmtree(retired, ignore_errors=True)


def _retired(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.retired")


def _restore(folder: Path) -> None:
    """Bring back the old folder where a kill came between the two renames of `_replace`."""
    if not folder.exists() and _retired(folder).is_dir():
        _retired(folder).rename(folder)


def _exchange(first: Path, second: Path) -> bool:
    """Two paths change places in one step; False where the system or the file system has no such step."""
    return _renameat2(first, second, _RENAME_EXCHANGE) == 0


def _renameat2(first: Path, second: Path, flags: int) -> int:
    """0, or the number of what the system says; ENOSYS where it has no such call."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return errno.ENOSYS
    failed = rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), flags)
    return ctypes.get_errno() if failed else 0


def _fingerprint(manifest: Values) -> str:
    text = json.dumps({k: v for k, v in manifest.items() if k != "fingerprint"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: Path, value: object) -> None:
    """Whole or not at all: written aside, synced, renamed."""
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.partial")
    with output_errors(path):
        with _alone_in(aside) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            aside.rename(path)
        _sync_folder(path.parent)


@contextlib.contextmanager
def _alone_in(path: Path) -> Iterator[BinaryIO]:
    """An empty file to write, once no other process writes it; what a killed one left in it goes."""
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if os.fstat(file.fileno()).st_ino == os.stat(path).st_ino:
                break
        except FileNotFoundError:
            pass  # the other one has renamed it: it is a finished file now
        file.close()
    with file:
        file.truncate(0)
        yield file


# ------------------------------------------------------------------------------------- files that stay as they are


def check_free(out: Path) -> None:
    """Refuse a name that is taken: what another command or a person made is never overwritten."""
    if out.exists() or out.is_symlink():
        raise OutputError(f"{out}: exists already; choose another --out or remove it")


def claim(folder: Path, mark: str) -> None:
    """A folder for one command's results is new or empty, or has the file `mark` by which that command knows its own;
    one that holds anything else is not written into."""
    if not (folder / mark).exists() and (folder.exists() or folder.is_symlink()):
        with output_errors(folder):
            others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if others:
            more = ", …" if len(others) > 3 else ""
            raise OutputError(f"{folder}: holds something else ({', '.join(others[:3])}{more}); choose another --out")


def put_new(whole: Path, out: Path) -> None:
    """A finished file under its final name, synced, in one step; refused where that name was taken meanwhile."""
    with output_errors(out):
        sync_file(whole)
        refused = _renameat2(whole, out, _RENAME_NOREPLACE)
        if refused == errno.EEXIST:
            check_free(out)
        elif refused:  # a file system without this step
            check_free(out)
            whole.rename(out)
        _sync_folder(out.parent)


def write_page(out: Path, page: str) -> None:
    """A page with `PAGE_MARK`, whole or not at all; only another such page is replaced."""
    assert PAGE_MARK in page
    if out.exists() or out.is_symlink():
        with output_errors(out):
            is_page = out.is_file() and PAGE_MARK.encode() in out.read_bytes()[:4096]
        if not is_page:
            raise OutputError(f"{out}: exists already and is no page of remask; choose another --out or remove it")
    with output_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, page.encode())


@contextlib.contextmanager
def output_errors(place: Path) -> Iterator[None]:
    """Turn what the system says while writing into one clear line with its exit code."""
    try:
        yield
    except OSError as error:
        name = error.filename or place
        if error.errno in _FULL_DISK:
            raise DiskError(
                f"{name}: {error.strerror}; free some space there and run the same command again"
            ) from error
        raise OutputError(f"{name}: cannot be written: {error.strerror}") from error


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


# ------------------------------------------------------------------------------- work that goes on after a stop


def begin(work: Path, key: object, made: Sequence[str], name: str = "identity.json") -> bool:
    """Claim the folders `made` inside `work` for what follows from `key` (plain values) alone. Whether they hold what
    an earlier attempt left for the same key; what was left for another one is removed first."""
    record, key = work / name, json.loads(json.dumps(key))
    is_same = _kept_key(record) == key
    with output_errors(work):
        if not is_same:
            record.unlink(missing_ok=True)
        for folder in (work / folder for folder in made):
            if not is_same:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(exist_ok=True)
    if not is_same:
        write_json(record, key)
    return is_same


def _kept_key(record: Path) -> object:
    """The key that an earlier attempt wrote down, None where there was none."""
    try:
        return json.loads(record.read_bytes())
    except (OSError, ValueError):
        return None


def finish(record: Path, facts: object, files: Sequence[Path] = ()) -> None:
    """Write, last of all, that a piece of work is done: plain facts about it and the checksums of what it made."""
    with output_errors(record):
        sums = {os.path.relpath(file, record.parent): sha256_of(file) for file in files}
    write_json(record, {"facts": facts, "sha256": sums})


def finished(record: Path, *, verify: bool = True) -> Any | None:
    """The facts of a piece of work that was finished and whose files are all as they were, be it after a power
    failure; None if it must be done again."""
    try:
        content = json.loads(record.read_bytes())
        sums = content["sha256"] if verify else {}
        is_whole = all(sha256_of(record.parent / name) == digest for name, digest in sums.items())
        return content["facts"] if is_whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def once(record: Path, make: Callable[[], Json]) -> Json:
    """What `make` gives, or gave when this was done before."""
    if finished(record) is None:
        with output_errors(record):
            record.parent.mkdir(parents=True, exist_ok=True)
        finish(record, make())
    facts = finished(record)
    assert facts is not None
    return facts


# ------------------------------------------------------------------------------------------------- opening


def open_artifact(folder: Path, stage: str, *, verify: bool = False) -> Artifact:
    """Open a published folder. Sizes are always checked; `verify` reads every byte and checks the sha256 too."""
    if not folder.is_dir():
        raise MissingInputError(f"{folder}: no such folder")
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{folder}: has no {MANIFEST}: not finished, or not made by remask") from None
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: damaged: {error}") from error
    problem = _manifest_problem(manifest)
    if problem:
        raise DataError(f"{path}: damaged: {problem}")
    if manifest["stage"] != stage:
        raise DataError(f"{folder}: holds {manifest['stage']}, but {stage} is needed here")
    if manifest["version"] != MANIFEST_VERSION:
        raise DataError(f"{folder}: layout version {manifest['version']}, this remask reads {MANIFEST_VERSION}")
    for name, expected in manifest["files"].items():
        file = folder / name
        if not file.is_file() or file.is_symlink():
            raise DataError(f"{file}: is missing")
        if (size := file.stat().st_size) != expected["size"]:
            raise DataError(f"{file}: has {size:,} bytes, should have {expected['size']:,}: damaged")
        if verify and sha256_of(file) != expected["sha256"]:
            raise DataError(f"{file}: does not match its checksum: damaged")
    return Artifact(folder, manifest)


def _manifest_problem(manifest: object) -> str:
    if not isinstance(manifest, dict) or not {"stage", "version", "files", "fingerprint", "counts"} <= manifest.keys():
        return "not a manifest"
    if manifest["fingerprint"] != _fingerprint(manifest):
        return "does not match its own checksum"
    for name in manifest["files"]:
        if name.startswith("/") or ".." in Path(name).parts:
            return f"names a file outside its folder: {name}"
    return ""


def newest(parent: Path, pattern: str, stage: str, warn: Callable[[str], None]) -> Artifact | None:
    """The last folder by name that verifies byte by byte; damaged ones are set aside, with a word."""
    for folder in sorted(parent.glob(pattern), reverse=True):
        try:
            return open_artifact(folder, stage, verify=True)
        except RemaskError as error:
            aside = folder.with_name(f".damaged-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            warn(f"{error}; set aside as {aside.name}, going back to the one before")
    return None


# -------------------------------------------------------------------------------------------- work that goes on


@dataclass
class Work:
    """What is done so far of a file that is on its way, in a folder of its own. `result`: it is all done."""

    folder: Path
    out: Path
    result: Json | None = None

    def path(self, name: str) -> Path:
        return self.folder / name

    def piece(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}"

    def pieces(self) -> list[Path]:
        """Those that are done, in order."""
        return sorted(self.folder.glob("part-*"))

    def keep(self, number: int, data: bytes) -> None:
        """A piece that need not be done again."""
        write_bytes(self.piece(number), data)

    def finish(self, whole: Path, result: Values, beside: Mapping[Path, Path] | None = None) -> None:
        """The finished file under its name, and `beside` it others that belong to it, which come first. Their own old
        ones are replaced; the file itself is new."""
        with output_errors(self.out):
            sync_file(whole)
            sums = {os.path.relpath(self.out, self.folder): sha256_of(whole)}  # as `finished` will look for it
            write_json(self.path(_RESULT), {"facts": dict(result), "sha256": sums})
            for source, target in (beside or {}).items():
                sync_file(source)
                source.replace(target)
        put_new(whole, self.out)
        self.result = dict(result)


_KEY, _RESULT = "key.json", "result.json"


@contextlib.contextmanager
def work_on(out: Path, key: Values) -> Iterator[Work]:
    """Work on a new file that goes on after a stop, by one process at a time.

    Pieces are kept in `.NAME.work` beside it, under `key`: what makes two commands the same one. The same command finds
    them again; another one is refused once there is something to lose. A file that stands there already is refused
    unless this very work put it there and was stopped before it could say so."""
    folder = out.with_name(f".{out.name}.work")
    if not folder.is_dir():
        check_free(out)
    with lock(folder):
        work = Work(folder, out)
        try:
            _begin(work, json.loads(json.dumps(key)))
            yield work
        finally:
            if work.result is not None or not work.pieces():
                shutil.rmtree(folder, ignore_errors=True)  # done, or nothing to lose


def _begin(work: Work, key: Values) -> None:
    from remask.config import differences  # not above: see Tokens.first

    known = _kept_key(work.path(_KEY))
    changed = differences(known or {}, key) if known is not None or work.pieces() else []
    if changed and work.pieces():
        raise ConfigError(
            f"{work.out}: another command began this file; choose another --out or remove {work.folder}:",
            *(f"{name}: {json.dumps(old)} -> {json.dumps(new)}" for name, old, new in changed),
        )
    if work.out.exists() or work.out.is_symlink():
        work.result = None if changed else finished(work.path(_RESULT))
        if work.result is not None:
            return
        check_free(work.out)
    if known is None or changed:
        write_json(work.path(_KEY), key)


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """One run at a time in a folder; the lock goes with the process, however it ends."""
    handle = _lock_file(folder)
    try:
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Processes that want to make the same thing in a folder come here together: one makes it, the others wait."""
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _lock_file(folder: Path) -> int:
    """The open file that holds the lock. Whoever held it before may have removed the folder meanwhile: then what was
    locked is no longer what stands there, and it is tried again."""
    while True:
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == os.stat(folder / ".lock").st_ino:
                return handle
        except FileNotFoundError:
            pass
        except OSError:
            os.close(handle)
            raise _in_use(folder) from None
        os.close(handle)
