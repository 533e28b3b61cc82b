"""`remask serve` as clients see it: answers as in Python, its OpenAPI document, models and their steps, errors, and the
client of the README."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remask
from remask.serve.schemas import TASKS

from ..faults.zygote import Zygote
from ..serving import Served, environment, serving, tiny_models

ROOT = Path(__file__).resolve().parents[2]
PROMPT_WORDS = {"yes": ["dog"], "no": ["fox", "quick brown"]}
TEXTS = ["The quick brown fox", "the dog", "Who wrote it? Mary Shelley wrote it."]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    found = tiny_models(folder, tiny_tokenizers["byte-bpe"])
    found["run"] = training_run(folder / "run", found["lm"])
    return found


def training_run(folder: Path, start: Path) -> Path:
    """A run folder with two checkpoints of different weights."""
    from safetensors.torch import load_file, save_file

    from remask.artifacts import publish

    for number, step in enumerate((10, 20), 1):

        def fill(aside: Path, number: int = number) -> None:
            (aside / "tokenizer").mkdir()
            for file in [start / "model.json", *(start / "tokenizer").iterdir()]:
                (aside / file.relative_to(start)).write_bytes(file.read_bytes())
            weights = {name: weight * number for name, weight in load_file(start / "model.safetensors").items()}
            save_file(weights, aside / "model.safetensors")

        publish(folder / "checkpoints" / f"step-{step:09d}", "checkpoint", fill)
    return folder


@pytest.fixture(scope="module")
def served(models: dict[str, Path]) -> Iterator[Served]:
    with serving(f"mine={models['lm']}", *(models[name] for name in ("classes", "names", "spans", "run"))) as server:
        yield server


def same(said: Any, expected: Any) -> None:
    """Equal but for the last digits of numbers."""
    if isinstance(expected, dict):
        assert said.keys() == expected.keys()
        for key in expected:
            same(said[key], expected[key])
    elif isinstance(expected, (list, tuple, np.ndarray)):
        assert len(said) == len(expected)
        for one, other in zip(said, expected, strict=True):
            same(one, other)
    elif isinstance(expected, (float, np.floating)):
        assert said == pytest.approx(float(expected), abs=1e-5)
    else:
        assert said == expected


# --------------------------------------------------------------------------------------------------- answers


def test_every_task_answers_as_the_python_interface_does(served: Served, models: dict[str, Path]) -> None:
    lm, classes, names, spans = (remask.load(models[name]) for name in ("lm", "classes", "names", "spans"))
    marked = ["The <mask> dog", "<mask> and <mask>"]
    same(served.outputs("fill-mask", marked, top_k=3), [[asdict(f) for f in one] for one in lm.fill_mask(marked, 3)])
    pattern = "{text} is the <mask>."
    prompted = lm.prompt(TEXTS, pattern, PROMPT_WORDS)
    same(
        served.outputs("prompt", TEXTS, patterns=[pattern], words=PROMPT_WORDS),
        [asdict(one) | {"labels": [one.label]} for one in prompted],
    )
    pair = lm.prompt([("a", "b")], "{text} {text2} <mask>", PROMPT_WORDS, calibrate=False)[0]
    asked = {"patterns": ["{text} {text2} <mask>"], "words": PROMPT_WORDS, "calibrate": False}
    same(served.outputs("prompt", [["a", "b"]], **asked)[0]["scores"], pair.scores)
    same(served.outputs("classify", TEXTS), [asdict(one) | {"labels": [one.label]} for one in classes.classify(TEXTS)])
    pair = classes.classify([("the dog", "the fox")])[0]
    for inputs in (["the dog", "the fox"], {"text": "the dog", "text2": "the fox"}, [["the dog", "the fox"]]):
        same(served.outputs("pairs", inputs)[0]["scores"], pair.scores)
    same(served.outputs("tag", TEXTS), [[asdict(e) for e in one] for one in names.tag(TEXTS)])
    asked = {"question": "Who wrote it?", "context": TEXTS[2]}
    same(served.outputs("answer", asked), [asdict(spans.answer(*asked.values()))])
    choice = spans.choose("The dog", ["jumps", "sleeps"])
    same(served.outputs("choose", {"text": "The dog", "options": ["jumps", "sleeps"]}), [asdict(choice)])
    choice = spans.choose("The dog", ["jumps", "sleeps"], "Who _ it?")
    about = {"text": "The dog", "options": ["jumps", "sleeps"], "question": "Who _ it?"}
    same(served.outputs("choose", about), [asdict(choice)])
    same(served.outputs("embed", TEXTS), lm.embed(TEXTS))
    same(
        served.outputs("embed", TEXTS, pooling="mean", normalize=False),
        lm.embed(TEXTS, pooling="mean", normalize=False),
    )
    ranked = [asdict(one) for one in lm.rank("dog", TEXTS)]
    same(served.outputs("rank", {"query": "dog", "texts": TEXTS}), [ranked])
    same(served.outputs("rank", {"query": "dog", "texts": TEXTS}, top_k=1), [ranked[:1]])
    said = served.outputs("tokenize", TEXTS)
    same(
        [{key: one[key] for key in ("ids", "tokens", "spans")} for one in said],
        [asdict(one) for one in lm.tokenize(TEXTS)],
    )
    (said,) = served.outputs("encode", "The dog")
    (encoded,) = lm.encode(["The dog"])
    same(said["ids"], encoded.ids.tolist())
    same(said["states"], encoded.states)
    assert said["tokens"][0] == "<s>"
    assert "attentions" not in said


def test_a_lone_input_and_a_list_of_one_are_the_same(served: Served) -> None:
    assert served.outputs("embed", "The dog") == served.outputs("embed", ["The dog"])


def test_only_wanted_words_are_scored(served: Served, models: dict[str, Path]) -> None:
    (all_of_them,) = served.outputs("fill-mask", "The <mask> dog", top_k=100)
    (found,) = served.outputs("fill-mask", "The <mask> dog", targets=["e", "the", "r"])
    assert len(found) == 3
    assert [fill["score"] for fill in found] == sorted((fill["score"] for fill in found), reverse=True)
    assert {fill["token_str"].strip() for fill in found} == {"e", "the", "r"}
    whole = {fill["token"]: fill["score"] for fill in all_of_them}
    for fill in found:
        if fill["token"] in whole:
            same(fill["score"], whole[fill["token"]])


def test_attention_is_a_distribution_over_the_tokens(served: Served) -> None:
    (said,) = served.outputs("encode", "The <mask> dog", states=False, attentions=True, marked=True)
    assert "states" not in said
    assert "<mask>" in said["tokens"]
    maps = np.array(said["attentions"])
    size = len(said["ids"])
    assert maps.shape == (2, 4, size, size)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-2)  # rounded to four digits
    (said,) = served.outputs("encode", {"text": "The dog", "text2": "a fox"}, states=False, attentions=True)
    assert len(said["attentions"][0][0]) == len(said["ids"])


def test_many_inputs_of_one_request_come_back_in_order(served: Served, models: dict[str, Path]) -> None:
    texts = [f"{i} the dog " + "jumps " * (i % 7) for i in range(256)]
    same(served.outputs("embed", texts), remask.load(models["lm"]).embed(texts))


# ---------------------------------------------------------------------------------------------------- models


def test_models_say_what_they_can_do(served: Served) -> None:
    _, said, _ = served.ask("/v1/models")
    assert said["models"] == served.facts["models"]
    found = {one["id"]: one for one in said["models"]}
    assert list(found) == ["mine", "classes", "names", "spans", "run"]
    assert [one["default"] for one in found.values()] == [True, False, False, False, False]
    assert found["mine"]["tasks"] == ["fill-mask", "prompt", "write", "embed", "rank", "encode", "tokenize"]
    assert found["classes"]["tasks"][:2] == ["classify", "pairs"]
    assert found["classes"]["labels"] == ["neg", "pos"]
    assert [found[name]["kind"] for name in found] == [None, "classify", "tags", "spans", None]
    assert (found["mine"]["mask_token"], found["mine"]["max_length"]) == ("<mask>", 64)
    assert (found["run"]["steps"], found["run"]["step"]) == ([10, 20], 20)
    assert (found["mine"]["steps"], found["mine"]["step"]) == ([], None)


def test_a_model_is_chosen_by_id_by_step_or_by_what_it_can_do(served: Served, models: dict[str, Path]) -> None:
    def vector(model: str) -> list[float]:
        return served.outputs("embed", "The dog", model=model)[0]

    newest, first, last = vector("run"), vector("run@10"), vector("run@20")
    assert newest == last
    assert newest != first
    checkpoint = models["run"] / "checkpoints" / "step-000000010"
    same(first, remask.load(checkpoint).embed(["The dog"])[0])
    assert served.ask("/v1/tag", {"inputs": "a"})[1]["model"] == "names"
    assert served.ask("/v1/embed", {"inputs": "a", "model": "run@10"})[1]["model"] == "run@10"
    assert served.ask("/v1/embed", {"inputs": "a", "model": "run@15"})[0] == 404
    for _ in range(2):  # more steps than are kept in memory: each is still itself
        assert vector("run@10") == first
        assert vector("run@20") == last


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("task", "body", "status", "code", "field"),
    [
        ("fill-mask", {"inputs": "no mask here"}, 422, "no_mask", "inputs"),
        ("fill-mask", {"inputs": "a <mask>", "targets": ["notoneofits"]}, 422, "bad_target", "targets"),
        ("fill-mask", {"inputs": "a <mask>", "top_k": 0}, 422, "invalid", "top_k"),
        ("fill-mask", {"inputs": "<mask>" * 51, "top_k": 100}, 422, "bad_input", "inputs"),
        ("fill-mask", {"inputs": "a <mask>", "model": "classes"}, 422, "cannot", "model"),
        ("fill-mask", {"inputs": "a <mask>", "model": "absent"}, 404, "unknown_model", "model"),
        ("fill-mask", {}, 422, "invalid", "inputs"),
        ("fill-mask", {"inputs": []}, 422, "invalid", "inputs"),
        ("fill-mask", {"inputs": "a <mask>", "more": 1}, 422, "invalid", "more"),
        ("prompt", {"inputs": "a", "patterns": ["{text}"], "words": PROMPT_WORDS}, 422, "bad_prompt", "patterns"),
        ("prompt", {"inputs": "a", "patterns": [], "words": PROMPT_WORDS}, 422, "invalid", "patterns"),
        ("prompt", {"inputs": "a", "patterns": ["{text} <mask>"], "words": {"a": ["b"]}}, 422, "invalid", "words"),
        ("embed", {"inputs": "jumps " * 200}, 422, "text_too_long", "inputs"),
        ("embed", {"inputs": ["a"] * 257}, 422, "invalid", "inputs"),
        ("answer", {"inputs": {"question": "", "context": "a"}}, 422, "invalid", "inputs"),
        ("answer", {"inputs": {"question": "a", "context": "the dog " * 20_000}}, 422, "too_much", "inputs"),
        ("choose", {"inputs": {"text": "a", "options": ["b"]}}, 422, "invalid", "inputs"),
        ("encode", {"inputs": ["the dog jumps"] * 60, "attentions": True}, 422, "text_too_long", "inputs"),
        ("absent", {"inputs": "a"}, 404, "not_found", None),
    ],
)
def test_mistakes_have_a_code_a_sentence_and_a_place(
    served: Served, task: str, body: Any, status: int, code: str, field: str | None
) -> None:
    found, said, _ = served.ask(f"/v1/{task}", body)
    assert (found, said["error"]["code"], said["error"].get("field")) == (status, code, field), said
    assert len(said["error"]["message"].splitlines()) == 1
    assert "/" not in re.sub(r"/v1/\w+", "", said["error"]["message"]), "no path of the server"


@pytest.mark.parametrize(
    "task, inputs, words",
    [
        ("pairs", ["a"], "inputs[0]: input should be a valid dictionary or object to extract fields from; send [text"),
        ("classify", ["a", 1], "inputs[1]: input should be a valid string; send a text, or a list of 1 to 256 such"),
        ("rank", {"query": "a"}, 'inputs: field required; send {"query": ..., "texts": [...]}'),
    ],
)
def test_inputs_of_another_form_are_told_the_right_one(served: Served, task: str, inputs: Any, words: str) -> None:
    _, said, _ = served.ask(f"/v1/{task}", {"inputs": inputs})
    assert said["error"]["message"].startswith(words)


def test_a_long_text_is_cut_where_asked(served: Served) -> None:
    assert len(served.outputs("embed", "jumps " * 200, long_texts="cut")[0]) == 32
    assert served.outputs("tag", "Mary jumps " * 200)  # read in several rows
    _, said, _ = served.ask("/v1/classify", {"inputs": "jumps " * 200, "model": "classes"})
    assert "does not fit into the 64 tokens" in said["error"]["message"]  # a foreign model does not say what it does


def test_long_texts_are_read_and_pairs_offered_as_the_model_was_taught(models: dict[str, Path], tmp_path: Path) -> None:
    """A model that was taught single texts in windows, and one that was taught pairs."""
    import shutil

    from remask.tasks.kinds import KINDS, StoredTask
    from remask.tasks.settings import RowSettings, TableSettings

    for name, second in (("single", None), ("pair", "more")):
        folder = shutil.copytree(models["classes"], tmp_path / name)
        rows = RowSettings(long_texts="windows" if name == "single" else "cut")
        task = "pair" if second else "classify"
        stored = StoredTask(task, KINDS["classify"], ("neg", "pos"), "accuracy", TableSettings(text2=second), rows)
        (folder / "task.json").write_bytes(stored.to_json())
    long = " ".join(["The quick fox jumps", *["the dog"] * 90])
    with serving(tmp_path / "single", tmp_path / "pair") as server:
        _, said, _ = server.ask("/v1/models")
        offered = {model["id"]: model["tasks"] for model in said["models"]}
        assert ("pairs" in offered["single"], "pairs" in offered["pair"]) == (False, True)
        for name, inputs, how in (("single", long, "windows"), ("pair", {"text": "a dog", "text2": long}, "cut")):
            text = inputs if isinstance(inputs, str) else tuple(inputs.values())
            expected = remask.load(tmp_path / name).classify([text], long_texts=how)[0].scores
            verb = "classify" if name == "single" else "pairs"
            same(server.outputs(verb, inputs, model=name)[0]["scores"], expected)
            status, said, _ = server.ask(f"/v1/{verb}", {"inputs": inputs, "model": name, "long_texts": "error"})
            assert (status, said["error"]["code"]) == (422, "text_too_long"), said


def test_other_methods_and_kinds_of_content_are_refused(served: Served) -> None:
    status, said, headers = served.ask("/v1/embed")
    assert (status, said["error"]["code"]) == (405, "method_not_allowed")
    assert headers["allow"] == "POST"
    status, said, _ = served.ask("/v1/embed", b'{"inputs": "a"}', headers={"Content-Type": "text/plain"})
    assert (status, said["error"]["code"]) == (415, "media_type")


def test_one_bad_input_among_good_requests_spoils_only_its_own(served: Served) -> None:
    from concurrent.futures import ThreadPoolExecutor

    bodies = [{"inputs": "The <mask>" if i % 3 else "no mask"} for i in range(60)]
    with ThreadPoolExecutor(12) as pool:
        statuses = [status for status, _, _ in pool.map(lambda body: served.ask("/v1/fill-mask", body), bodies)]
    assert statuses == [200 if i % 3 else 422 for i in range(60)]


# ------------------------------------------------------------------------------------ document, page, metrics


def test_the_page_is_served_under_a_strict_policy(served: Served) -> None:
    status, text, headers = served.ask("/")
    assert status == 200
    assert "<script" in text
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    for name in re.findall(r'(?:src|href)="([\w.-]+)"', text):
        assert served.ask(f"/{name}")[0] == 200, name
    assert served.ask("/absent.js")[0] == 404


def test_metrics_can_be_read_by_prometheus(served: Served) -> None:
    served.outputs("embed", "The dog")
    _, text, headers = served.ask("/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    values = {}
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [\d.e+-]+', line), line
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    assert values['remask_requests_total{task="embed",status="200"}'] >= 1
    assert (
        values['remask_request_seconds_count{task="embed"}']
        == values['remask_request_seconds_bucket{task="embed",le="+Inf"}']
    )
    assert values["remask_engine_up"] == 1
    assert values["remask_tokens_total"] > 0


# What a schema cannot say: whether a text has a mask or fits, which ids there are, how large a whole body is.
SCHEMATHESIS = """
[checks]
negative_data_rejection.expected-statuses = ["400", "404", "405", "413", "415", "422"]
positive_data_acceptance.expected-statuses = ["2xx", "404", "422"]
"""


def test_the_server_keeps_to_its_own_openapi_document(served: Served, tmp_path: Path) -> None:
    """schemathesis makes requests from the document, good and bad ones, and compares the answers with it."""
    (tmp_path / "schemathesis.toml").write_text(SCHEMATHESIS)
    words = ["-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run", f"{served.url}/openapi.json"]
    words += ["--max-examples", "4", "--seed", "1", "--phases", "coverage,fuzzing", "--no-color"]
    words += ["--suppress-health-check", "all"]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=250, env=environment(), cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert int(re.findall(r"(\d+) generated", done.stdout)[-1]) > 200


def test_the_documents_of_the_requests_are_strict(served: Served) -> None:
    _, document, _ = served.ask("/openapi.json")
    assert {path for path in document["paths"] if path.startswith("/v1/")} == {
        *(f"/v1/{task}" for task in TASKS), "/v1/models", "/v1/map", "/v1/embeddings",
    }  # fmt: skip
    assert {"fill-mask", "search", "tokenize"} <= TASKS.keys()
    assert document["components"]["schemas"]["FillMask"]["additionalProperties"] is False
    status, page, _ = served.ask("/docs")
    assert status == 200
    assert "/v1/fill-mask" in page
    assert "//" not in page.replace("http://127.0.0.1", "").replace("</", "")  # nothing is loaded from elsewhere


# ------------------------------------------------------------------------------------------------- start, README


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["absent"], 66, "no such model folder"),
        (["README.md"], 66, "no such model folder"),
        (["a b=MODEL"], 2, "is no id"),
        (["MODEL", "--port", "99999"], 78, "port"),
        (["MODEL", "--host", "no.such.host.invalid"], 2, "no such address"),
        (["MODEL", "--token", ""], 2, "token"),
        (["EMPTY"], 65, "is no model"),
        (["MODEL", "--port", "PORT"], 69, "choose another --port"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    served: Served, models: dict[str, Path], tmp_path: Path, zygote: Zygote, words: list[str], code: int, message: str
) -> None:
    places = {"MODEL": str(models["lm"]), "EMPTY": str(tmp_path), "PORT": str(served.port)}
    words = [re.sub("MODEL|EMPTY|PORT", lambda found: places[found[0]], word) for word in words]
    done = zygote.run("serve", *words, cwd=ROOT)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_request_log_has_ids_and_no_texts(models: dict[str, Path], tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    with serving(models["lm"], "--request-log", log) as server:
        answers = [
            server.ask("/v1/fill-mask", {"inputs": "A <mask> secret."}),
            server.ask("/v1/fill-mask", {"inputs": 7}),
            server.ask("/v1/models"),
        ]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 422, 200]
    assert (lines[0]["task"], lines[0]["model"]) == ("fill-mask", "lm")
    assert [line["id"] for line in lines] == [headers["x-request-id"] for _, _, headers in answers]
    assert "secret" not in log.read_text()


def test_the_api_page_names_every_path_and_loads_nothing_from_elsewhere(served: Served) -> None:
    status, page, headers = served.ask("/docs")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    for path in served.ask("/openapi.json")[1]["paths"]:
        assert f"<code>{path}</code>" in page
    assert "//" not in page.replace("http://127.0.0.1:8000", "")
    assert "<script" not in page


def test_a_missing_extra_is_named(models: dict[str, Path]) -> None:
    code = "import sys; sys.modules['fastapi'] = None; from remask.__main__ import main; main()"
    command = [sys.executable, "-c", code, "serve", str(models["lm"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == 69
    assert re.search(r"-m pip install .*\[serve\]'", done.stderr)


def test_the_readmes_client_works_as_printed(served: Served) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    clients = [block for block in blocks if "/v1/" in block]
    if not clients:
        pytest.skip("the README shows no client of the server")
    for block in clients:
        code = re.sub(r"http://(127\.0\.0\.1|localhost):8000", served.url, block)
        assert code != block
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_a_run_file_serves_as_the_words_do(models: dict[str, Path], tmp_path: Path, zygote: Zygote) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(json.dumps({"models": [f"a={models['lm']}"], "port": 0, "limits": {"max_wait_ms": 0.0}}))
    done = zygote.run("serve", file, "--dry-run")
    assert done.returncode == 0, done.stderr
    done = zygote.run("serve", file, "--print-config", "--token", "s3cret")
    assert "max_wait_ms: 0.0" in done.stdout
    assert "s3cret" not in done.stdout
