"""The part of server.py that speaks through the Python SDK 2.x, to clients of either era."""

from contextlib import suppress
from uuid import uuid4
from weakref import WeakSet

import anyio
import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus, ListenHandler, PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

from server import (
    CATALOG, EXPERIMENTAL, INSTRUCTIONS, LEVELS, NAME, NOTE, Failure, World, completion, custom, page, prompt, read, serve_http,
)

MODERN = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"

world = World()
bus = InMemorySubscriptionBus()
sessions = {}  # by connection, a session of a legacy client
subscribed = {}  # by URI, the connections that want to hear of it
levels = {}  # by connection, from which level on it wants log lines
tasks = {}


class Asking(Exception):
    """A modern client must be asked: the questions are the answer, and it calls again."""

    def __init__(self, key, request):
        self.requests = {key: request}


class Context:
    """What a tool may do, by means of the SDK."""

    def __init__(self, context, params):
        self.context = context
        self.session = context.session
        self.modern = is_modern(context)
        self.meta = params.meta or {}
        self.given = params.input_responses or {}

    async def ask(self, key, request):
        if self.modern:
            if key not in self.given:
                raise Asking(key, request)
            answer = self.given[key]
        else:
            answer = await self.push(request)
        return answer if isinstance(answer, dict) else answer.model_dump(mode="json", by_alias=True)

    async def push(self, request):
        metadata = ServerMessageMetadata(related_request_id=self.context.request_id)
        try:
            return await self.session.send_request(Message(**request), Raw, metadata=metadata)
        except MCPError as error:
            raise Failure(error.error.model_dump()) from error

    async def notify(self, notification):
        await self.session.send_notification(Message(**notification), self.context.request_id)

    async def log(self, level, data, logger):
        wanted = "debug" if self.modern else levels.get(connection_of(self.context), "debug")
        if LEVELS.index(level) >= LEVELS.index(wanted):
            await self.session.send_log_message(level, data, logger, related_request_id=self.context.request_id)

    async def progress(self, progress, total, message):
        await self.session.report_progress(progress, total, message)

    async def changed(self, uri):
        await bus.publish(ResourceUpdated(uri))
        for connection, session in list(sessions.items()):
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # its client has gone
                if connection in subscribed.get(uri, ()):
                    await session.send_resource_updated(uri)

    async def changed_list(self, kind):
        events = {"tools": ToolsListChanged, "prompts": PromptsListChanged, "resources": ResourcesListChanged}
        await bus.publish(events[kind]())
        for session in list(sessions.values()):
            send = {
                "tools": session.send_tool_list_changed,
                "prompts": session.send_prompt_list_changed,
                "resources": session.send_resource_list_changed,
            }
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # its client has gone
                await send[kind]()


class Message(types.Request[dict | None, str]):
    """A message as it is written. It serves as a notification too."""

    method: str
    params: dict | None = None


class Raw(types.Result):
    """Any result."""

    model_config = {"extra": "allow"}


class CustomParams(types.RequestParams):
    model_config = {"extra": "allow"}


class NoteParams(types.NotificationParams):
    model_config = {"extra": "allow"}


def failing(error):
    """The error of the SDK."""
    return MCPError(error.code, error.message, error.data)


def listed(member, entries, params, kind):
    try:
        return kind.model_validate(page(member, entries, params.cursor if params else None))
    except Failure as error:
        raise failing(error) from error


def is_modern(context):
    return context.protocol_version >= MODERN


def connection_of(context):
    # A session object is made for each request; what lasts is the connection behind it.
    return context.session._connection


def remember(context):
    if not is_modern(context):
        sessions[connection_of(context)] = context.session


async def list_tools(context, params):
    remember(context)
    tools = world.tools()
    if is_modern(context):  # the field is of 2025-11-25 only
        tools = [{key: value for key, value in tool.items() if key != "execution"} for tool in tools]
    return listed("tools", tools, params, types.ListToolsResult)


