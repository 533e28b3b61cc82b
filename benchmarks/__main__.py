"""`make bench` (python -m benchmarks [NAME…]): runs the speed scripts, prints one table and keeps the figures.

Each script measures both sides alternating in one run and ends with a JSON line that has name, ratio, peer, ours and
unit (a script may print several such lines). Results go to benchmarks/results/<hardware>-<date>.json, beside earlier
ones of that day; docs/speed.md shows the newest figure of every row on that hardware. `--quick` runs everything at a
tiny size and keeps nothing.
Where there is a GPU, pretraining and fine-tuning are measured there first.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from _claims import COMMANDS, GPU_COMMANDS, table  # noqa: E402
from _device import has_gpu  # noqa: E402
from _page import write_page  # noqa: E402
from _rig import environment, num_cores  # noqa: E402

PACKAGES = ("torch", "transformers", "accelerate", "onnxruntime", "openvino")


def hardware() -> str:
    import torch

    cards = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return " and ".join([f"{processor()} x{num_cores()}", *cards])


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.*)$", info.read_text(), flags=re.M) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    scripts = list(dict.fromkeys(command.script for command in COMMANDS))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(scripts)}; none: all")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round, nothing kept: does it all run?")
    parser.add_argument("--only", default="", help="only commands whose words contain this, such as '--size base'")
    parser.add_argument("--arguments", default="", help="more words for every script")
    parser.add_argument("--page", type=Path, metavar="FILE", help="make docs/speed.md for this file's hardware and end")
    chosen = parser.parse_args()
    if chosen.page:
        return write_page(newest(json.loads(chosen.page.read_text())["hardware"]), HERE.parent / "docs")
    if unknown := [name for name in chosen.names if name not in scripts]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(scripts)}")
    rows: list[dict[str, Any]] = []
    failed = []
    for command in [*(GPU_COMMANDS if has_gpu() else ()), *COMMANDS]:
        words = command.quick if chosen.quick else command.words
        if command.script not in (chosen.names or scripts) or (chosen.quick and not words) or chosen.only not in words:
            continue
        print(f"--- {command.script} {words}", flush=True)
        began = time.monotonic()
        threads = 1 if chosen.quick else num_cores()
        found, code = run(command.script, [*words.split(), *chosen.arguments.split()], threads)
        print(f"    {time.monotonic() - began:.0f} s", flush=True)
        rows += found
        if code or not found:
            failed.append(f"{command.script} {words}".strip())
        if found and not chosen.quick:
            keep(found)  # after every script: a long run that is stopped has not been for nothing
    print("\n" + table(rows, missing=False))
    if failed:
        sys.exit(f"failed: {'; '.join(failed)}")


def run(script: str, words: list[str], threads: int) -> tuple[list[dict[str, Any]], int]:
    """The figures that a script printed, and how it ended."""
    command = [sys.executable, str(HERE / f"{script}.py"), "--json", *words]
    rows = []
    env = environment(threads)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=HERE.parent) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            if line.startswith("{") and '"ratio"' in line:
                rows.append({"benchmark": script, **json.loads(line)})
    return rows, child.returncode


def keep(rows: list[dict[str, Any]]) -> None:
    machine = hardware()
    date = datetime.date.today().isoformat()
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    path = folder / f"{slug}-{date}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    fresh = {(row["benchmark"], row.get("name")) for row in rows}
    rows = [row for row in known if (row["benchmark"], row.get("name")) not in fresh] + rows
    results = {"hardware": machine, "date": date, "versions": versions(), "rows": rows}
    path.write_text(json.dumps(results, indent=1) + "\n")
    write_page(newest(machine), HERE.parent / "docs")


def newest(machine: str) -> dict[str, Any]:
    """The last figure of every row on a kind of machine, each with its date."""
    files = [json.loads(path.read_text()) for path in (HERE / "results").glob("*.json")]
    rows: dict[tuple[str, str | None], dict[str, Any]] = {}
    for results in sorted((f for f in files if f["hardware"] == machine), key=lambda f: f["date"]):
        for row in results["rows"]:
            rows[row["benchmark"], row.get("name")] = {**row, "date": results["date"]}
    return {"hardware": machine, "rows": list(rows.values())}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


if __name__ == "__main__":
    main()
