"""Plays a script of MCP steps through the official Python SDK, 1.x or 2.x, whichever is installed.

It is a client that Goblin's authors did not write: the tests believe it rather than our own code. It prints one JSON
object with everything the SDK showed it. What a server refuses is part of that object, so a refused step is no failure
of this program: exit code 0 means that the connection stood and each step was played, 1 that it did not, 2 wrong usage.

README.md in this directory describes the arguments, the steps and the output.
"""

import json
import os
import sys
import traceback
import warnings
from argparse import ArgumentParser
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import anyio
from mcp.shared._httpx_utils import create_mcp_http_client

SDK_VERSION = version("mcp")
IS_V1 = SDK_VERSION.startswith("1.")

if IS_V1:
    from mcp import ClientSession, types
    from mcp.client.sse import sse_client
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from pydantic import AnyUrl
else:
    import mcp_types as types
    from mcp import Client
    from mcp.client.extension import ClientExtension, ResultClaim
    from mcp.client.sse import sse_client
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

DEFAULT_STEP_TIMEOUT_MS = 30_000
FEATURE_TIMEOUT_MS = 45_000  # of a step of a feature: those that fail must not use up the patience of a whole test
POLL_SECONDS = 0.02
FIRST_MODERN_VERSION = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"
FEATURES = json.loads(Path(__file__).with_name("features.json").read_text(encoding="utf-8"))


def main():
    options = parse_arguments(sys.argv[1:])
    warnings.simplefilter("ignore")  # 2.x warns of every legacy method, and those are what we are here for
    try:
        report = anyio.run(play, options)
    except BaseException as error:  # an ExceptionGroup may hold KeyboardInterrupt
        for leaf in leaves(error):
            print(f"client: {type(leaf).__name__}: {leaf}", file=sys.stderr)
        if os.environ.get("CLIENT_TRACEBACK"):
            traceback.print_exc()
        sys.exit(1)
    if report is not None:
        json.dump(report, sys.stdout)
        print()


def parse_arguments(arguments):
    # Split by hand: argparse gives `--` a different meaning in different Python versions.
    command = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, command = arguments[:cut], arguments[cut + 1 :]
    parser = ArgumentParser(description="play a script of MCP steps; see README.md")
    parser.add_argument("--era", choices=["legacy", "auto", "modern"], default="legacy")
    parser.add_argument("--answer", metavar="MARK")
    parser.add_argument("--features", metavar="all|NAME,...", help="instead of SCRIPT")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'")
    parser.add_argument("transport", choices=["http", "sse", "stdio"])
    parser.add_argument("rest", nargs="*", metavar="URL SCRIPT | SCRIPT -- COMMAND")
    options = parser.parse_args(arguments)
    if options.features is not None:
        options.rest.append(None)  # where the script would be
        options.answer = options.answer or "mark"
        options.features = list(FEATURES) if options.features == "all" else options.features.split(",")
        unknown = [name for name in options.features if name not in FEATURES]
        if unknown:
            parser.error(f"unknown features {unknown}; known are {list(FEATURES)}")

    if options.transport != "stdio" and (len(options.rest) != 2 or command):
        parser.error(f"{options.transport} wants: URL SCRIPT.json")
    if options.transport == "stdio" and (len(options.rest) != 1 or not command):
        parser.error("stdio wants: SCRIPT.json -- COMMAND ARGS...")
    if IS_V1 and options.era != "legacy":
        parser.error(f"mcp {SDK_VERSION} knows no era but legacy")

    options.url = None if options.transport == "stdio" else options.rest[0]
    options.command = command
    options.headers = dict(header.split(": ", 1) for header in options.header)
    options.steps = []
    if options.features is None:
        with open(options.rest[-1], encoding="utf-8") as file:
            options.steps = json.load(file)
    unknown = [step.get("do") for step in options.steps if step.get("do") not in STEPS]
    if unknown:
        parser.error(f"unknown steps {unknown}; known are {sorted(STEPS)}")
    return options


async def play(options):
    journal = Journal()
    async with connect(options, journal) as (client, handshake), AsyncExitStack() as held_open:
        player = Player(client, journal, held_open)
        if options.features is not None:
            return await play_features(player, options)
        async with anyio.create_task_group() as player.tasks:
            steps = [await player.play(index, step) for index, step in enumerate(options.steps)]
            player.tasks.cancel_scope.cancel()  # whatever was begun and not ended
    return {
        "sdk": f"python-{SDK_VERSION}",
        **handshake,
        "steps": steps,
        "progress": journal.progress,
        "asks": journal.asks,
        "notifications": [entry.content for entry in journal.entries],
        "trace": journal.trace,
    }


