"""Every run file builds, every README command parses, everything that is used is tracked by git, files stay small."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml

import remask
from remask.__main__ import VERBS, cli
from remask.commands.switches import RUN_MODELS, run_model
from remask.config import build_run
from remask.studies.plan import make_plan
from remask.studies.settings import ALL, SCALES, StudyRun, definition_file, scale_settings

ROOT = Path(__file__).resolve().parents[2]
RUN_FILES = sorted((ROOT / "runs").rglob("*.yaml"))
# Files that a verb other than the folder's or file's name reads.
VERB_OF_FOLDER = {"bases": "pretrain", "ablations": "pretrain", "studies": "study"}


def tracked() -> set[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return set(done.stdout.split())


@pytest.mark.parametrize("file", RUN_FILES, ids=lambda f: f.relative_to(ROOT / "runs").as_posix())
def test_every_run_file_builds(file: Path) -> None:
    folder = file.parent.name
    verb = file.stem if folder == "smoke" else VERB_OF_FOLDER.get(folder, folder)
    if folder == "bases":
        build_run(run_model(verb), base=file.stem)
        return
    if folder == "scales":
        assert scale_settings(file.stem).settings
        return
    assert verb in RUN_MODELS, f"{file} is in a folder that no verb reads"
    build_run(run_model(verb), file)
    header = [line for line in file.read_text().splitlines() if line.startswith("#")]
    told = any(line.lstrip("# ").startswith(f"remask {verb} ") for line in header)
    assert told or folder == "ablations", "the header comment has the exact command"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "runs" / "studies").glob("*.yaml")))
def test_every_row_of_every_study_builds_at_every_scale(name: str, scale: str) -> None:
    study = build_run(StudyRun, definition_file(name), options={"scale": scale, "name": name}).run
    plan = make_plan(study)
    assert len(plan.cells) == len(study.rows) * study.seeds >= 6
    assert name in ALL
    assert "random start" in study.rows, "every table says what the counted start does"


def commands_in(file: Path) -> list[str]:
    """Every line of a console block that starts with remask (after `$ ` or .venv/bin/)."""
    blocks = re.findall(r"^```(?:console|sh|bash)?\n(.*?)^```", file.read_text(), flags=re.M | re.S)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.split(" #")[0] for line in lines if re.match(r"(\S*/)?remask ", line)]


DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "EXPERIMENTS.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/uses").glob("*.md")),
]


@pytest.mark.parametrize("file", [f for f in DOCUMENTS if f.exists()], ids=lambda f: f.name)
def test_every_command_in_the_documents_parses(file: Path) -> None:
    found = commands_in(file)
    assert found or file != ROOT / "README.md"
    for line in found:
        words = shlex.split(line)[1:]
        if words[0].startswith("-"):
            continue
        assert words[0] in VERBS, line
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None
        if "--help" not in words:
            command.make_context(words[0], words[1:], resilient_parsing=False)


def test_every_imported_module_and_run_file_is_tracked() -> None:
    known = tracked()
    for path in [*(ROOT / "remask").rglob("*.py"), *RUN_FILES, *(ROOT / "tests").rglob("*.py")]:
        assert path.relative_to(ROOT).as_posix() in known, f"{path} is not tracked by git"


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_no_machine_path_is_tracked() -> None:
    pattern = re.compile(r"/(?:wor[k]|roo[t]|hom[e])/[a-z]")
    for name in tracked():
        if name.endswith((".py", ".md", ".yaml", ".toml", ".txt", ".json")) or name in ("Makefile", ".ci/run"):
            text = (ROOT / name).read_text(encoding="utf-8")
            assert not pattern.search(text), f"{name} names a path of a machine"


def deployed_commands() -> dict[str, list[str]]:
    """What the files of deploy/ start, as words after `remask`."""
    docker = (ROOT / "deploy/Dockerfile").read_text()
    assert re.search(r'^ENTRYPOINT \["remask"\]$', docker, flags=re.M)
    (cmd,) = re.findall(r"^CMD (\[.*\])$", docker, flags=re.M)
    (unit,) = re.findall(r"^ExecStart=\S+/remask (.*)$", (ROOT / "deploy/remask.service").read_text(), flags=re.M)
    return {"Dockerfile": ast.literal_eval(cmd), "remask.service": shlex.split(unit)}


@pytest.mark.parametrize("file", ["Dockerfile", "remask.service"])
def test_what_is_deployed_starts_a_command_that_parses(file: str) -> None:
    verb, *words = deployed_commands()[file]
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    command.make_context(verb, words, resilient_parsing=False)


def test_the_image_runs_without_root_and_takes_only_what_is_tracked() -> None:
    docker = (ROOT / "deploy/Dockerfile").read_text()
    final = docker.rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*$", final, flags=re.M)
    assert "HEALTHCHECK" in final
    known, wanted = tracked(), re.findall(r"^COPY (?!--)(.*) \S+$", docker, flags=re.M)
    let_in = (ROOT / ".dockerignore").read_text().split()
    for name in " ".join(wanted).split():
        assert f"!{name}" in let_in, f"{name} is copied but not in .dockerignore"
        assert any(path == name or path.startswith(f"{name}/") for path in known), name
    service = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]["remask"]
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    versions = {yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"], service["image"].partition(":")[2]}
    assert versions == {remask.__version__}


def test_no_general_drawer() -> None:
    for path in (ROOT / "remask").rglob("*"):
        assert path.stem not in {"utils", "util", "helpers", "misc", "common"}, path
        assert not re.search(r"_v\d+$", path.stem), path


def test_every_file_says_what_it_is() -> None:
    for path in (ROOT / "remask").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
