//! Collects the state of the gateway for the admin API.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use goblin_admin::api::{
    Calls, CatalogStatus, Conflict, LastError, Metrics, ProcessStatus, ReadCount, RequestCount, ServerStatus,
    SessionCounts, Status,
};
use goblin_catalog::listing::List;
use goblin_config::target::Target;
use goblin_config::visible::is_command;
use goblin_config::{ServerId, Sharing};
use goblin_telemetry::clean;
use goblin_telemetry::meter::{Meter, MethodLabel, ReadStatus, RequestOutcome, ServerFailure};
use goblin_telemetry::metrics::ProcessReading;
use goblin_wire::{Mime, date};

use crate::admin::latency::latency;
use crate::admin::readiness::OverallState;
use crate::admin::{Admin, process};
use crate::catalog_store::Catalog;
use crate::upstream::availability::{Availability, MisconfiguredServer, ServerDescription, defects};
use crate::upstream::{Backend, BackendState};

/// The number of bytes of a server's instructions in the status.
const MAX_INSTRUCTIONS: usize = 4096;

impl Admin {
    pub(super) fn status(&self) -> Status {
        let sessions = &self.dispatcher.sessions;
        let subscriptions = self.dispatcher.router.subscriptions.count();
        let ProcessReading { resident_bytes, open_descriptors } = process::measure();
        let server_counts = self.server_counts();
        let OverallState { state, summary } = self.overall_state(server_counts);
        // A guard inside the expression below would live to its end. `servers` borrows the configuration again, which
        // blocks behind a waiting writer.
        let configuration = self.configuration.borrow().status.clone();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: iso(self.started),
            uptime_seconds: self.started.elapsed().unwrap_or_default().as_secs(),
            pid: std::process::id(),
            state: state.to_owned(),
            summary,
            server_counts,
            configuration,
            servers: self.servers(),
            sessions: SessionCounts {
                total: sessions.len(),
                streams: sessions.open_streams(),
                in_flight: sessions.open_calls(),
            },
            catalog: catalog_status(&self.dispatcher.router.catalogs.catalog()),
            subscriptions,
            process: ProcessStatus { resident_bytes, open_descriptors },
            metrics: metrics(&self.dispatcher.router.catalogs.backends(), subscriptions),
        }
    }

    /// Returns all servers in the order of the configuration, including disabled and misconfigured ones.
    pub(super) fn servers(&self) -> Vec<ServerStatus> {
        let catalogs = &self.dispatcher.router.catalogs;
        let catalog = catalogs.catalog();
        let counts = catalog.counts();
        let mut servers: Vec<_> =
            catalogs.backends().iter().map(|backend| server(backend, &catalog, &counts)).collect();
        let configured = self.configuration.borrow().servers.clone();
        let disabled = configured.iter().filter(|server| !server.enabled);
        servers.extend(disabled.map(|server| without_backend(&server.id, "disabled", None, &server.target)));
        for server in catalogs.misconfigured().iter() {
            report_misconfigured(server, &mut servers);
        }
        servers.sort_by_key(|server| configured.iter().position(|configured| configured.id.as_str() == server.id));
        servers
    }

    /// Returns the ids of all servers, including disabled ones.
    pub(super) fn server_ids(&self) -> Vec<ServerId> {
        self.configuration.borrow().servers.iter().map(|server| server.id.clone()).collect()
    }
}

fn server(backend: &Arc<Backend>, catalog: &Catalog, counts: &[[usize; 4]]) -> ServerStatus {
    let description = ServerDescription::of(backend);
    let place = catalog.sources.iter().position(|source| Arc::ptr_eq(&source.backend, backend));
    let reason = match backend.state() {
        BackendState::Starting | BackendState::Ready => None,
        BackendState::Lost(reason) | BackendState::LoginNeeded(reason) => Some(clean(&reason)),
        BackendState::Stopped => Some("the server was stopped".to_owned()),
    };
    let (command, url) = command_and_url(&Target::of(&backend.config.transport));
    let hello = backend.listing().hello.clone();
    let instructions = hello.as_ref().and_then(|hello| hello.instructions.as_ref());
    ServerStatus {
        id: backend.id.to_string(),
        state: Availability::of(backend).as_str().to_owned(),
        reason,
        stale: backend.is_stale(),
        command,
        url,
        pid: backend.process_id(),
        instructions: instructions.map(|text| shown_instructions(text)),
        last_error: last_error(&backend.meter),
        transport: backend.transport().map(str::to_owned),
        protocol: description.as_ref().map(|description| description.protocol.to_owned()),
        era: description.as_ref().map(|description| description.era.to_owned()),
        software: description.map(|description| description.software).unwrap_or_default(),
        session: match backend.config.session {
            Sharing::Shared => "shared",
            Sharing::PerClient => "per-client",
        }
        .to_owned(),
        in_flight: backend.calls_in_flight(),
        client_links: backend.own_links(),
        restarts: backend.meter.restart_count(),
        subscriptions: backend.subscription_count(),
        entries: place.map(|place| counts[place]).unwrap_or_default().into(),
        calls: calls(&backend.meter),
        latency: latency(&backend.meter),
        lacking: defects(backend),
    }
}

