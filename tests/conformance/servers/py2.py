"""The server of the conformance suite with the Python SDK 2.x, in both eras."""

import json
import logging
import warnings
from contextlib import suppress
from weakref import WeakSet

import anyio
import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

import fixtures

NAME = "goblin-conformance-py2"
MODERN = "2026-07-28"
EVENTS = {"tools": ToolsListChanged(), "prompts": PromptsListChanged(), "watched": ResourceUpdated(fixtures.WATCHED)}

bus = InMemorySubscriptionBus()
sessions = {}  # the newest session object of each legacy connection
subscribed = WeakSet()  # the connections that subscribed to the watched resource
levels = {}  # the log level of each connection


class Asking(Exception):
    """A modern client must answer these requests and call again."""

    def __init__(self, requests, state):
        self.result = types.InputRequiredResult(
            input_requests=requests, request_state=None if state is None else json.dumps(state)
        )


class Context:
    """The part of the SDK that the tools use."""

    def __init__(self, context, params):
        self.context = context
        self.session = context.session
        self.modern = is_modern(context)
        self.responses = dump(params.input_responses)
        self.state = None if params.request_state is None else json.loads(params.request_state)
        self.capabilities = dump(context.session.client_capabilities)

    def missing_capability(self, required):
        return MCPError(-32021, "the client lacks a capability", {"requiredCapabilities": required})

    async def log(self, data):
        if self.modern or levels.get(connection_of(self.context), "info") in ("debug", "info"):
            await self.session.send_log_message("info", data, related_request_id=self.context.request_id)

    async def progress(self, progress, total, message):
        await self.session.report_progress(progress, total, message)

    async def close_stream(self):
        if self.context.close_sse_stream is not None:
            await self.context.close_sse_stream()

    async def changed(self, subject):
        await bus.publish(EVENTS[subject])
        for connection, session in list(sessions.items()):
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the client disconnected
                if subject == "tools":
                    await session.send_tool_list_changed()
                elif subject == "prompts":
                    await session.send_prompt_list_changed()
                elif connection in subscribed:
                    await session.send_resource_updated(fixtures.WATCHED)

    async def ask(self, take):
        if self.modern:
            answers, requests, state = take(self.responses, self.state)
            if requests is not None:
                raise Asking(requests, state)
            return answers
        answers, requests, state = take({}, None)
        while requests is not None:
            responses = {key: await self.push(request) for key, request in requests.items()}
            answers, requests, state = take(responses, state)
        return answers

    async def push(self, request):
        related = self.context.request_id
        params = request.get("params", {})
        if request["method"] == "roots/list":
            answer = await self.session.list_roots()
        elif request["method"] == "elicitation/create":
            answer = await self.session.elicit_form(params["message"], params["requestedSchema"], related)
        else:
            messages = [types.SamplingMessage.model_validate(message) for message in params["messages"]]
            answer = await self.session.create_message(
                messages, max_tokens=params["maxTokens"], related_request_id=related
            )
        return dump(answer)


def dump(value):
    """Returns the JSON of the SDK's objects."""
    if isinstance(value, dict):
        return {key: dump(member) for key, member in value.items()}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {} if value is None else value


def is_modern(context):
    return context.protocol_version >= MODERN


def connection_of(context):
    # The SDK makes a session object for each request. The connection behind it lasts.
    return context.session._connection


def remember(context):
    if not is_modern(context):
        sessions[connection_of(context)] = context.session


async def list_tools(context, _params):
    remember(context)
    return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in fixtures.list_tools()])


async def call_tool(context, params):
    remember(context)
    try:
        result = await fixtures.call(params.name, params.arguments or {}, Context(context, params))
    except Asking as asking:
        return asking.result
    if result is None:
        raise MCPError(-32602, f"unknown tool: {params.name}")
    return types.CallToolResult.model_validate(result)


async def list_prompts(context, _params):
    remember(context)
    prompts = [types.Prompt.model_validate(prompt) for prompt in fixtures.list_prompts()]
    return types.ListPromptsResult(prompts=prompts)


async def get_prompt(context, params):
    try:
        messages = await fixtures.get_prompt(params.name, params.arguments or {}, Context(context, params))
    except Asking as asking:
        return asking.result
    if messages is None:
        raise MCPError(-32602, f"unknown prompt: {params.name}")
    return types.GetPromptResult.model_validate({"messages": messages})


async def list_resources(context, _params):
    remember(context)
    resources = [types.Resource.model_validate(resource) for resource in fixtures.FIXTURES["resources"]]
    return types.ListResourcesResult(resources=resources)


async def list_resource_templates(_context, _params):
    templates = fixtures.FIXTURES["resourceTemplates"]
    templates = [types.ResourceTemplate.model_validate(template) for template in templates]
    return types.ListResourceTemplatesResult(resource_templates=templates)


async def read_resource(context, params):
    content = fixtures.read(params.uri)
    if content is None:
        raise MCPError(-32602 if is_modern(context) else -32002, "Resource not found", {"uri": params.uri})
    return types.ReadResourceResult.model_validate({"contents": [content]})


async def complete(_context, params):
    return types.CompleteResult.model_validate({"completion": fixtures.complete(params.argument.value)})


async def set_logging_level(context, params):
    levels[connection_of(context)] = params.level
    return types.EmptyResult()


async def subscribe_resource(context, params):
    remember(context)
    if params.uri == fixtures.WATCHED:
        subscribed.add(connection_of(context))
    return types.EmptyResult()


async def unsubscribe_resource(context, _params):
    subscribed.discard(connection_of(context))
    return types.EmptyResult()


class Conformance(Server):
    def create_initialization_options(self, *_arguments, **_named):
        return super().create_initialization_options(NotificationOptions(tools_changed=True, prompts_changed=True))


warnings.simplefilter("ignore")  # the SDK warns of every legacy method
server = Conformance(
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
server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))


class Events(fixtures.Events, EventStore):
    async def replay_events_after(self, last_event_id, send_callback):
        async def send(message, event_id):
            await send_callback(EventMessage(message, event_id))

        return await self.replay(last_event_id, send)


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    anyio.run(fixtures.serve_http, server.streamable_http_app(event_store=Events(), retry_interval=fixtures.RETRY_MS))
