"""The page at /docs: the OpenAPI document as a person reads it. No script, nothing from elsewhere.

In: the document that /openapi.json gives. Out: HTML with every path, what it takes and what it answers, in the page's
own style sheet. Not here: the document itself (schemas, app).
"""

from __future__ import annotations

from html import escape

from remask.schema import Values

_INTRO = """<p>Send JSON, get JSON. One input gives one output, a list gives a list. The machine's form of this page is
<a href="openapi.json">openapi.json</a>; the
<a href="./">page to play with</a> shows every request as curl or Python.</p>
<pre>curl -H 'Content-Type: application/json' -d '{"inputs": "A text."}' http://127.0.0.1:8000/v1/tokenize</pre>
<p>With a token, add <code>-H 'Authorization: Bearer TOKEN'</code>. An error is
<code>{"error": {"code", "message", "field"?}}</code>.</p>"""


def api_page(document: Values) -> str:
    """`document`: of OpenAPI."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        '<title>remask: the API</title><link rel="stylesheet" href="style.css"></head>',
        '<body><main class="inside api">',
        f"<h1>remask {escape(document['info']['version'])}: the API</h1>",
        _INTRO,
    ]
    found = [(path, method, told) for path, methods in document["paths"].items() for method, told in methods.items()]
    links = (f'<a href="#{_anchor(method, path)}">{escape(path)}</a>' for path, method, _ in found)
    parts.append(f"<nav>{' '.join(links)}</nav>")
    for path, method, operation in found:
        heading = f'<h2 id="{_anchor(method, path)}">{method.upper()} <code>{escape(path)}</code></h2>'
        parts += _operation(document, heading, operation)
    return "\n".join([*parts, "</main></body></html>"])


def _operation(document: Values, heading: str, operation: Values) -> list[str]:
    lines = [heading, f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>"]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        body = _resolved(document, content["schema"])
        lines += ["<div class='wide'><table><thead><tr><th>field</th><th>what</th><th>default</th></tr></thead><tbody>"]
        for name, schema in body["properties"].items():
            default = "needed" if name in body.get("required", ()) else schema.get("default")
            cells = (name, f"{_type(document, schema)}{_note(schema)}", "none" if default is None else str(default))
            lines.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
        lines += ["</tbody></table></div>"]
    for status, response in operation["responses"].items():
        answer = response.get("content", {}).get("application/json", {}).get("schema")
        if status == "200" and answer:
            lines.append(f"<p>Answer: <code>{escape(_type(document, answer))}</code></p>")
    statuses = [status for status in operation["responses"] if status != "200"]
    lines.append(f"<p class='soft'>Other statuses: {escape(', '.join(statuses))}</p>")
    return lines


def _anchor(method: str, path: str) -> str:
    return escape(f"{method}{path.replace('/', '-')}")


def _note(schema: Values) -> str:
    """The words that a field or one of its kinds comes with."""
    for place in (schema, *schema.get("anyOf", ())):
        if "description" in place:
            return f": {place['description']}"
    return ""


def _resolved(document: Values, schema: Values) -> Values:
    """A schema itself, where `schema` only names one."""
    name = schema.get("$ref")
    return schema if name is None else document["components"]["schemas"][name.rpartition("/")[2]]


def _type(document: Values, schema: Values) -> str:
    """A schema in a few words: `text or list of text`, `{model: text, outputs: list of {…}}`."""
    schema = _resolved(document, schema)
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(_type(document, kind) for kind in kinds))
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    if schema.get("type") == "array":
        items = schema.get("prefixItems")
        if items:
            return f"[{', '.join(_type(document, item) for item in items)}]"
        return f"list of {_type(document, schema.get('items', {}))}"
    if "properties" in schema:
        inner = (f"{name}: {_type(document, kind)}" for name, kind in schema["properties"].items())
        return "{" + ", ".join(inner) + "}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"{{name: {_type(document, values if isinstance(values, dict) else {})}}}"
    return {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}.get(
        schema.get("type", ""), "any value"
    )