# ---- features: what features.json says of one, played and judged; a line on stdout for each


class Lacking(Exception):
    """Raised by a step that the SDK, or the server, has no means for."""


async def play_features(player, options):
    async with anyio.create_task_group() as player.tasks:
        for name in options.features:
            print(json.dumps(await play_feature(player, name, options)), flush=True)
        player.tasks.cancel_scope.cancel()  # whatever was begun and not ended


async def play_feature(player, name, options):
    script = FEATURES[name] if isinstance(FEATURES[name], list) else FEATURES[name][options.era]
    for index, step in enumerate(json.loads(json.dumps(script).replace("$MARK", options.answer))):
        outcome = await player.play(step["do"], {"timeoutMs": FEATURE_TIMEOUT_MS, **step})
        if outcome.get("error", {}).get("kind") == "Lacking":
            return {"feature": name, "skipped": outcome["error"]["message"]}
        problem = judge(outcome, step.get("expect", {}))
        if problem is not None:
            return {"feature": name, "ok": False, "detail": f"step {index} {step['do']}: {problem}"}
    return {"feature": name, "ok": True}


def judge(outcome, expected):
    if not any(pointer.startswith("/error") for pointer in expected):
        expected = {"/ok": True, **expected}
    for pointer, value in expected.items():
        found = outcome
        for key in pointer[1:].split("/"):
            try:
                found = found[int(key) if isinstance(found, list) else key]
            except (KeyError, IndexError, TypeError, ValueError):
                found = None
        if found != value:
            return f"{pointer} is {json.dumps(found)}, not {json.dumps(value)}, in {json.dumps(outcome)}"
    return None


# ---- connecting: the part in which the two SDKs differ most


@asynccontextmanager
async def connect(options, journal):
    async with AsyncExitStack() as stack:
        if options.transport == "http":
            http_client = await stack.enter_async_context(create_mcp_http_client(headers=options.headers))
            transport = streamable_http_client(options.url, http_client=http_client)
        elif options.transport == "sse":
            transport = sse_client(options.url, headers=options.headers)
        else:
            # The SDK would hand down a few variables only; tests speak to their server through the environment.
            transport = stdio_client(
                StdioServerParameters(command=options.command[0], args=options.command[1:], env=dict(os.environ))
            )
        connect_by_sdk = connect_v1 if IS_V1 else connect_v2
        callbacks = {} if options.answer is None else answers(options.answer, journal)
        yield await connect_by_sdk(stack, transport, options.era, journal, callbacks)


async def connect_v1(stack, transport, _era, journal, callbacks):
    read, write, *_ = await stack.enter_async_context(transport)
    session = await stack.enter_async_context(
        ClientSession(read, write, message_handler=journal.on_message, client_info=client_info(), **callbacks)
    )
    with anyio.fail_after(DEFAULT_STEP_TIMEOUT_MS / 1000):
        result = await session.initialize()
    return session, {
        "protocolVersion": result.protocolVersion,
        "serverInfo": dump(result.serverInfo),
        "capabilities": dump(result.capabilities),
        "instructions": result.instructions,
    }


async def connect_v2(stack, transport, era, journal, callbacks):
    client = await stack.enter_async_context(
        Client(
            transport,
            mode="legacy" if era == "legacy" else "auto",
            message_handler=journal.on_message,
            client_info=client_info(),
            read_timeout_seconds=DEFAULT_STEP_TIMEOUT_MS / 1000,
            cache=None,  # a step asks the server, not the SDK's memory
            extensions=[Tasks()] if callbacks else None,
            **callbacks,
        )
    )
    if era == "modern" and client.protocol_version < FIRST_MODERN_VERSION:
        raise RuntimeError(f"asked for the modern era, negotiated {client.protocol_version}")
    return client, {
        "protocolVersion": client.protocol_version,
        "serverInfo": dump(client.server_info),
        "capabilities": dump(client.server_capabilities),
        "instructions": client.instructions,
    }


def client_info():
    return types.Implementation(name="goblin-test-client-python", version=SDK_VERSION)


# ---- tasks, of which the SDK 2.x knows nothing itself


