"""`make bench` (python -m benchmarks [NAME…]): runs every speed script, prints one table and keeps the figures.

Each script measures both sides alternating in one run and ends with a JSON line that has name, ratio, peer, ours and
unit (a script may print several such lines). Results go to benchmarks/results/<hardware>-<date>.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.*)$", info.read_text(), flags=re.M) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    scripts = {path.stem: path for path in sorted(HERE.glob("*.py")) if not path.stem.startswith("_")}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(scripts)}; none: all")
    parser.add_argument("--arguments", default="", help="words handed to every script")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in scripts]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(scripts)}")
    rows, failed = [], []
    for name in chosen.names or scripts:
        print(f"--- {name}", flush=True)
        words = [sys.executable, str(scripts[name]), "--json", *chosen.arguments.split()]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                print(line, end="", flush=True)
                if line.startswith("{") and '"ratio"' in line:
                    rows.append({"benchmark": name, **json.loads(line)})
        if child.returncode:
            failed.append(name)
    _keep(rows)
    print("\n| benchmark | ours | peer | unit | ratio |\n|---|---|---|---|---|")
    for row in rows:
        label = row.get("name", row["benchmark"])
        print(f"| {label} | {row['ours']:.4g} | {row['peer']:.4g} | {row['unit']} | {row['ratio']:.2f} |")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _keep(rows: list[dict[str, object]]) -> None:
    hardware = f"{processor()} x{len(os.sched_getaffinity(0))}"
    date = datetime.date.today().isoformat()
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-")
    path = folder / f"{slug}-{date}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    fresh = {(row["benchmark"], row.get("name")) for row in rows}
    rows = [row for row in known if (row["benchmark"], row.get("name")) not in fresh] + rows
    path.write_text(json.dumps({"hardware": hardware, "date": date, "rows": rows}, indent=1) + "\n")
    print(f"kept in {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
