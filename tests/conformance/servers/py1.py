"""The server of the conformance suite with the Python SDK 1.x, which has only the legacy era.

It declares no `listChanged`, like most published servers, and notifies of no changed list.
"""

import logging
from contextlib import asynccontextmanager, suppress
from weakref import WeakKeyDictionary, WeakSet

import anyio
from mcp import types
from mcp.server.fastmcp.server import StreamableHTTPASGIApp
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import McpError
from mcp.shared.message import ServerMessageMetadata
from pydantic import AnyUrl
from starlette.applications import Starlette
from starlette.routing import Route

import fixtures

ANSWERS = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}
subscribed = WeakSet()  # the sessions that subscribed to the watched resource
levels = WeakKeyDictionary()  # the log level of each session


class Conformance(Server):
    def create_initialization_options(self, *arguments):
        options = super().create_initialization_options(*arguments)
        options.capabilities.resources.subscribe = True  # the SDK never declares it
        return options


server = Conformance("goblin-conformance-py1")


class Context:
    """The part of the SDK that the tools use."""

    def __init__(self):
        context = server.request_context
        self.session = context.session
        self.request_id = context.request_id
        self.token = context.meta.progressToken if context.meta else None
        self.close = context.close_sse_stream
        parameters = self.session.client_params
        self.capabilities = parameters.capabilities.model_dump(exclude_none=True) if parameters else {}

    def missing_capability(self, required):
        data = {"requiredCapabilities": required}
        return McpError(types.ErrorData(code=-32021, message="the client lacks a capability", data=data))

    async def log(self, data):
        if levels.get(self.session, "info") in ("debug", "info"):
            await self.session.send_log_message("info", data, related_request_id=self.request_id)

    async def progress(self, progress, total, message):
        if self.token is not None:
            await self.session.send_progress_notification(
                self.token, progress, total, message, related_request_id=str(self.request_id)
            )

    async def close_stream(self):
        if self.close is not None:
            await self.close()

    async def changed(self, subject):
        if subject != "watched":
            return
        for session in list(subscribed):
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the client disconnected
                await session.send_resource_updated(AnyUrl(fixtures.WATCHED))

    async def ask(self, take):
        answers, requests, state = take({}, None)
        while requests is not None:
            responses = {key: await self.send(request) for key, request in requests.items()}
            answers, requests, state = take(responses, state)
        return answers

    async def send(self, request):
        kind, result = ANSWERS[request["method"]]
        metadata = ServerMessageMetadata(related_request_id=self.request_id)
        answer = await self.session.send_request(types.ServerRequest(kind.model_validate(request)), result, metadata=metadata)
        return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


@server.list_tools()
async def list_tools():
    return [types.Tool.model_validate(tool) for tool in fixtures.list_tools()]


@server.call_tool(validate_input=False)
async def call_tool(name, arguments):
    result = await fixtures.call(name, arguments, Context())
    if result is None:
        raise McpError(types.ErrorData(code=-32602, message=f"unknown tool: {name}"))
    return types.CallToolResult.model_validate(result)


@server.list_prompts()
async def list_prompts():
    return [types.Prompt.model_validate(prompt) for prompt in fixtures.list_prompts()]


@server.get_prompt()
async def get_prompt(name, arguments):
    messages = await fixtures.get_prompt(name, arguments or {}, Context())
    if messages is None:
        raise McpError(types.ErrorData(code=-32602, message=f"unknown prompt: {name}"))
    return types.GetPromptResult.model_validate({"messages": messages})


@server.list_resources()
async def list_resources():
    return [types.Resource.model_validate(resource) for resource in fixtures.FIXTURES["resources"]]


@server.list_resource_templates()
async def list_resource_templates():
    templates = fixtures.FIXTURES["resourceTemplates"]
    return [types.ResourceTemplate.model_validate(template) for template in templates]


async def read_resource(request):
    uri = str(request.params.uri)
    content = fixtures.read(uri)
    if content is None:
        raise McpError(types.ErrorData(code=-32002, message="Resource not found", data={"uri": uri}))
    return types.ServerResult(types.ReadResourceResult.model_validate({"contents": [content]}))


# The decorator of the SDK would encode a blob twice.
server.request_handlers[types.ReadResourceRequest] = read_resource


@server.completion()
async def complete(_reference, argument, _context):
    return types.Completion.model_validate(fixtures.complete(argument.value))


@server.set_logging_level()
async def set_logging_level(level):
    levels[server.request_context.session] = level


@server.subscribe_resource()
async def subscribe_resource(uri):
    if str(uri) == fixtures.WATCHED:
        subscribed.add(server.request_context.session)


@server.unsubscribe_resource()
async def unsubscribe_resource(_uri):
    subscribed.discard(server.request_context.session)


class Events(fixtures.Events, EventStore):
    async def replay_events_after(self, last_event_id, send_callback):
        async def send(message, event_id):
            await send_callback(EventMessage(message, event_id))

        return await self.replay(last_event_id, send)


async def main():
    security = TransportSecuritySettings(
        allowed_hosts=["127.0.0.1:*", "localhost:*"],
        allowed_origins=["http://127.0.0.1:*", "http://localhost:*"],
    )
    manager = StreamableHTTPSessionManager(
        server, event_store=Events(), retry_interval=fixtures.RETRY_MS, security_settings=security
    )

    @asynccontextmanager
    async def lifespan(_application):
        async with manager.run():
            yield

    routes = [Route("/mcp", endpoint=StreamableHTTPASGIApp(manager))]
    await fixtures.serve_http(Starlette(routes=routes, lifespan=lifespan))


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    anyio.run(main)