if not IS_V1:

    class TaskResult(types.Result):
        result_type: Literal["task"]
        task_id: str

    class TaskParams(types.RequestParams):
        task_id: str

    class GetTask(types.Request[TaskParams, Literal["tasks/get"]]):
        method: Literal["tasks/get"] = "tasks/get"
        params: TaskParams
        name_param = "taskId"

    class TaskState(types.Result):
        status: str
        result: dict | None = None

    class Tasks(ClientExtension):
        """Follows a task to its end. A result so found has its status in `_meta`."""

        identifier = TASKS

        def claims(self):
            return [ResultClaim(result_type="task", model=TaskResult, resolve=self.resolve)]

        async def resolve(self, created, context):
            while True:
                request = GetTask(params=TaskParams(task_id=created.task_id))
                task = await context.session.send_request(request, TaskState)
                if task.status not in ("working", "input_required"):
                    return types.CallToolResult.model_validate({**(task.result or {}), "_meta": {TASKS: task.status}})
                await anyio.sleep(POLL_SECONDS)


# ---- what the server asks


def answers(mark, journal):
    """The callbacks of a user who puts `mark` into each answer; with them the SDK declares the capabilities."""

    def keep(method, params):
        """Records the request. Returns the answer that a server of the tests wants, as a model of the SDK."""
        dumped = dump(params)
        journal.asks.append({"method": method, "params": dumped})
        journal.trace.append({"ask": {"method": method, "params": dumped}})
        wanted = ((dumped or {}).get("_meta") or {}).get("test/answer")
        if wanted is None:
            return None
        if "error" in wanted:
            return types.ErrorData.model_validate(wanted["error"])
        kinds = {"sampling/createMessage": types.CreateMessageResult, "elicitation/create": types.ElicitResult}
        kind = kinds[method]
        if method == "sampling/createMessage" and isinstance(wanted["result"].get("content"), list):
            kind = types.CreateMessageResultWithTools
        return kind.model_validate(wanted["result"])

    async def on_sampling(_context, params):
        if (answer := keep("sampling/createMessage", params)) is not None:
            return answer
        content = types.TextContent(type="text", text=mark)
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def on_elicitation(_context, params):
        if (answer := keep("elicitation/create", params)) is not None:
            return answer
        content = None if params.mode == "url" else {"name": mark}
        return types.ElicitResult(action="accept", content=content)

    async def on_roots(_context):
        keep("roots/list", None)
        return types.ListRootsResult(roots=[types.Root(uri=f"file:///{mark}")])

    return {
        "sampling_callback": on_sampling,
        "sampling_capabilities": types.SamplingCapability(
            context=types.SamplingContextCapability(), tools=types.SamplingToolsCapability()
        ),
        "elicitation_callback": on_elicitation,
        "list_roots_callback": on_roots,
    }


# ---- what the server sends unasked


class Entry:
    def __init__(self, content, received_at):
        self.content = content
        self.received_at = received_at
        self.taken = False


class Journal:
    """All notifications and progress of the connection, in order of arrival."""

    def __init__(self):
        self.entries = []
        self.progress = []
        self.asks = []
        self.trace = []  # all of it together
        self.arrival = anyio.Event()

    async def on_message(self, message):
        if isinstance(message, Exception):
            print(f"client: transport: {message!r}", file=sys.stderr)
            return
        if IS_V1:
            if not isinstance(message, types.ServerNotification):
                return  # requests of the server have handlers of their own
            message = message.root
        if message.method == "notifications/progress":
            return  # comes through the call's own callback
        content = {"method": message.method}
        if message.params is not None:
            content["params"] = dump(message.params)
        self.entries.append(Entry(content, anyio.current_time()))
        self.trace.append({"notification": content})
        self.arrival.set()

    def count(self, method, params):
        return sum(matches(entry.content, method, params) for entry in self.entries)

    async def take(self, method, params, since):
        """The first matching notification that no earlier step took; waits for it."""
        while True:
            arrival = self.arrival
            for entry in self.entries:
                if not entry.taken and entry.received_at >= since and matches(entry.content, method, params):
                    entry.taken = True
                    return entry.content
            await arrival.wait()
            self.arrival = anyio.Event()


def matches(content, method, params):
    received = content.get("params", {})
    return content["method"] == method and all(
        key in received and received[key] == value for key, value in params.items()
    )


# ---- the steps


