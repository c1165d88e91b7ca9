#!/usr/bin/env python3
"""Captures the catalogs of published MCP servers, and checks the labelled set.

    capture.py SCRATCH [ID ...]   install each server below SCRATCH, start it over stdio, save catalogs/ID.json
    capture.py --check            check catalogs, queries and halves; print the counts

Run by hand. The tests read only what is committed. Servers start with a bare environment, HOME and the working
directory at /srv/data, and made-up keys: a server that cannot list its tools without a true account is not in
servers.json.
"""

import hashlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
CATALOGS = HERE / "catalogs"
DATA = "/srv/data"
PATIENCE = 90
KINDS = {
    "tools": ("tools/list", "tools"),
    "prompts": ("prompts/list", "prompts"),
    "resources": ("resources/list", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates"),
}
# Signs that a capture holds something of the machine it was made on; the home of `user` is what servers give as an example.
MACHINE = re.compile(r"/tmp/|/roo[t]/|/hom[e]/(?!user/)|/wor[k]/|node_modules|\.venv")
SERVERS = json.loads((HERE / "servers.json").read_text())


def bare_environment(extra):
    names = ("PATH", "LANG", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "HOME": DATA, "NO_COLOR": "1", "NO_UPDATE_NOTIFIER": "1", "DO_NOT_TRACK": "1", **extra}


def install(scratch, server):
    """Puts the package into a directory of its own; answers the program to start and the licence it declares."""
    place = scratch / server["id"]
    name, version = server["package"], server["version"]
    if server["from"] == "npm":
        if not place.exists():
            place.mkdir(parents=True)
            options = ["--loglevel=error", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(place)]
            subprocess.run(["npm", "install", *options, f"{name}@{version}"], check=True, stdout=subprocess.DEVNULL)
        package = json.loads((place / "node_modules" / name / "package.json").read_text())
        bins = package["bin"] if isinstance(package["bin"], dict) else {name.split("/")[-1]: package["bin"]}
        program = place / "node_modules" / ".bin" / server.get("bin", next(iter(bins)))
        return program, package.get("license", "")
    if not place.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        wanted = [f"{name}=={version}", *server.get("with", [])]
        subprocess.run([str(place / "bin" / "pip"), "install", "-q", *wanted], check=True)
    folder = re.compile(re.sub(r"[-_.]+", "[-_.]", name) + r"-[^-]+\.dist-info", re.I)
    installed = (place / "lib").glob("python*/site-packages/*")
    metadata = next(each / "METADATA" for each in installed if folder.fullmatch(each.name))
    lines = metadata.read_text().split("\n\n")[0].splitlines()
    licence = re.compile(r"License(-Expression)?: |Classifier: License")
    declared = [line.split(": ", 1)[1] for line in lines if licence.match(line)]
    return place / "bin" / server.get("bin", name), licence_of(declared)


def licence_of(declared):
    """The short name where a package gives one; some give the whole text, or only a classifier."""
    short = [each for each in declared if len(each) < 40 and "::" not in each]
    return (short or [each.split(" :: ")[-1] for each in declared] or [""])[0]


class Talk:
    """One stdio conversation: requests in order, everything unasked is answered or dropped."""

    def __init__(self, place, program, server):
        for name, content in server.get("files", {}).items():
            file = Path(DATA, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        self.log = open(place / "stderr.txt", "wb")
        self.process = subprocess.Popen(
            [str(program), *server.get("args", [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=DATA,
            env=bare_environment(server.get("env", {})),
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.next_id = 0

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method, params):
        self.next_id += 1
        self.send({"id": self.next_id, "method": method, "params": params})
        while True:
            line = self.lines.get(timeout=PATIENCE)
            if line is None:
                raise RuntimeError(f"server ended during {method}")
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if not isinstance(message, dict):
                continue
            if message.get("method") and "id" in message:
                self.send({"id": message["id"], "error": {"code": -32601, "message": "not offered"}})
            elif message.get("id") == self.next_id:
                if "error" in message:
                    raise LookupError(f"{method}: {message['error']}")
                return message["result"]

    def all(self, method, field):
        found, cursor = [], None
        while True:
            page = self.ask(method, {"cursor": cursor} if cursor else {})
            found += page.get(field, [])
            cursor = page.get("nextCursor")
            if not cursor:
                return found


def capture(scratch, server):
    program, licence = install(scratch, server)
    talk = Talk(scratch / server["id"], program, server)
    try:
        client = {"name": "capture", "version": "1"}
        start = talk.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        talk.send({"method": "notifications/initialized"})
        catalog = {name: server[name] for name in ("id", "package", "version")}
        catalog["license"] = server.get("license", licence)
        for kind, (method, field) in KINDS.items():
            offered = method.split("/")[0] in start["capabilities"]
            try:
                catalog[kind] = talk.all(method, field) if offered else []
            except LookupError as refusal:
                if kind == "tools":
                    raise
                print(f"  {server['id']}: {refusal}", file=sys.stderr)
                catalog[kind] = []
    finally:
        talk.process.kill()
        talk.process.wait()
    return catalog


def save(catalog):
    """Compact JSON, one definition per line, so that the difference between two captures can be read."""
    def compact(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    heads = [f"{compact(name)}:{compact(value)}" for name, value in catalog.items() if name not in KINDS]
    lists = [f"{compact(kind)}:[" + ",".join("\n" + compact(each) for each in catalog[kind]) + "]" for kind in KINDS]
    (CATALOGS / f"{catalog['id']}.json").write_text("{" + ",\n".join(heads + lists) + "}\n")


def half(query):
    return "tuning" if hashlib.sha256(query.encode()).digest()[0] % 2 == 0 else "held-out"


def check():
    """Says what is wrong with the committed set, then counts it; the exit code tells whether anything was."""
    wrong, names, counts = [], {"tools": set(), "resources": set()}, dict.fromkeys(KINDS, 0)
    files = sorted(CATALOGS.glob("*.json"))
    listed = (HERE / "README.md").read_text()
    for file in files:
        text = file.read_text()
        catalog = json.loads(text)
        wrong += [f"{file.name}: names {mark}" for mark in sorted(set(MACHINE.findall(text)))]
        identifier = catalog["id"]
        if file.stem != identifier or f"| {identifier} | `{catalog['package']}` {catalog['version']} |" not in listed:
            wrong.append(f"{file.name}: the table of the README does not have it as it is")
        for kind in KINDS:
            counts[kind] += len(catalog[kind])
        tools = [tool["name"] for tool in catalog["tools"]]
        if len(set(tools)) != len(tools):
            wrong.append(f"{file.name}: two tools of one name")
        names["tools"].update(f"{identifier}/{tool}" for tool in tools)
        names["resources"].update(f"{identifier}/{prompt['name']}" for prompt in catalog["prompts"])
        names["resources"].update(f"{identifier}/{resource['uri']}" for resource in catalog["resources"])
        names["resources"].update(f"{identifier}/{template['uriTemplate']}" for template in catalog["templates"])
    print(f"{len(files)} servers:", ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    for file, known in (("queries.json", names["tools"]), ("queries-resources.json", names["resources"])):
        wrong += check_queries(file, known)
    for each in wrong:
        print(each)
    return 1 if wrong or counts["tools"] < 1000 else 0


def check_queries(file, known):
    entries = json.loads((HERE / file).read_text())
    queries = [entry["query"] for entry in entries]
    wrong = [f"{file}: asked twice: {query}" for query in set(queries) if queries.count(query) > 1]
    for entry in entries:
        unknown = [answer for answer in entry["answers"] if answer not in known]
        if unknown or not entry["answers"] or len(set(entry["answers"])) != len(entry["answers"]):
            wrong.append(f"{file}: {entry['query']}: no answer, twice the same, or unknown: {unknown}")
    tuning = sum(half(query) == "tuning" for query in queries)
    servers = len({answer.split("/")[0] for entry in entries for answer in entry["answers"]})
    print(f"{file}: {len(queries)} queries over {servers} servers, {tuning} tuning, {len(queries) - tuning} held out")
    if file == "queries.json" and not 0.45 <= tuning / len(queries) <= 0.55:
        wrong.append(f"{file}: the halves are {tuning} and {len(queries) - tuning}")
    return wrong


def main():
    if sys.argv[1:2] == ["--check"]:
        return check()
    scratch, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:]
    os.makedirs(DATA, exist_ok=True)
    for server in SERVERS:
        if wanted and server["id"] not in wanted:
            continue
        try:
            catalog = capture(scratch, server)
        except Exception as error:
            print(f"{server['id']}: {type(error).__name__}: {error}")
            continue
        save(catalog)
        text = (CATALOGS / f"{server['id']}.json").read_text()
        counts = [len(catalog[kind]) for kind in KINDS]
        marks = sorted(set(MACHINE.findall(text)))
        print(server["id"], *counts, f"{len(text) // 1024}K", catalog["license"], *marks, flush=True)


if __name__ == "__main__":
    sys.exit(main())
