"""The part that both Python servers share: the fixtures of the suite and the behaviour of its tools.

This file uses no SDK. README.md in the parent directory describes the servers, and fixtures.json has the definitions.
"""

import json
import re
import socket
from pathlib import Path

import anyio

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TONE = "UklGRiwAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQgAAAAAAEAfAADA4A=="
PAUSE = 0.02  # between two messages of a tool, so that they are separate writes
CLOSED = 0.3  # after a stream was closed; the client resumes it after RETRY_MS
RETRY_MS = 200
WATCHED = "test://watched-resource"
TRIGGERS = {
    "test_trigger_tool_change": "tools",
    "test_trigger_prompt_change": "prompts",
    "test_trigger_resource_change": "watched",
}
CAPABILITIES = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}

source = Path(__file__).with_name("fixtures.json").read_text(encoding="utf-8")
FIXTURES = json.loads(source.replace("$PIXEL", PIXEL).replace("$TONE", TONE))
changes = {"tools": 0, "prompts": 0, "watched": 0}


class Refused(Exception):
    """The user declined or cancelled a server request."""


def list_tools():
    schema = {"type": "object", "properties": {}}
    return [{"inputSchema": schema, **changing(tool, "test_changing_tool", "tools")} for tool in FIXTURES["tools"]]


def list_prompts():
    return [changing(prompt, "test_changing_prompt", "prompts") for prompt in FIXTURES["prompts"]]


def changing(entry, name, subject):
    """Adds the number of changes to the description of the entry `name`."""
    if entry["name"] != name:
        return entry
    return {**entry, "description": f"{entry['description']} ({changes[subject]})"}


def read(uri):
    """Returns the content of a resource. Returns None if there is none."""
    if uri in FIXTURES["contents"]:
        return {"uri": uri, **FIXTURES["contents"][uri]}
    found = re.fullmatch("test://template/([^/]+)/data", uri)
    if found is None:
        return None
    text = json.dumps({"id": found[1], "data": f"data of {found[1]}"})
    return {"uri": uri, "mimeType": "application/json", "text": text}


def complete(value):
    values = [word for word in FIXTURES["completions"] if word.startswith(value)]
    return {"values": values, "total": len(values), "hasMore": False}


def text(words, **members):
    return {"content": [{"type": "text", "text": words}], **members}


async def call(name, arguments, context):
    """Returns the result of a tool. Returns None if there is no such tool.

    `context` is the part of the SDK: `progress(progress, total, message)`, `log(data)`, `close_stream()`,
    `changed(subject)`, `ask(take)`, `capabilities` and `missing_capability(required)`.
    """
    if name in FIXTURES["results"]:
        return filled(FIXTURES["results"][name], arguments)
    if name == "test_tool_with_progress":
        for progress in (0, 50, 100):
            await context.progress(progress, 100, f"step {progress}")
            await anyio.sleep(PAUSE)
        return text("three steps")
    if name in ("test_tool_with_logging", "test_logging_tool"):
        for message in ("started", "working", "finished"):
            await context.log(message)
            await anyio.sleep(PAUSE)
        return text("three messages")
    if name == "test_reconnection":
        await context.close_stream()
        await anyio.sleep(CLOSED)
        return text("answered after the stream was closed")
    if name in TRIGGERS:
        changes[TRIGGERS[name]] += 1
        await context.changed(TRIGGERS[name])
        return text("changed")
    if name == "test_missing_capability":
        if "sampling" not in context.capabilities:
            raise context.missing_capability({"sampling": {}})
        return text("the client samples")
    if name not in FIXTURES["asking"]:
        return None
    try:
        answers = await context.ask(lambda responses, state: step(name, arguments, context, responses, state))
    except Refused:
        return text("the user refused", isError=True)
    return text(f"state-ok {json.dumps(answers)}")


async def get_prompt(name, arguments, context):
    """Returns the messages of a prompt. Returns None if there is no such prompt."""
    if name not in FIXTURES["messages"]:
        return None
    if name in FIXTURES["asking"]:
        await context.ask(lambda responses, state: step(name, arguments, context, responses, state))
    return filled(FIXTURES["messages"][name], arguments)


def filled(value, arguments):
    """Replaces `{argument}` in all texts."""
    if isinstance(value, dict):
        return {key: filled(member, arguments) for key, member in value.items()}
    if isinstance(value, list):
        return [filled(member, arguments) for member in value]
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda found: arguments.get(found[1], found[0]), value)
    return value


def step(name, arguments, context, responses, state):
    """Takes the next step of a tool with server requests: `(answers, None, None)` or `(None, requests, state)`.

    A sealed tool accepts responses only together with its state. Raises Refused if the user refused.
    """
    asking = FIXTURES["asking"][name]
    sealed = asking.get("sealed", False)
    progress = state or {"round": 0, "answers": {}}
    given = {} if sealed and state is None else responses or {}
    shorts = filled(asking["rounds"][progress["round"]], arguments)
    asked = {key: request(short) for key, short in shorts.items()}
    if asking.get("supportedOnly"):
        asked = {key: value for key, value in asked.items() if CAPABILITIES[value["method"]] in context.capabilities}
    judged = {key: judge(value, given.get(key)) for key, value in asked.items()}
    if None in judged.values():
        return None, asked, progress if sealed else None
    answers = {**progress["answers"], **judged}
    if progress["round"] + 1 == len(asking["rounds"]):
        return answers, None, None
    return step(name, arguments, context, {}, {"round": progress["round"] + 1, "answers": answers})


def request(short):
    """Returns the request for its short form in the fixtures."""
    if "roots" in short:
        return {"method": "roots/list"}
    if "sample" in short:
        message = {"role": "user", "content": {"type": "text", "text": short["sample"]}}
        return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 100}}
    properties = FIXTURES["forms"][short["form"]]
    required = [key for key, schema in properties.items() if "default" not in schema]
    schema = {"type": "object", "properties": properties, "required": required}
    return {"method": "elicitation/create", "params": {"message": short["elicit"], "requestedSchema": schema}}


def judge(asked, answer):
    """Returns the useful part of an answer. Returns None for an invalid answer."""
    if not isinstance(answer, dict):
        return None
    if asked["method"] == "roots/list":
        roots = answer.get("roots")
        return [root["uri"] for root in roots] if isinstance(roots, list) else None
    if asked["method"] == "sampling/createMessage":
        content = answer.get("content")
        content = content[0] if isinstance(content, list) and content else content
        return content.get("text") if isinstance(content, dict) else None
    if answer.get("action") in ("decline", "cancel"):
        raise Refused
    content = answer.get("content") or {}
    required = asked["params"]["requestedSchema"]["required"]
    return content if answer.get("action") == "accept" and all(key in content for key in required) else None


class Events:
    """Keeps the events of all streams, as the transports of the SDKs require."""

    def __init__(self):
        self.events = []

    async def store_event(self, stream_id, message):
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay(self, last_event_id, send):
        """Calls `send(message, event_id)` for each later message of the same stream."""
        first = int(last_event_id)
        if not 0 < first <= len(self.events):
            return None
        stream_id = self.events[first - 1][0]
        for index, (stream, message) in enumerate(self.events[first:], first + 1):
            if stream == stream_id and message is not None:  # a priming event has no message
                await send(message, str(index))
        return stream_id


async def serve_http(application):
    """Serves on a free port of 127.0.0.1 and prints the address."""
    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(f"listening http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    await uvicorn.Server(uvicorn.Config(application, log_level="warning")).serve(sockets=[listener])
