//! Runs the suite against a server directly, and through one gateway per setting of `protocol`.
//!
//! The direct run does not depend on the gateway, so all gateways share its report.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::client::Gateway;
use crate::compare::{Comparison, Expected, compare};
use crate::report::Report;
use crate::servers::{RunningServer, Sdk};
use crate::suite::{Edition, Side, Suite};

/// The first version without sessions.
const MODERN: &str = "2026-07-28";

pub struct SideBySide {
    pub sdk: Sdk,
    /// The gateway's binary.
    pub gateway: PathBuf,
    /// The settings of `protocol`.
    pub protocols: Vec<String>,
    /// The version of all scenarios.
    pub spec_version: Option<String>,
    /// The version with these requirements. It includes scenarios of extensions.
    pub requirements: Option<String>,
    pub tools: PathBuf,
    pub edition: Edition,
    pub selection: Vec<String>,
}

#[derive(Serialize)]
pub struct Findings {
    pub direct: Counts,
    pub through: Vec<Through>,
}

#[derive(Serialize)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub warned: usize,
    /// The suite's own verdict.
    pub accepted: bool,
}

/// The findings of one gateway.
#[derive(Serialize)]
pub struct Through {
    pub protocol: String,
    #[serde(flatten)]
    pub counts: Counts,
    #[serde(flatten)]
    pub comparison: Comparison,
}

impl SideBySide {
    pub async fn run(&self) -> Result<Findings> {
        let server = RunningServer::start(self.sdk, &self.tools).await?;
        let mut direct = self.play(&server.url).await?;
        let mut findings = Findings { direct: Counts::of(&direct), through: Vec::new() };
        if !self.sdk.is_modern() && self.spec_version.as_deref() == Some(MODERN) {
            // The server does not have this version. Its own failures excuse no failure of the gateway.
            direct.forget_failures();
        }
        for protocol in &self.protocols {
            let entry = json!({"url": server.url, "protocol": protocol});
            let gateway = Gateway::start(self.gateway.as_os_str(), entry).await?;
            let through = self.play(&gateway.url).await?;
            gateway.stop().await?;
            let comparison = compare(&direct, &through, &self.expected(protocol));
            findings.through.push(Through { protocol: protocol.clone(), counts: Counts::of(&through), comparison });
        }
        Ok(findings)
    }

    async fn play(&self, url: &str) -> Result<Report> {
        let suite = Suite {
            tools: self.tools.clone(),
            edition: self.edition,
            side: Side::Client { url: url.to_owned() },
            selection: self.selection.clone(),
        };
        spawn_blocking(move || suite.run()).await.context("the run of the suite panicked")?
    }

    /// Returns the expected differences. The version of the clients and the era of the server decide.
    fn expected(&self, protocol: &str) -> Expected {
        let server_is_old = !self.sdk.is_modern() || protocol == "legacy";
        // New scenarios use 2026-07-28 if no version is given.
        let version = self.spec_version.as_deref().or(self.requirements.as_deref());
        let clients_are_new = version.is_none_or(|version| version >= MODERN);
        match self.edition {
            Edition::Newest if server_is_old && clients_are_new => Expected::new_to_old(self.sdk),
            Edition::Newest | Edition::Stable => Expected::of(self.sdk),
        }
    }
}

impl Counts {
    fn of(report: &Report) -> Counts {
        Counts { passed: report.passed(), failed: report.failed(), warned: report.warned(), accepted: report.accepted }
    }
}

impl Findings {
    pub fn is_explained(&self) -> bool {
        self.through.iter().all(|through| through.comparison.unexplained.is_empty())
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "directly: {}", self.direct)?;
        for Through { protocol, counts, comparison } in &self.through {
            write!(formatter, "\nthrough the gateway with protocol {protocol}: {counts}")?;
            let lists = [
                ("explained", &comparison.explained),
                ("unexplained", &comparison.unexplained),
                ("not needed in the list", &comparison.needless),
            ];
            for (label, line) in lists.iter().flat_map(|(label, lines)| lines.iter().map(move |line| (label, line))) {
                write!(formatter, "\n  {label}: {line}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} checks passed, {} failed, {} warnings", self.passed, self.failed, self.warned)
    }
}
