"""A server that does not announce the changes of its lists, made with the high-level interface of the Python SDK.

The tool `grow` adds a tool, a prompt and a resource, and the SDK sends no notification. In the legacy era the SDK
declares `listChanged: false`. In the modern era it declares `listChanged: true` unless `--silent` is given.

    server_growing.py [--silent] stdio|http|sse
"""

import logging
import sys
import warnings
from importlib.metadata import version

import anyio

from server import serve_http


def make(silent):
    if version("mcp").startswith("1."):
        from mcp.server.fastmcp import FastMCP
        from mcp.server.fastmcp.prompts.base import Prompt
        from mcp.server.fastmcp.resources import TextResource

        return FastMCP("growing"), Prompt, TextResource
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.prompts.base import Prompt
    from mcp.server.mcpserver.resources import TextResource

    server = MCPServer("growing")
    if silent:  # the SDK declares `listChanged` exactly if it serves this method
        del server._lowlevel_server._request_handlers["subscriptions/listen"]
    return server, Prompt, TextResource


warnings.simplefilter("ignore")
logging.basicConfig(level=logging.CRITICAL)
server, Prompt, TextResource = make("--silent" in sys.argv)


@server.tool()
def grow(name: str) -> str:
    """Adds a tool, a prompt and a resource."""

    def grown() -> str:
        return f"{name} works"

    server.add_tool(grown, name=name)
    server.add_prompt(Prompt.from_function(grown, name=name))
    server.add_resource(TextResource(uri=f"grown://{name}", name=name, text=f"text of {name}"))
    return "grown"


if __name__ == "__main__":
    transport = sys.argv[-1]
    if transport == "stdio":
        anyio.run(server.run_stdio_async)
    elif transport == "http":
        anyio.run(serve_http, server.streamable_http_app())
    else:
        anyio.run(serve_http, server.sse_app(), "/sse")
