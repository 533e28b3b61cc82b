"""Starts remask many times without importing torch each time: a process that has imported everything forks for each
request. Run as a script it reads requests from stdin, one JSON object a line, and answers the same way.

A request: {"code": python source} or {"argv": [...]} for the command line, with "signals": [[seconds, name], ...] to be
sent to the child (seconds after its start, or after "wait_for", a file, has more than "size" bytes, or after a line of
its stderr starts with "line"), "folder" for its output and "cwd" to work in. With "ranks" it forks so many, as torchrun
would start them, and signals go to the last one; with "children" so many that are no ranks.
torch must not have run a backward pass before a fork, so this cannot be the test process itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """How a child ended; `returncode` is negative for a signal, as in subprocess."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


Signals = Sequence[tuple[float, str]]


class Zygote:
    """The test's side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        environment = {name: value for name, value in os.environ.items() if name != "REMASK_TOKEN"}
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def run(
        self, *argv: str | Path, signals: Signals = (), wait_for: Path | None = None, size: int = 0, line: str = "",
        cwd: Path | None = None,
    ) -> Done:  # fmt: skip
        request = {"argv": [str(word) for word in argv], "line": line, "cwd": str(cwd or "")}
        return self._ask(request, signals, wait_for, size)

    def execute(self, code: str, signals: Signals = (), wait_for: Path | None = None, size: int = 0) -> Done:
        return self._ask({"code": code}, signals, wait_for, size)

    def run_ranks(
        self, ranks: int, *argv: str | Path, code: str = "", signals: Signals = (), wait_for: Path | None = None
    ) -> list[Done]:
        """One command line on so many ranks, each after `code`."""
        request = {"argv": [str(word) for word in argv], "before": code, "ranks": ranks}
        return self._answers(request, signals, wait_for, 0)

    def run_together(self, count: int, *argv: str | Path, environ: Mapping[str, str] | None = None) -> list[Done]:
        """One command line in so many processes at once, which know nothing of each other."""
        request = {"argv": [str(word) for word in argv], "children": count, "environ": dict(environ or {})}
        return self._answers(request, (), None, 0)

    def _ask(self, request: dict[str, Any], signals: Signals, wait_for: Path | None, size: int) -> Done:
        return self._answers(request, signals, wait_for, size)[0]

    def _answers(self, request: dict[str, Any], signals: Signals, wait_for: Path | None, size: int) -> list[Done]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request |= {"signals": list(signals), "folder": str(self._folder)}
        request |= {"wait_for": str(wait_for or ""), "size": size}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return [Done(**one) for one in json.loads(self._process.stdout.readline())]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _child(request: dict[str, Any], rank: int) -> None:
    folder = Path(request["folder"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if "ranks" in request:
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": request["ranks"], "MASTER_PORT": request["port"]}
        os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in world.items()}})
    os.environ.update(request.get("environ", {}))
    if request.get("cwd"):
        os.chdir(request["cwd"])
    code = 1
    try:
        if "code" in request:
            exec(compile(request["code"], "<request>", "exec"), {"__name__": "__main__"})
        else:
            from remask.__main__ import main

            exec(compile(request.get("before", ""), "<before>", "exec"), {"__name__": "before"})
            sys.argv = ["remask", *request["argv"]]
            main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _alive(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _wait(request: dict[str, Any], child: int) -> None:
    """Until the child has come to where signals are to meet it, or is gone."""
    file, errors = request["wait_for"], Path(request["folder"]) / "stderr-0"
    while _alive(child) and file and not (Path(file).is_file() and Path(file).stat().st_size > request["size"]):
        time.sleep(0.01)
    line = "\n" + request.get("line", "")
    while _alive(child) and line != "\n" and line not in "\n" + errors.read_text(errors="replace"):
        time.sleep(0.01)


def _serve() -> None:
    # What a training imports when its first step is taken, over a second: once, not in every child.
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.fx.experimental.symbolic_shapes

    import remask.commands.adapt
    import remask.commands.predict
    import remask.commands.pretrain
    import remask.commands.quickstart
    import remask.data.batches
    import remask.model.store
    import remask.precision
    import remask.tokenizer
    import remask.train.loop

    # What every training asks the machine first; children remember the answers. No backward pass is made here.
    chosen, _ = remask.precision.choose_precision("auto", "cpu")
    for precision in {"fp32", chosen}:
        remask.precision.products_per_second(torch.device("cpu"), precision)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.monotonic()
        if "ranks" in request:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                request["port"] = free.getsockname()[1]
        children = []
        for rank in range(request.get("ranks", request.get("children", 1))):
            (Path(request["folder"]) / f"stderr-{rank}").write_bytes(b"")  # not the lines of the one before
            children.append(os.fork())
            if children[-1] == 0:
                _child(request, rank)
        child = children[-1]
        _wait(request, child)
        counted_from = time.monotonic()
        for seconds, name in request["signals"]:
            time.sleep(max(0.0, counted_from + seconds - time.monotonic()))
            if _alive(child):
                os.kill(child, getattr(signal, name))
        folder = Path(request["folder"])
        answers = []
        for rank, child in enumerate(children):
            _, status = os.waitpid(child, 0)
            answer = {name: (folder / f"{name}-{rank}").read_text(errors="replace") for name in ("stdout", "stderr")}
            answer |= {"returncode": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - started}
            answers.append(answer)
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    _serve()
