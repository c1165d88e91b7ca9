//! Connects to all servers concurrently, in the same way as the gateway, and adds the results to the report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use goblin_admin::api::Conflict;
use goblin_catalog::build::{CatalogSettings, build};
use goblin_catalog::name;
use goblin_client::connect::ProxyEnvironment;
use goblin_client::lineage::Lineage;
use goblin_config::problem::Problem;
use goblin_config::{Config, NamePolicy, Namespacing};
use goblin_engine::app::App;
use goblin_engine::catalog_store::{Catalog, NameTable, Source};
use goblin_engine::upstream::availability::{self, defects};
use goblin_engine::upstream::child::own_executable;
use goblin_engine::upstream::{Backend, BackendState};
use goblin_telemetry::{Observe, clean};
use goblin_wire::units::duration;

use crate::check::profile::EntryCounts;
use crate::check::report::{CheckReport, CheckState, ConnectionReport, ShortenedName, milliseconds};
use crate::progress::ProgressLine;

/// The measurements of one server.
struct ConnectResult {
    handshake: Duration,
    ping: Option<Duration>,
    /// The transport that a URL turned out to use.
    transport: Option<&'static str>,
}

/// The reason why a server is not ready.
struct ConnectFailure {
    state: CheckState,
    reason: String,
}

/// Starts all servers, fills in the report, and stops the servers again.
pub(crate) async fn connect(
    mut config: Config,
    lineage: Lineage,
    observe: Arc<Observe>,
    report: &mut CheckReport,
) -> Result<()> {
    let (settings, timeout) = (CatalogSettings::new(&config), config.policies.start_timeout);
    let profiles = config.profiles.clone();
    // The report shows the answers of the servers, never those of an earlier run.
    config.gateway.listing_cache = false;
    let start = Instant::now();
    let app = App::start_as(lineage, config, own_executable()?, ProxyEnvironment::from_process(), observe);
    let backends = app.backends();
    let answers = connect_all(&backends, start, timeout).await;
    let source = |backend: &Arc<Backend>| Source { backend: Arc::clone(backend), listing: backend.listing() };
    let catalog = build(0, &settings, backends.iter().map(source).collect());
    for (index, (backend, answer)) in backends.iter().zip(answers).enumerate() {
        let Some(server) = report.servers.iter_mut().find(|server| server.id == backend.id.as_str()) else { continue };
        match answer {
            Ok(answer) => {
                server.state = CheckState::Ready;
                server.transport = answer.transport.unwrap_or(server.transport);
                server.seen = report_connection(&catalog, index, &answer);
                report.warnings.extend(defects(backend).into_iter().map(|message| Problem {
                    path: format!("mcpServers.{}", backend.id),
                    message,
                    ..Problem::default()
                }));
            }
            Err(failure) => {
                server.state = failure.state;
                server.error = Some(clean(&failure.reason));
            }
        }
    }
    for (kind, names) in [("tool", &catalog.tools), ("prompt", &catalog.prompts)] {
        let conflict = |(name, exposed): (&String, &Vec<String>)| Conflict {
            kind: kind.to_owned(),
            name: name.clone(),
            exposed: exposed.clone(),
        };
        report.conflicts.extend(names.contested.iter().map(conflict));
        report.cut.extend(cut(&catalog, kind, names));
    }
    for (profile, report) in profiles.values().zip(&mut report.profiles) {
        report.seen = Some(EntryCounts::new(&catalog, profile, &settings));
    }
    report.connected = true;
    app.stop().await;
    Ok(())
}