/// Adds a misconfigured server. If it runs with its previous entry, its status gets a note.
fn report_misconfigured(server: &MisconfiguredServer, servers: &mut Vec<ServerStatus>) {
    let reason = clean(&server.misconfiguration.reason());
    match servers.iter_mut().find(|known| server.is_running && known.id == server.id.as_str()) {
        Some(running) => running.lacking.push(format!("its new configuration is not in force: {reason}")),
        None => {
            let (state, target) = (Availability::Misconfigured.as_str(), &server.misconfiguration.target);
            servers.push(without_backend(&server.id, state, Some(reason), target));
        }
    }
}

/// Returns the status of a server that the gateway does not run.
fn without_backend(id: &ServerId, state: &str, reason: Option<String>, target: &Target) -> ServerStatus {
    let (command, url) = command_and_url(target);
    ServerStatus { id: id.to_string(), state: state.to_owned(), reason, command, url, ..ServerStatus::default() }
}

/// Returns the target as the members `command` and `url`.
fn command_and_url(target: &Target) -> (Option<String>, Option<String>) {
    match target {
        Target::Command(command) => (Some(clean(command)), None),
        Target::Url(url) => (None, Some(clean(url))),
        Target::Directory(directory) => (None, Some(clean(directory))),
    }
}

fn last_error(meter: &Meter) -> Option<LastError> {
    let ServerFailure { time, reason } = meter.last_failure()?;
    Some(LastError { time: iso(time), message: clean(&reason) })
}

/// Returns the instructions of a server without characters that a terminal obeys, except line ends. Cuts a long text
/// and states how much is missing.
fn shown_instructions(text: &str) -> String {
    let (kept, rest) = text.split_at(text.floor_char_boundary(MAX_INSTRUCTIONS));
    let is_shown = |letter: &char| *letter == '\n' || !is_command(*letter);
    let mut shown: String = kept.replace('\t', " ").chars().filter(is_shown).collect();
    if !rest.is_empty() {
        let _ = write!(shown, "\n[cut: {} more bytes]", rest.len());
    }
    shown
}

fn calls(meter: &Meter) -> Calls {
    let count = |outcome| MethodLabel::ALL.iter().map(|method| meter.outcome_count(*method, outcome)).sum();
    Calls {
        ok: count(RequestOutcome::Ok),
        error: count(RequestOutcome::Error),
        timeout: count(RequestOutcome::Timeout),
        cancelled: count(RequestOutcome::Cancelled),
        unavailable: count(RequestOutcome::Unavailable),
        overloaded: count(RequestOutcome::Overloaded),
        protocol: count(RequestOutcome::Protocol),
    }
}

fn catalog_status(catalog: &Catalog) -> CatalogStatus {
    let contested = [("tool", &catalog.tools), ("prompt", &catalog.prompts)].into_iter();
    let conflicts = contested.flat_map(|(kind, names)| {
        let conflict = move |(name, exposed): (&String, &Vec<String>)| {
            let exposed = exposed.iter().map(|name| clean(name)).collect();
            Conflict { kind: kind.to_owned(), name: clean(name), exposed }
        };
        names.contested.iter().map(conflict)
    });
    CatalogStatus {
        version: catalog.number(),
        entries: List::ALL.map(|list| catalog.count(list)).into(),
        conflicts: conflicts.collect(),
    }
}

/// Returns the counts that are not zero, in the JSON form of `/metrics`.
fn metrics(backends: &[Arc<Backend>], subscriptions: usize) -> Metrics {
    let mut metrics = Metrics { mcp_resource_subscriptions_active: subscriptions, ..Metrics::default() };
    for backend in backends {
        let server_id = || backend.id.to_string();
        for (mime, status) in Mime::ALL.iter().flat_map(|mime| ReadStatus::ALL.iter().map(move |status| (mime, status)))
        {
            let value = backend.meter.read_count(*mime, *status);
            let (mime_type, status) = (mime.as_str().to_owned(), status.as_str().to_owned());
            metrics.mcp_resource_reads_total.push(ReadCount { server_id: server_id(), mime_type, status, value });
        }
        for (method, outcome) in
            MethodLabel::ALL.iter().flat_map(|method| RequestOutcome::ALL.iter().map(move |outcome| (method, outcome)))
        {
            let value = backend.meter.outcome_count(*method, *outcome);
            let (method, outcome) = (method.as_str().to_owned(), outcome.as_str().to_owned());
            metrics.mcp_requests_total.push(RequestCount { server_id: server_id(), method, outcome, value });
        }
    }
    metrics.mcp_resource_reads_total.retain(|count| count.value > 0);
    metrics.mcp_requests_total.retain(|count| count.value > 0);
    metrics
}

pub(crate) fn iso(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    date::iso(seconds.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use14_instructions_are_cleaned_and_cut() {
        assert_eq!(shown_instructions("first\tline\r\nred \u{1b}[31m\u{202e}"), "first line\nred [31m");
        let long = "é".repeat(MAX_INSTRUCTIONS);
        let shown = shown_instructions(&long);
        assert_eq!(shown, format!("{}\n[cut: 4096 more bytes]", "é".repeat(MAX_INSTRUCTIONS / 2)));
    }

    #[test]
    fn use14_the_last_error_is_bounded() {
        let meter = Meter::default();
        assert_eq!(last_error(&meter), None);
        meter.record_failure("first");
        meter.record_failure(&"é\u{1b}".repeat(100_000));
        let message = last_error(&meter).map(|error| error.message).unwrap_or_default();
        assert!(message.starts_with('é') && !message.contains('\u{1b}') && message.len() <= 4096, "{message}");
    }
}
