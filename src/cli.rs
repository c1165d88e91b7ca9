//! The command line: arguments in, a running gateway or a clear error out.

pub mod serve;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// One MCP endpoint for many MCP servers.
#[derive(Debug, Parser)]
#[command(name = "goblin", version, about, long_about = LONG_ABOUT, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const LONG_ABOUT: &str = "\
One MCP endpoint for many MCP servers.

Goblin connects to the MCP servers named in its configuration and offers their tools, prompts and resources as one
server, over Streamable HTTP (`goblin serve`) or stdio (`goblin stdio`).

The configuration is found by --config, the variable GOBLIN_CONFIG, or goblin.json in the goblin directory of your
configuration directory ($XDG_CONFIG_HOME or ~/.config). An `mcpServers` block of another client works as it is.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve Streamable HTTP at /mcp
    Serve(Serve),
    /// Serve one client on stdin and stdout
    Stdio(Stdio),
}

#[derive(Debug, Args)]
pub struct Serve {
    #[command(flatten)]
    pub common: Common,
    /// Listen on this address instead of gateway.host
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Listen on this port instead of gateway.port; 0 takes any free one
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
}

#[derive(Debug, Args)]
pub struct Stdio {
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct Common {
    /// The configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How much to log on stderr: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<tracing::Level>,
}