/// Returns the answers in the order of `backends`. Shows progress while it waits.
async fn connect_all(
    backends: &[Arc<Backend>],
    start: Instant,
    timeout: Duration,
) -> Vec<Result<ConnectResult, ConnectFailure>> {
    let connect_indexed = async |index: usize| (index, connect_one(&backends[index], start, timeout).await);
    let mut connecting: FuturesUnordered<_> = (0..backends.len()).map(connect_indexed).collect();
    let mut answers: Vec<Option<Result<ConnectResult, ConnectFailure>>> = backends.iter().map(|_| None).collect();
    let progress = ProgressLine::new();
    loop {
        let waiting = backends.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let waiting: Vec<_> = waiting.map(|(backend, _)| backend.id.as_str()).collect();
        let (done, total) = (backends.len() - waiting.len(), backends.len());
        progress.show(format!("connecting, {done} of {total}: {}", waiting.join(", ")));
        match connecting.next().await {
            Some((index, answer)) => answers[index] = Some(answer),
            None => break,
        }
    }
    answers.into_iter().flatten().collect()
}

async fn connect_one(backend: &Backend, start: Instant, timeout: Duration) -> Result<ConnectResult, ConnectFailure> {
    if let Some(failure) = ConnectFailure::of(backend.first_attempt().await) {
        return Err(failure);
    }
    let handshake = start.elapsed();
    // Each list may have several pages, and each page has its own timeout.
    let listed = tokio::time::timeout(2 * timeout, backend.settled()).await;
    listed.map_err(|_| {
        ConnectFailure::new(format!("the server did not return its lists within {}", duration(2 * timeout)))
    })?;
    let ping_start = Instant::now();
    let ping = tokio::time::timeout(timeout, backend.ping()).await;
    if let Some(failure) = ConnectFailure::of(backend.state()) {
        return Err(failure);
    }
    let ping = matches!(ping, Ok(Ok(()))).then(|| ping_start.elapsed());
    Ok(ConnectResult { handshake, ping, transport: backend.transport() })
}

impl ConnectFailure {
    fn new(reason: String) -> ConnectFailure {
        ConnectFailure { state: CheckState::Failed, reason }
    }

    /// Returns `None` if the server is connected, or still connects.
    fn of(state: BackendState) -> Option<ConnectFailure> {
        match state {
            BackendState::Lost(reason) => Some(ConnectFailure::new(reason)),
            BackendState::LoginNeeded(reason) => Some(ConnectFailure { state: CheckState::LoginNeeded, reason }),
            BackendState::Stopped => Some(ConnectFailure::new("the server was stopped".to_owned())),
            BackendState::Starting | BackendState::Ready => None,
        }
    }
}

fn report_connection(catalog: &Catalog, index: usize, answer: &ConnectResult) -> Option<ConnectionReport> {
    let availability::ServerDescription { software, protocol, era } =
        availability::ServerDescription::of(&catalog.source(index).backend)?;
    let [tools, prompts, resources, templates] = catalog.counts()[index];
    Some(ConnectionReport {
        software,
        protocol,
        era,
        handshake_ms: milliseconds(answer.handshake),
        ping_ms: answer.ping.map(milliseconds),
        tools,
        prompts,
        resources,
        templates,
    })
}

/// Returns the entries with a name that was cut to the maximum length.
fn cut<'a>(catalog: &'a Catalog, kind: &'static str, names: &'a NameTable) -> impl Iterator<Item = ShortenedName> + 'a {
    names.entries.iter().filter_map(move |entry| {
        let backend = &catalog.source(entry.source).backend;
        let server = &backend.config;
        let (rename, policy): (_, NamePolicy) = match kind {
            "tool" => (&server.tools.rename, server.namespacing.tools),
            _ => (&server.prompts.rename, server.namespacing.prompts),
        };
        let unlimited = Namespacing { max_length: usize::MAX, ..server.namespacing.clone() };
        let names = name::claimed_names(policy, &unlimited, &server.prefix, &backend.id, &entry.native);
        let is_cut = policy == NamePolicy::Prefix
            && !rename.contains_key(&*entry.native)
            && !names.iter().any(|name| **name == *entry.exposed)
            && names.last().is_some_and(|name| name.len() > server.namespacing.max_length);
        is_cut.then(|| ShortenedName {
            kind,
            server: backend.id.to_string(),
            native: clean(&entry.native),
            exposed: entry.exposed.to_string(),
        })
    })
}
