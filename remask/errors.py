"""What a user can do wrong or run into, each with the exit code that scripts rely on.

Raise the class that fits with one sentence: the value, the place, what is allowed, what to do. The command line
prints that sentence and exits with the code; `--debug` shows the traceback. Our own mistakes are `assert`s.
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RemaskError(Exception):
    """A mistake or fault outside the program; never raised itself."""

    exit_code = 1

    def __init__(self, message: str = "", *details: str) -> None:
        """`details` become lines of their own; a newline inside the message or one of them is shown as \\n."""
        super().__init__(message, *details)

    def __str__(self) -> str:
        return "\n".join([self.args[0], *(f"  {detail}" for detail in self.args[1:])])


class UsageError(RemaskError):
    """The words of the command are off."""

    exit_code = 2


class DataError(RemaskError):
    """Bad data: damaged, of another kind, too small for the settings."""

    exit_code = 65


class MissingInputError(RemaskError):
    """A path that is not there."""

    exit_code = 66


class UnavailableError(RemaskError):
    """Folder in use, extra not installed, precision or device that this machine lacks."""

    exit_code = 69


class GaveUpError(RemaskError):
    """The run diverged, or crashed again and again."""

    exit_code = 70


class OutputError(RemaskError):
    """The output cannot be written there."""

    exit_code = 73


class DiskError(RemaskError):
    """The disk is full or failed."""

    exit_code = 74


class Stopped(RemaskError):
    """Stopped by a signal with its state saved: the same command goes on."""

    exit_code = 75


class ConfigError(RemaskError):
    """A bad run file or setting, or a resume that was refused."""

    exit_code = 78


def install_command(extra: str) -> str:
    """The command that adds an extra of pyproject.toml here: to the checkout that runs, or to the installed package."""
    python, root = _from_here(Path(sys.executable)), Path(__file__).resolve().parents[1]
    if not all((root / name).is_file() for name in ("pyproject.toml", "constraints.txt")):
        return shlex.join([python, "-m", "pip", "install", f"remask[{extra}]"])
    constraints = _from_here(root / "constraints.txt")
    return shlex.join([python, "-m", "pip", "install", "-c", constraints, "-e", f"{_from_here(root)}[{extra}]"])


@contextmanager
def needs_extra(extra: str, who: str) -> Iterator[None]:
    """Around the import of a library that only an extra brings: where it is missing, who needs it and how to get it."""
    try:
        yield
    except ImportError:
        raise UnavailableError(f"{who}: {install_command(extra)}") from None


def _from_here(path: Path) -> str:
    """As short as a shell in this folder takes it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine had too little memory: torch says so in a RuntimeError's words only, and oneDNN's are that a
    kernel could not be made."""
    words = ("allocate memory", "out of memory", "could not create a primitive", "could not create a memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)