async def call_tool(context, params):
    remember(context)
    if params.name == "later" and wants_task(context):
        return new_task()
    try:
        result = await world.call(params.name, params.arguments or {}, Context(context, params))
    except Asking as asking:
        return types.InputRequiredResult(input_requests=asking.requests, request_state="a state of the server")
    except Failure as error:
        raise failing(error) from error
    if isinstance(result, dict):
        return types.CallToolResult.model_validate(result)
    return types.CallToolResult(content=[types.TextContent(text=result)])


def wants_task(context):
    capabilities = context.session.client_capabilities
    return is_modern(context) and TASKS in ((capabilities and capabilities.extensions) or {})


def new_task():
    now = "2026-07-28T00:00:00Z"
    times = {"ttlMs": 60_000, "pollIntervalMs": 20, "createdAt": now, "lastUpdatedAt": now}
    task = {"taskId": str(uuid4()), "status": "working", **times}
    tasks[task["taskId"]] = task
    return {"resultType": "task", **task}


class TaskParams(types.RequestParams):
    task_id: str


async def get_task(_context, params):
    if params.task_id not in tasks:
        raise MCPError(-32602, "there is no such task")
    result = {"content": [{"type": "text", "text": "done later"}]}
    return {"resultType": "complete", **tasks[params.task_id], "status": "completed", "result": result}


async def list_prompts(_context, params):
    return listed("prompts", CATALOG["prompts"], params, types.ListPromptsResult)


async def get_prompt(_context, params):
    try:
        return types.GetPromptResult.model_validate(prompt(params.name, params.arguments))
    except Failure as error:
        raise failing(error) from error


async def list_resources(_context, params):
    return listed("resources", CATALOG["resources"], params, types.ListResourcesResult)


async def list_resource_templates(_context, params):
    return listed("resourceTemplates", CATALOG["resourceTemplates"], params, types.ListResourceTemplatesResult)


async def read_resource(context, params):
    result = read(params.uri)
    if result is None:
        raise MCPError(-32602 if is_modern(context) else -32002, "Resource not found", {"uri": params.uri})
    return types.ReadResourceResult.model_validate(result)


async def complete(_context, params):
    given = params.context.arguments if params.context else None
    return types.CompleteResult(completion=types.Completion.model_validate(completion(params.argument.value, given)))


def answering(method):
    async def answer(_context, params):
        try:
            return await custom(world, method, {**(params.model_extra or {}), "_meta": params.meta or {}})
        except Failure as error:
            raise failing(error) from error

    return answer


async def take_note(_context, params):
    world.take_note(params.model_extra or None)


async def set_logging_level(context, params):
    levels[connection_of(context)] = params.level
    return types.EmptyResult()


async def subscribe_resource(context, params):
    remember(context)
    subscribed.setdefault(params.uri, WeakSet()).add(connection_of(context))
    return types.EmptyResult()


async def unsubscribe_resource(context, params):
    subscribed.get(params.uri, WeakSet()).discard(connection_of(context))
    return types.EmptyResult()


class Interop(Server):
    def create_initialization_options(self, *_arguments, **_named):
        return super().create_initialization_options(
            NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True), EXPERIMENTAL
        )


server = Interop(
    NAME,
    instructions=INSTRUCTIONS,
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_list_resources=list_resources,
    on_list_resource_templates=list_resource_templates,
    on_read_resource=read_resource,
    on_completion=complete,
    on_set_logging_level=set_logging_level,
    on_subscribe_resource=subscribe_resource,
    on_unsubscribe_resource=unsubscribe_resource,
    on_subscriptions_listen=ListenHandler(bus),
)
server.extensions[TASKS] = {}
server.add_request_handler("tasks/get", TaskParams, get_task)
for custom_method in ("test/echo", "test/notes"):
    server.add_request_handler(custom_method, CustomParams, answering(custom_method))
server.add_notification_handler(NOTE, NoteParams, take_note)


async def serve(transport):
    if transport == "stdio":
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    else:
        await serve_http(server.streamable_http_app())