class Player:
    def __init__(self, client, journal, held_open):
        self.client = client
        self.journal = journal
        self.held_open = held_open
        self.acted_at = 0
        self.tasks = None  # where calls go on while other steps are played
        self.begun = None

    async def play(self, index, step):
        name = step["do"]
        if name != "wait_notification":
            self.acted_at = anyio.current_time()
        timeout_ms = step.get("timeoutMs", DEFAULT_STEP_TIMEOUT_MS)
        try:
            with anyio.fail_after(timeout_ms / 1000):
                outcome = {"do": name, "ok": True, **await STEPS[name](self, step, index)}
        except Exception as error:
            message = str(error) or f"{name} did not end within {timeout_ms} ms"
            outcome = {"do": name, "ok": False, "error": describe(error, message)}
        # A test that must act between two steps waits for this line.
        print(f"client: step {index} {name} {'ok' if outcome['ok'] else 'failed'}", file=sys.stderr, flush=True)
        return outcome

    async def initialize(self, _step, _index):
        return {"result": {}}

    async def list_tools(self, _step, _index):
        return await self.follow_pages(self.client.list_tools, "tools")

    async def await_tool(self, step, index):
        return await self.await_listed(self.list_tools, "tools", "name", step, index)

    async def await_prompt(self, step, index):
        return await self.await_listed(self.list_prompts, "prompts", "name", step, index)

    async def await_resource(self, step, index):
        return await self.await_listed(self.list_resources, "resources", "uri", step, index)

    async def await_template(self, step, index):
        return await self.await_listed(self.list_templates, "resourceTemplates", "uriTemplate", step, index)

    async def await_listed(self, list_all, member, key, step, index):
        while True:
            listed = await list_all(step, index)
            if any(entry[key] == step[key] for entry in listed["result"][member]):
                return listed
            await anyio.sleep(POLL_SECONDS)

    async def list_prompts(self, _step, _index):
        return await self.follow_pages(self.client.list_prompts, "prompts")

    async def list_resources(self, _step, _index):
        return await self.follow_pages(self.client.list_resources, "resources")

    async def list_templates(self, _step, _index):
        return await self.follow_pages(self.client.list_resource_templates, "resourceTemplates")

    async def follow_pages(self, list_page, member):
        first, cursor, pages = None, None, 0
        while pages == 0 or cursor is not None:
            if not IS_V1:
                page = await list_page(cursor=cursor)
            elif cursor is None:
                page = await list_page()
            else:
                page = await list_page(params=types.PaginatedRequestParams(cursor=cursor))
            page, pages = dump(page), pages + 1
            cursor = page.pop("nextCursor", None)
            if first is None:
                first = page
            else:
                first[member] += page[member]
        return {"result": first, "pages": pages}

    async def call_tool(self, step, index):
        async def on_progress(progress, total, message):
            entry = {"progress": progress, "total": total, "message": message}
            entry = {key: value for key, value in entry.items() if value is not None}
            self.journal.progress.append({"step": index, **entry})
            self.journal.trace.append({"progress": entry})

        callback = on_progress if step.get("progress") else None
        arguments = step.get("arguments")
        meta = {"meta": {types.LOG_LEVEL_META_KEY: step["level"]}} if "level" in step else {}
        return {"result": dump(await self.client.call_tool(step["name"], arguments, progress_callback=callback, **meta))}

    async def await_text(self, step, index):
        while True:
            called = await self.call_tool(step, index)
            if called["result"]["content"][0]["text"] == step["text"]:
                return called
            await anyio.sleep(POLL_SECONDS)

    async def begin_call(self, step, _index):
        self.begun = Begun(self.client, step)
        self.tasks.start_soon(self.begun.run)
        return {}

    async def await_progress(self, step, _index):
        while len(self.begun.progress) < step["count"]:
            await anyio.sleep(POLL_SECONDS)
        return {"result": self.begun.progress}

    async def cancel_call(self, step, _index):
        if IS_V1 and step.get("tell"):
            raise Lacking(f"mcp {SDK_VERSION} does not tell the server that it gave a call up")
        self.begun.scope.cancel()
        await self.begun.ended.wait()
        return {}

    async def call_as_task(self, step, _index):
        if not IS_V1:
            result = dump(await self.client.call_tool(step["name"], step.get("arguments")))
            status = result.get("_meta", {}).get(TASKS)
            if status is None:
                raise Lacking("the server did not make a task of it")
            return {"status": status, "result": result}
        tasks = self.client.experimental
        capabilities = self.client.get_server_capabilities()
        if capabilities.tasks is None:
            raise Lacking("the server declares no tasks")
        created = await tasks.call_tool_as_task(step["name"], step.get("arguments"), ttl=60_000)
        async for task in tasks.poll_task(created.task.taskId):
            status = task.status
        result = await tasks.get_task_result(created.task.taskId, types.CallToolResult)
        return {"status": status, "result": dump(result)}

    async def get_prompt(self, step, _index):
        return {"result": dump(await self.client.get_prompt(step["name"], step.get("arguments")))}

    async def read_resource(self, step, _index):
        return {"result": dump(await self.client.read_resource(uri(step)))}

    async def subscribe(self, step, _index):
        return {"result": dump(await self.client.subscribe_resource(uri(step)))}

    async def unsubscribe(self, step, _index):
        return {"result": dump(await self.client.unsubscribe_resource(uri(step)))}

    async def listen(self, step, _index):
        if IS_V1:
            raise Lacking(f"mcp {SDK_VERSION} has no subscriptions/listen")
        wanted = step["notifications"]
        subscription = await self.held_open.enter_async_context(
            self.client.listen(
                tools_list_changed=wanted.get("toolsListChanged", False),
                prompts_list_changed=wanted.get("promptsListChanged", False),
                resources_list_changed=wanted.get("resourcesListChanged", False),
                resource_subscriptions=wanted.get("resourceSubscriptions", []),
            )
        )
        return {"result": {"notifications": dump(subscription.honored)}}

    async def complete(self, step, _index):
        kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
        reference = kinds[step["ref"]["type"]](**step["ref"])
        context = step.get("context", {}).get("arguments")
        return {"result": dump(await self.client.complete(reference, step["argument"], context))}

    async def set_level(self, step, _index):
        return {"result": dump(await self.client.set_logging_level(step["level"]))}

    async def ping(self, _step, _index):
        return {"result": dump(await self.client.send_ping())}

    async def request(self, step, index):
        """Sends any request. The result is as it was on the wire."""
        message = Message(method=step["method"], params=step.get("params"))
        session = self.client if IS_V1 else self.client.session
        return {"result": dump(await session.send_request(message, Raw))}

    async def notify(self, step, _index):
        session = self.client if IS_V1 else self.client.session
        await session.send_notification(Message(method=step["method"], params=step.get("params")))
        return {"result": {}}

    async def wait_notification(self, step, _index):
        since = self.acted_at if step.get("fresh") else 0
        return {"result": await self.journal.take(step["method"], step.get("params", {}), since)}

    async def count_notifications(self, step, _index):
        return {"result": self.journal.count(step["method"], step.get("params", {}))}


