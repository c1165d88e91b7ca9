"""A server made with the official Python SDK, 1.x or 2.x, whichever is installed: what catalog.json names.

Like client.py it is not ours where it matters: the SDK frames, negotiates and carries. What the two SDKs share is here,
the rest in server_sdk1.py and server_sdk2.py. README.md in this directory describes the arguments.
"""

import asyncio
import json
import logging
import re
import socket
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import anyio

CATALOG = json.loads(Path(__file__).with_name("catalog.json").read_text(encoding="utf-8"))
NAME = "goblin-test-server-python"
INSTRUCTIONS = "Call the tools in any order."
EXPERIMENTAL = {"test/feature": {"version": 1}}
NOTE = "notifications/test/note"
PAGE = 5  # how many entries of a list a page has
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ASKS = {
    "name": {"method": "elicitation/create", "params": {"message": "Who are you?", "requestedSchema": SCHEMA}},
    "sample": {
        "method": "sampling/createMessage",
        "params": {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Say something"}}],
            "maxTokens": 100,
        },
    },
    "roots": {"method": "roots/list"},
}


class World:
    """What outlives a session, or a request where there are no sessions."""

    def __init__(self):
        self.grown = []
        self.calls = {}  # by key: how many calls of `slow` have been started, cancelled
        self.notes = []  # what NOTE brought
        self.noted = asyncio.Event()

    def take_note(self, note):
        self.notes.append(note)
        self.noted.set()

    def tools(self):
        return CATALOG["tools"] + self.grown

    async def call(self, name, arguments, context):
        """The text that a tool answers with. `context` is the SDK's side: ask, log, progress, changed."""
        if name == "add":
            return str(arguments["a"] + arguments["b"])
        if name == "greet_elicit":
            answer = await context.ask("name", ASKS["name"])
            accepted = answer["action"] == "accept"
            return f"Hello, {answer['content']['name']}!" if accepted else f"the user said {answer['action']}"
        if name == "sample_it":
            content = (await context.ask("sample", ASKS["sample"]))["content"]
            return "sampled " + (content[0] if isinstance(content, list) else content)["text"]
        if name == "list_my_roots":
            answer = await context.ask("roots", ASKS["roots"])
            return "roots " + " ".join(root["uri"] for root in answer["roots"])
        if name == "slow":
            return await self.slow(arguments["key"], arguments["ms"], context)
        if name == "cancelled_count":
            started, cancelled = self.calls.get(arguments["key"], [0, 0])
            return f"{started} started, {cancelled} cancelled"
        if name == "chatty":
            await context.log("debug", "a debug line", "chatty")
            await context.log("info", "an info line", "chatty")
            await context.log("warning", "a warning line", "chatty")
            return "said it"
        if name == "touch":
            await context.changed("note://a")
            return "touched"
        if name == "grow":
            self.grown.append({"name": arguments["name"], "inputSchema": {"type": "object"}})
            await context.changed_list("tools")
            return "grown"
        if name == "later":
            return "done later"
        if name == "perform":
            return await perform(arguments, context)
        raise ValueError(f"there is no tool {name}")

    async def slow(self, key, milliseconds, context):
        count = self.calls.setdefault(key, [0, 0])
        count[0] += 1
        try:
            for step in (1, 2, 3):
                await context.progress(step, 3, f"step {step}")
            await anyio.sleep(milliseconds / 1000)
        except anyio.get_cancelled_exc_class():
            count[1] += 1
            raise
        return "waited"


class Failure(Exception):
    """An error that the server is to answer with."""

    def __init__(self, error):
        self.code = error["code"]
        self.message = error["message"]
        self.data = error.get("data")


async def perform(arguments, context):
    """Performs what the caller lists, in order. The answers to requests are the text of the result."""
    answers = []
    for index, action in enumerate(arguments.get("do", [])):
        [(kind, given)] = action.items()
        if kind == "log":
            await context.log(given["level"], given["data"], given.get("logger"))
        elif kind == "progress":
            await context.progress(given["progress"], given.get("total"), given.get("message"))
        elif kind == "notify":
            await context.notify(given)
        elif kind == "meta":
            answers.append(labels(context.meta))
        elif kind == "change":
            await context.changed_list(given)
        elif kind == "update":
            await context.changed(given)
        elif kind == "ask":
            try:
                answers.append(await context.ask(f"ask{index}", given))
            except Failure as error:
                answers.append({"code": error.code, "message": error.message, "data": error.data})
    if "error" in arguments:
        raise Failure(arguments["error"])
    return arguments.get("result") or json.dumps(answers)


def labels(meta):
    """The members of `_meta` that are the test's own."""
    return {key: value for key, value in (meta or {}).items() if key.startswith("test/")}


async def custom(world, method, params):
    """The answer to a method that is not of the protocol."""
    if method == "test/notes":
        # The SDK may handle a request before the note that came first.
        await world.noted.wait()
        return {"notes": world.notes}
    if "error" in params:
        raise Failure(params["error"])
    return {"echo": params.get("value"), "meta": labels(params.get("_meta")), "_meta": {"test/label": "echo"}}


def page(member, entries, cursor):
    """The page of a list that the cursor names."""
    start = 0 if cursor is None else int(cursor.removeprefix("at-")) if cursor.startswith("at-") else len(entries)
    if start > 0 and start >= len(entries):
        raise Failure({"code": -32602, "message": "no such cursor", "data": {"cursor": cursor}})
    found = {member: entries[start : start + PAGE], "_meta": {"test/label": member}}
    return {**found, "nextCursor": f"at-{start + PAGE}"} if start + PAGE < len(entries) else found


def prompt(name, arguments):
    if name == "wide":
        return {**CATALOG["widePrompt"], "description": json.dumps(arguments or {}, separators=(",", ":"))}
    if name != "greet":
        raise Failure({"code": -32602, "message": "no such prompt", "data": {"prompt": name}})
    return {"messages": [{"role": "user", "content": {"type": "text", "text": greeting(arguments)}}]}


def greeting(arguments):
    return f"Hello, {arguments['name']}!"


def read(uri):
    """The result for a resource, None if there is none."""
    if uri in ("note://a", "note://b"):
        return {"contents": [{"uri": uri, "text": f"note {uri[-1]}"}]}
    if uri == "note://wide":
        return {"contents": CATALOG["wideContents"], "_meta": {"test/label": "read"}}
    found = re.fullmatch("note://t/(.+)", uri)
    return {"contents": [{"uri": uri, "text": f"note t {found[1]}"}]} if found else None


def completion(value, arguments):
    values = [name for name in CATALOG["names"] if name.startswith(value)]
    return {"values": values + list((arguments or {}).values()), "total": len(values), "hasMore": False}


async def serve_http(application, path="/mcp"):
    """Serves on a free port of 127.0.0.1 and prints the address."""
    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(f"listening http://127.0.0.1:{listener.getsockname()[1]}{path}", flush=True)
    await uvicorn.Server(uvicorn.Config(application, log_level="warning")).serve(sockets=[listener])


def main():
    if sys.argv[1:] not in (["stdio"], ["http"]):
        print("usage: server.py stdio|http", file=sys.stderr)
        sys.exit(2)
    warnings.simplefilter("ignore")  # 2.x warns of every legacy method, and those are what we are here for
    logging.basicConfig(level=logging.CRITICAL)
    if version("mcp").startswith("1."):
        from server_sdk1 import serve
    else:
        from server_sdk2 import serve
    anyio.run(serve, sys.argv[1])


if __name__ == "__main__":
    main()
