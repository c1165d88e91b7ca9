"""The part of server.py that speaks through the Python SDK 2.x, to clients of either era."""

from contextlib import suppress
from uuid import uuid4
from weakref import WeakSet

import anyio
import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError

from server import CATALOG, LEVELS, NAME, World, completions, greeting, read, serve_http

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
        related = self.context.request_id
        if request["method"] == "roots/list":
            return await self.session.list_roots()
        params = request["params"]
        if request["method"] == "elicitation/create":
            return await self.session.elicit_form(params["message"], params["requestedSchema"], related)
        messages = [types.SamplingMessage.model_validate(message) for message in params["messages"]]
        return await self.session.create_message(
            messages, max_tokens=params["maxTokens"], related_request_id=related
        )

    async def log(self, level, data, logger):
        wanted = "debug" if self.modern else levels.get(connection_of(self.context), "debug")
        if LEVELS.index(level) >= LEVELS.index(wanted):
            await self.session.send_log_message(level, data, logger, related_request_id=self.context.request_id)

    async def progress(self, progress, total, message):
        await self.session.report_progress(progress, total, message)

    async def changed(self, uri):
        await bus.publish(ToolsListChanged() if uri is None else ResourceUpdated(uri))
        for connection, session in list(sessions.items()):
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # its client has gone
                if uri is None:
                    await session.send_tool_list_changed()
                elif connection in subscribed.get(uri, ()):
                    await session.send_resource_updated(uri)


def is_modern(context):
    return context.protocol_version >= MODERN


def connection_of(context):
    # A session object is made for each request; what lasts is the connection behind it.
    return context.session._connection


def remember(context):
    if not is_modern(context):
        sessions[connection_of(context)] = context.session


async def list_tools(context, _params):
    remember(context)
    tools = world.tools()
    if is_modern(context):  # the field is of 2025-11-25 only
        tools = [{key: value for key, value in tool.items() if key != "execution"} for tool in tools]
    return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in tools])


async def call_tool(context, params):
    remember(context)
    if params.name == "later" and wants_task(context):
        return new_task()
    try:
        text = await world.call(params.name, params.arguments or {}, Context(context, params))
    except Asking as asking:
        return types.InputRequiredResult(input_requests=asking.requests)
    return types.CallToolResult(content=[types.TextContent(text=text)])


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


async def list_prompts(_context, _params):
    return types.ListPromptsResult(prompts=[types.Prompt.model_validate(prompt) for prompt in CATALOG["prompts"]])


async def get_prompt(_context, params):
    content = types.TextContent(text=greeting(params.arguments))
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


async def list_resources(_context, _params):
    resources = [types.Resource.model_validate(resource) for resource in CATALOG["resources"]]
    return types.ListResourcesResult(resources=resources)


async def list_resource_templates(_context, _params):
    templates = [types.ResourceTemplate.model_validate(template) for template in CATALOG["resourceTemplates"]]
    return types.ListResourceTemplatesResult(resource_templates=templates)


async def read_resource(context, params):
    text = read(params.uri)
    if text is None:
        raise MCPError(-32602 if is_modern(context) else -32002, "Resource not found", {"uri": params.uri})
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])


async def complete(_context, params):
    return types.CompleteResult(completion=types.Completion(values=completions(params.argument.value)))


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
        return super().create_initialization_options(NotificationOptions(tools_changed=True))


server = Interop(
    NAME,
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


async def serve(transport):
    if transport == "stdio":
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    else:
        await serve_http(server.streamable_http_app())
