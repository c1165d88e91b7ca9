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

from server import CATALOG, LEVELS, NAME, World, completions, greeting, read, serve_http

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
        options = super().create_initialization_options(NotificationOptions(tools_changed=True))
        options.capabilities.resources.subscribe = True  # the SDK never says so, handler or not
        return options


server = Interop(NAME)
server.experimental.enable_tasks()


class Context:
    """What a tool may do, by means of the SDK."""

    def __init__(self, context):
        self.session = context.session
        self.request_id = context.request_id
        self.token = context.meta.progressToken if context.meta else None

    async def ask(self, _key, request):
        kind, result = ANSWERS[request["method"]]
        answer = await self.session.send_request(
            types.ServerRequest(kind.model_validate(request)), result, metadata=ServerMessageMetadata(related_request_id=self.request_id)
        )
        return answer.model_dump(mode="json", by_alias=True)

    async def log(self, level, data, logger):
        if LEVELS.index(level) >= LEVELS.index(levels.get(self.session, "debug")):
            await self.session.send_log_message(level, data, logger, related_request_id=self.request_id)

    async def progress(self, progress, total, message):
        if self.token is not None:
            await self.session.send_progress_notification(
                self.token, progress, total, message, related_request_id=str(self.request_id)
            )

    async def changed(self, uri):
        for session in list(sessions if uri is None else subscribed.get(uri, ())):
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # its client has gone
                if uri is None:
                    await session.send_tool_list_changed()
                else:
                    await session.send_resource_updated(AnyUrl(uri))


@server.list_tools()
async def list_tools():
    sessions.add(server.request_context.session)
    return [types.Tool.model_validate(tool) for tool in world.tools()]


@server.call_tool()
async def call_tool(name, arguments):
    context = server.request_context
    sessions.add(context.session)
    if name == "later" and context.experimental.is_task:

        async def work(_task):
            return types.CallToolResult(content=[types.TextContent(type="text", text="done later")])

        return await context.experimental.run_task(work)
    return [types.TextContent(type="text", text=await world.call(name, arguments, Context(context)))]


@server.list_prompts()
async def list_prompts():
    return [types.Prompt.model_validate(prompt) for prompt in CATALOG["prompts"]]


@server.get_prompt()
async def get_prompt(_name, arguments):
    content = types.TextContent(type="text", text=greeting(arguments))
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


@server.list_resources()
async def list_resources():
    return [types.Resource.model_validate(resource) for resource in CATALOG["resources"]]


@server.list_resource_templates()
async def list_resource_templates():
    return [types.ResourceTemplate.model_validate(template) for template in CATALOG["resourceTemplates"]]


@server.read_resource()
async def read_resource(uri):
    text = read(str(uri))
    if text is None:
        raise McpError(types.ErrorData(code=-32002, message="Resource not found", data={"uri": str(uri)}))
    return text


@server.completion()
async def complete(_reference, argument, _context):
    return types.Completion(values=completions(argument.value))


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