class Message(types.Request[dict | None, str]):
    """A message that the types of the SDK do not know. It serves as a notification too."""

    method: str
    params: dict | None = None


class Raw(types.Result):
    """Any result."""

    model_config = {"extra": "allow"}


class Begun:
    """A call that goes on while other steps are played."""

    def __init__(self, client, step):
        self.client = client
        self.step = step
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.progress = []

    async def run(self):
        try:
            with self.scope:
                await self.client.call_tool(self.step["name"], self.step["arguments"], progress_callback=self.on_progress)
        except Exception as error:
            print(f"client: the call has ended: {error!r}", file=sys.stderr)
        finally:
            self.ended.set()

    async def on_progress(self, progress, total, message):
        self.progress.append({"progress": progress, "total": total, "message": message})


STEPS = {
    name: getattr(Player, name)
    for name in (
        "initialize list_tools await_tool await_prompt await_resource await_template call_tool list_prompts get_prompt list_resources list_templates "
        "read_resource subscribe unsubscribe listen complete set_level ping wait_notification "
        "await_text begin_call await_progress cancel_call call_as_task count_notifications request notify"
    ).split()
}


def uri(step):
    # The 1.x API takes a parsed URL, which is how real programs come to send a normalised URI.
    return AnyUrl(step["uri"]) if IS_V1 else step["uri"]


# ---- values


def dump(model):
    """What was on the wire, as far as the SDK kept it: defaults it filled in are left out."""
    return None if model is None else model.model_dump(mode="json", by_alias=True, exclude_unset=True)


def describe(error, message):
    wire = getattr(error, "error", None)  # McpError in 1.x, MCPError in 2.x
    if wire is not None:
        return {"code": wire.code, "message": wire.message, "data": wire.data, "kind": type(error).__name__}
    return {"code": None, "message": message, "data": None, "kind": type(error).__name__}


def leaves(error):
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


if __name__ == "__main__":
    main()
