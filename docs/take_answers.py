"""Store answers of the demo as the examples of the API reference: `python docs/take_answers.py URL` of a complete demo.

It uploads a run to a project of its own, changes it, and deletes it at the end; it also saves a view and a chart
in the demo. Calls that need a log-in have no example. Lists are cut to one item and long texts to one line.
"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TARGET = Path(__file__).parents[1] / "app" / "web" / "answers.json"
REF = "#/components/schemas/"
LONGEST = 100


BOUNDARY, BYTES = "boundary", "application/octet-stream"


def call(address: str, body: bytes | None = None, kind: str = "application/json", method: str | None = None) -> bytes:
    """Return the body of the answer; empty if the service refused the call."""
    request = urllib.request.Request(address, body, {"Content-Type": kind}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError:
        return b""


def form(**parts: bytes) -> bytes:
    """Return a multipart form with a log and other fields."""
    head = "--{boundary}\r\nContent-Disposition: form-data; name={name}{file}\r\n\r\n"
    fields = [
        head.format(boundary=BOUNDARY, name=name, file="; filename=train.log" if name == "log" else "").encode() + part
        for name, part in parts.items()
    ]
    return b"\r\n".join([*fields, f"--{BOUNDARY}--\r\n".encode()])


def take(base: str) -> dict[str, Any]:
    """Return the queries of calls that read, by path, and an answer of each call, by the name of its schema."""
    document = json.loads(call(f"{base}/openapi.json"))
    names = {schema_of(item) for calls in document["paths"].values() for item in calls.values()} - {""}
    multipart = f"multipart/form-data; boundary={BOUNDARY}"
    log = call(f"{base}/api/v1/runs/{first(base, 'runs?project=demo&verdict=no_change')['id']}/files/0")
    new = form(log=log, meta=b'{"project": "moe", "gpu": "H100"}')
    upload = call(f"{base}/api/v1/runs?wait=30", new, multipart)
    sent = [
        ("post", "/api/v1/uploads/preview", call(f"{base}/api/v1/uploads/preview?name=train.log", log, BYTES)),
        ("post", "/api/v1/uploads/check", call(f"{base}/api/v1/uploads/check", new, multipart)),
        ("post", "/api/v1/runs", upload),
        *changes(base, json.loads(upload)["id"], log),
    ]
    read = addresses(base, document)
    sent += [("get", path, call(base + address)) for path, address in read.items()]
    answers: dict[str, Any] = {}
    for method, path, body in sent:
        answer = json.loads(body or '{"items": []}')
        if answer.get("items", True):
            name = schema_of(document["paths"][path][method])
            answers[name] = keep(answers, names, document, {"$ref": REF + name}, answer)
        else:
            print(f"no answer: {method} {path}")
    taken = json.loads(json.dumps(dict(sorted(answers.items()))).replace(base, "BASE"))
    return {
        "queries": {path: urlsplit(address).query for path, address in read.items() if "?" in address},
        "answers": taken,
    }


def changes(base: str, run: int, log: bytes) -> list[tuple[str, str, bytes]]:
    """Return method, path and answer of calls that change things. The run is deleted last."""
    regression = first(base, "regressions?project=demo")
    launch = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-experts 128 --moe-token-dispatcher-type alltoall"
    bodies: list[tuple[str, str, str, Any]] = [
        ("post", "/api/v1/runs/{run_id}/logs", f"/api/v1/runs/{run}/logs?name=node-1.log", log),
        ("patch", "/api/v1/runs", "", {"runs": [run], "tags": ["nightly"], "author": "Ana"}),
        ("patch", "/api/v1/regressions", "",
         {"regressions": [{"id": regression["id"]}], "note": "Measured again.", "author": "Ana"}),
        ("post", "/api/v1/check", "", {"launch": launch, "facts": {"gpu": "H100"}}),
        ("put", "/api/v1/projects/{slug}/views/{name}", "/api/v1/projects/demo/views/slower",
         {"query": "verdict=regression", "author": "Ana"}),
        ("post", "/api/v1/projects/{slug}/dashboard", "/api/v1/projects/demo/dashboard",
         {"page": f"/history/{regression['members'][0]['stack_key']}", "author": "Ana"}),
        ("post", "/api/v1/projects/{slug}/deletions/preview", "/api/v1/projects/demo/deletions/preview",
         {"what": "runs", "runs": [run]}),
        ("delete", "/api/v1/runs/{run_id}", f"/api/v1/runs/{run}?author=Ana", b""),
    ]  # fmt: skip
    return [
        (method, path, call(base + (address or path), body, BYTES, method.upper()))
        if isinstance(body, bytes)
        else (method, path, call(base + (address or path), json.dumps(body).encode(), method=method.upper()))
        for method, path, address, body in bodies
    ]


def schema_of(operation: Mapping[str, Any]) -> str:
    for status, answer in sorted(operation["responses"].items()):
        schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
        if status.startswith("2") and "$ref" in schema:
            return str(schema["$ref"]).removeprefix(REF)
    return ""


def first(base: str, query: str) -> dict[str, Any]:
    item: dict[str, Any] = json.loads(call(f"{base}/api/v1/{query}"))["items"][0]
    return item


def addresses(base: str, document: Mapping[str, Any]) -> dict[str, str]:
    """Return the address by path, for each call that reads and answers with a schema."""
    run = json.loads(call(f"{base}/api/v1/runs/{first(base, 'runs?project=demo&verdict=regression')['id']}"))
    baseline = json.loads(call(f"{base}/api/v1/runs/{run['id']}/verdict"))["baseline"]["runs"]
    values = {
        "run_id": run["id"], "slug": "demo", "stack": run["stack_key"], "commit": run["commit"], "experiment_id": 4,
        "regression_id": first(base, "regressions?project=demo")["id"], "rule": "val-regression-cause", "profile_id": 1,
        "reference_id": first(base, "references")["id"],
    }  # fmt: skip
    queries = {
        "/api/v1/compare": f"?a={baseline[-1]}&b={run['id']}",
        "/api/v1/compare/profiles": "?a=1&b=2",
        "/api/v1/leaderboards/matrix": "?hardware=h100&family=qwen3-30b-a3b",
        "/api/v1/commits/{commit}/report": "?project=demo",
        "/api/v1/plan": "?model=Qwen3-30B-A3B&gpu=H100&gpus=16&seq_len=4096&gbs=512",
        "/api/v1/references/nearest": f"?run={run['id']}",
        "/api/v1/run-filters": "?q=gpu:h",
    }
    profiled = json.loads(call(f"{base}/api/v1/runs/{json.loads(call(f'{base}/api/v1/profiles/1'))['run']}"))
    of_profile = {
        "/api/v1/runs/{run_id}/profiles": {"run_id": profiled["id"]},
        "/api/v1/history/{stack}/profiles": {"stack": profiled["stack_key"]},
    }
    return {
        path: path.format(**values | of_profile.get(path, {})) + queries.get(path, "")
        for path, calls in document["paths"].items()
        if schema_of(calls.get("get", {"responses": {}})) and "{receiver_id}" not in path
    }


def keep(
    answers: dict[str, Any], names: set[str], document: Mapping[str, Any], schema: Mapping[str, Any], value: Any
) -> Any:
    """Return the value with its lists cut. Store it, and each part of it that another call answers with."""
    name = str(schema.get("$ref", "")).removeprefix(REF)
    if name:
        schema = document["components"]["schemas"][name]
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    if value is not None and len(options) == 1:
        return keep(answers, names, document, options[0], value)
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        rest = schema.get("additionalProperties")
        other = rest if isinstance(rest, dict) else {}
        pairs = [*value.items()] if fields else [*value.items()][:2]
        value = {key: keep(answers, names, document, fields.get(key, other), part) for key, part in pairs}
    elif isinstance(value, list):
        items = schema.get("items", {})
        most = 2 if value and isinstance(value[0], int | float) else 1
        value = [keep(answers, names, document, items, item) for item in value[:most]]
    elif isinstance(value, str) and len(value) > LONGEST:
        value = f"{value[:LONGEST].splitlines()[0]} ..."
    if name in names and value is not None:
        answers.setdefault(name, value)
    return value


if __name__ == "__main__":
    TARGET.write_text(json.dumps(take(sys.argv[1]), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
