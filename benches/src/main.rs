//! Measures Goblin against a direct connection, a bare hyper proxy and a static body.
//!
//! Each role is a separate process, so that its CPU time can be read from `/proc`. `run` starts them all, generates the
//! load, and prints the table of `docs/reference/performance.md`. It needs Linux. It uses only Goblin's command line,
//! configuration file and wire protocol.
#![forbid(unsafe_code)]

mod backend;
mod child;
mod client;
mod context;
mod envelope;
mod expected;
mod fan;
mod feed;
mod fixed;
mod ledger;
mod load;
mod memory;
mod pipe;
mod procfs;
mod proxy;
mod refresh;
mod report;
mod run;
mod scenario;
mod search;
mod serve;
mod start;
mod workspace;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// Goblin's allocator, so that no ratio compares allocators. It makes the bare proxy faster at large results.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// A minimal MCP server
    Backend {
        #[arg(long, default_value_t = 10)]
        tools: usize,
        #[arg(long, default_value_t = 0)]
        server: usize,
        /// Of 2026-07-28, without sessions
        #[arg(long)]
        modern: bool,
    },
    /// The bare hyper proxy
    Proxy {
        /// URL of the MCP server behind it
        #[arg(long)]
        target: hyper::Uri,
    },
    /// Answers every request with the bytes of a file
    Static {
        #[arg(long)]
        file: PathBuf,
    },
    /// A server on axum with one resource that changes when told to
    Feed {
        #[arg(long)]
        uri: String,
    },
    /// A minimal MCP server on stdin and stdout
    Pipe {
        /// Reads and never answers
        #[arg(long)]
        silent: bool,
        #[arg(long, default_value_t = 1)]
        tools: usize,
    },
    /// A minimal MCP server on stdin and stdout, with tools of a published one
    Shelf {
        #[arg(long)]
        server: String,
        /// The first of its tools, in an order of chance
        #[arg(long)]
        tools: usize,
    },
    /// Start everything, measure, print the table; fails when a bar is missed
    Run(run::Options),
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    match Arguments::parse().role {
        Role::Backend { tools, server, modern } => backend::run(serve::bind().await?, tools, server, modern).await?,
        Role::Proxy { target } => proxy::run(serve::bind().await?, target).await?,
        Role::Static { file } => {
            let body = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            fixed::run(serve::bind().await?, body.into()).await?;
        }
        Role::Feed { uri } => feed::run(serve::bind().await?, uri).await?,
        Role::Pipe { silent, tools } => pipe::run(silent, tools)?,
        Role::Shelf { server, tools } => context::shelf::run(&server, tools)?,
        Role::Run(options) => return measure(&options).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the measurement. A signal drops the run, which kills the processes it started.
async fn measure(options: &run::Options) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let report = tokio::select! {
        report = run::run(options) => report?,
        _ = terminate.recv() => bail!("terminated"),
        _ = interrupt.recv() => bail!("interrupted"),
    };
    write!(io::stdout(), "{}", report.markdown())?;
    Ok(if report.every_bar_kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
