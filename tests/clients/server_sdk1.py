"""The part of server.py that speaks through the Python SDK 1.x, which knows the legacy era only."""

from contextlib import asynccontextmanager, suppress
from weakref import WeakSet

import anyio
from mcp import types
from mcp.server.fastmcp.server import StreamableHTTPASGIApp
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import McpError
from mcp.shared.message import ServerMessageMetadata
from pydantic import AnyUrl
from starlette.applications import Starlette
from starlette.routing import Route

from server import CATALOG, EXPERIMENTAL, INSTRUCTIONS, LEVELS, NAME, Failure, World, completion, page, prompt, read, serve_http

ANSWERS = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}

world = World()
sessions = WeakSet()
subscribed = {}  # by URI, the sessions that want to hear of it
levels = {}  # by session, from which level on it wants log lines


class Interop(Server):
    def create_initialization_options(self, *_arguments):
        notifications = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        options = super().create_initialization_options(notifications, EXPERIMENTAL)
        options.capabilities.resources.subscribe = True  # the SDK never says so, handler or not
        return options


server = Interop(NAME, instructions=INSTRUCTIONS)
server.experimental.enable_tasks()


class Context:
    """What a tool may do, by means of the SDK."""

    def __init__(self, context):
        self.session = context.session
        self.request_id = context.request_id
        self.meta = context.meta.model_dump() if context.meta else {}
        self.token = context.meta.progressToken if context.meta else None

    async def ask(self, _key, request):
        metadata = ServerMessageMetadata(related_request_id=self.request_id)
        if request["method"] in ANSWERS:
            kind, result = ANSWERS[request["method"]]
            message = types.ServerRequest(kind.model_validate(request))
        else:
            message, result = Message(**request), types.EmptyResult
        try:
            answer = await self.session.send_request(message, result, metadata=metadata)
        except McpError as error:
            raise Failure(error.error.model_dump()) from error
        return answer.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def notify(self, notification):
        await self.session.send_notification(Message(**notification), self.request_id)

    async def log(self, level, data, logger):
        if LEVELS.index(level) >= LEVELS.index(levels.get(self.session, "debug")):
            await self.session.send_log_message(level, data, logger, related_request_id=self.request_id)

    async def progress(self, progress, total, message):
        if self.token is not None:
            await self.session.send_progress_notification(
                self.token, progress, total, message, related_request_id=str(self.request_id)
            )

    async def changed(self, uri):
        for session in list(subscribed.get(uri, ())):
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # its client has gone
                await session.send_resource_updated(AnyUrl(uri))

    async def changed_list(self, kind):
        for session in list(sessions):
            send = {
                "tools": session.send_tool_list_changed,
                "prompts": session.send_prompt_list_changed,
                "resources": session.send_resource_list_changed,
            }
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # its client has gone
                await send[kind]()


class Message(types.Request[dict | None, str]):
    """A message that the types of the SDK do not know. It serves as a notification too."""

    method: str
    params: dict | None = None


def failing(error):
    """The error of the SDK."""
    return McpError(types.ErrorData(code=error.code, message=error.message, data=error.data))


def cursor_of(request):
    return request.params.cursor if request and request.params else None


def listed(member, entries, request, kind):
    sessions.add(server.request_context.session)
    try:
        return kind.model_validate(page(member, entries, cursor_of(request)))
    except Failure as error:
        raise failing(error) from error


@server.list_tools()
async def list_tools(request: types.ListToolsRequest) -> types.ListToolsResult:
    return listed("tools", world.tools(), request, types.ListToolsResult)


@server.call_tool()
async def call_tool(name, arguments):
    context = server.request_context
    sessions.add(context.session)
    if name == "later" and context.experimental.is_task:

        async def work(_task):
            return types.CallToolResult(content=[types.TextContent(type="text", text="done later")])

        return await context.experimental.run_task(work)
    result = await world.call(name, arguments, Context(context))
    if isinstance(result, dict):
        return types.CallToolResult.model_validate(result)
    return [types.TextContent(type="text", text=result)]


call_with_results = server.request_handlers[types.CallToolRequest]


async def call_with_errors(request):
    """The SDK makes a result of every exception; `perform` must be able to fail."""
    if request.params.name == "perform" and "error" in (request.params.arguments or {}):
        try:
            await call_tool("perform", request.params.arguments)
        except Failure as error:
            raise failing(error) from error
    return await call_with_results(request)


server.request_handlers[types.CallToolRequest] = call_with_errors


@server.list_prompts()
async def list_prompts(request: types.ListPromptsRequest) -> types.ListPromptsResult:
    return listed("prompts", CATALOG["prompts"], request, types.ListPromptsResult)


@server.get_prompt()
async def get_prompt(name, arguments):
    try:
        return types.GetPromptResult.model_validate(prompt(name, arguments))
    except Failure as error:
        raise failing(error) from error


@server.list_resources()
async def list_resources(request: types.ListResourcesRequest) -> types.ListResourcesResult:
    return listed("resources", CATALOG["resources"], request, types.ListResourcesResult)


async def list_resource_templates(request):
    # The decorator of the SDK has no result with a cursor.
    templates = CATALOG["resourceTemplates"]
    return types.ServerResult(listed("resourceTemplates", templates, request, types.ListResourceTemplatesResult))


async def read_resource(request):
    # The decorator of the SDK has no result with `_meta`.
    uri = str(request.params.uri)
    result = read(uri)
    if result is None:
        raise McpError(types.ErrorData(code=-32002, message="Resource not found", data={"uri": uri}))
    return types.ServerResult(types.ReadResourceResult.model_validate(result))


server.request_handlers[types.ListResourceTemplatesRequest] = list_resource_templates
server.request_handlers[types.ReadResourceRequest] = read_resource


@server.completion()
async def complete(_reference, argument, context):
    return types.Completion.model_validate(completion(argument.value, context and context.arguments))


@server.set_logging_level()
async def set_logging_level(level):
    levels[server.request_context.session] = level


@server.subscribe_resource()
async def subscribe_resource(uri):
    subscribed.setdefault(str(uri), WeakSet()).add(server.request_context.session)


@server.unsubscribe_resource()
async def unsubscribe_resource(uri):
    subscribed.get(str(uri), WeakSet()).discard(server.request_context.session)


async def serve(transport):
    if transport == "stdio":
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        return
    manager = StreamableHTTPSessionManager(server)

    @asynccontextmanager
    async def lifespan(_application):
        async with manager.run():
            yield

    await serve_http(Starlette(routes=[Route("/mcp", endpoint=StreamableHTTPASGIApp(manager))], lifespan=lifespan))
