"""Stage folders: written aside, checksummed, published by one rename, refused when damaged.

In: a function that fills a folder. Out: the folder under its final name with `manifest.json` (stage, version,
config, fingerprints of the inputs, counts, size and sha256 of each file), written last. A folder without a manifest
does not exist for any reader. Also here: one run per folder (`lock`), and finding the newest good one of several
(`newest`). Not here: what is inside any stage's files.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remask.errors import DataError, DiskError, MissingInputError, OutputError, RemaskError, UnavailableError

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
_CHUNK = 1 << 20
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's renameat2


@dataclass(frozen=True)
class Artifact:
    """A published folder whose manifest was read and whose files have the sizes it says."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """What this artifact is, for whoever is made from it: the sha256 of its manifest's contents."""
        return self.manifest["fingerprint"]

    @property
    def counts(self) -> Mapping[str, Any]:
        return self.manifest["counts"]

    def path(self, name: str) -> Path:
        if name not in self.manifest["files"]:
            raise DataError(f"{self.folder}: has no file {name}; it holds {', '.join(sorted(self.manifest['files']))}")
        return self.folder / name


# ------------------------------------------------------------------------------------------------- writing


def publish(
    folder: Path,
    stage: str,
    fill: Callable[[Path], Mapping[str, Any] | None],
    *,
    config: Any = None,
    inputs: Mapping[str, str] | None = None,
    replace: bool = False,
) -> Artifact:
    """Fill a new folder through `fill` (which returns counts), then publish it whole or not at all.

    `fill` gets a folder beside the final one; what an earlier attempt left there is removed first.
    """
    aside = folder.with_name(f".{folder.name}.partial")
    with output_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _restore(folder)
        if folder.exists() and not replace:
            raise OutputError(f"{folder}: exists already; choose another --out or remove it")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        counts = dict(fill(aside) or {})
        return publish_filled(aside, folder, stage, counts=counts, config=config, inputs=inputs)


def publish_filled(
    aside: Path,
    folder: Path,
    stage: str,
    *,
    counts: Mapping[str, Any],
    config: Any = None,
    inputs: Mapping[str, str] | None = None,
) -> Artifact:
    """Checksum and sync a filled folder, write its manifest last and rename it into place (same file system)."""
    with output_errors(folder):
        (aside / MANIFEST).unlink(missing_ok=True)  # of an attempt that was killed just before the rename
        files = {}
        for path in sorted(p for p in aside.rglob("*") if p.is_file()):
            sync_file(path)
            files[path.relative_to(aside).as_posix()] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
        manifest: dict[str, Any] = {
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


def _exchange(one: Path, two: Path) -> bool:
    """Two paths change places in one step; False where the system or the file system has no such step."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return bool(rename) and rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(two), _RENAME_EXCHANGE) == 0


def _fingerprint(manifest: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in manifest.items() if k != "fingerprint"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all: written aside, synced, renamed."""
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.partial")
    with output_errors(path):
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        _sync_folder(path.parent)


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


# ------------------------------------------------------------------------------------------------- reading


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
    for name, facts in manifest["files"].items():
        file = folder / name
        if not file.is_file() or file.is_symlink():
            raise DataError(f"{file}: is missing")
        if (size := file.stat().st_size) != facts["size"]:
            raise DataError(f"{file}: has {size:,} bytes, should have {facts['size']:,}: damaged")
        if verify and sha256_of(file) != facts["sha256"]:
            raise DataError(f"{file}: does not match its checksum: damaged")
    return Artifact(folder, manifest)


def _manifest_problem(manifest: Any) -> str:
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


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """One run at a time in a folder; the lock goes with the process, however it ends."""
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UnavailableError(
                f"{folder}: another remask is running there; wait for it or choose another --out"
            ) from None
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
