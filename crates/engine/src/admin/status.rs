//! Collects the state of the gateway for the admin API.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use goblin_admin::api::{
    Calls, CatalogStatus, Conflict, Metrics, ProcessStatus, ReadCount, RequestCount, ServerStatus, SessionCounts,
    Status,
};
use goblin_catalog::listing::List;
use goblin_config::{ServerId, Sharing};
use goblin_telemetry::clean;
use goblin_telemetry::meter::{Meter, MethodLabel, ReadStatus, RequestOutcome};
use goblin_telemetry::metrics::ProcessReading;
use goblin_wire::{Mime, date};

use crate::admin::latency::latency;
use crate::admin::{Admin, process};
use crate::catalog_store::Catalog;
use crate::upstream::availability::{Availability, ServerDescription, defects};
use crate::upstream::{Backend, BackendState};

impl Admin {
    pub(super) fn status(&self) -> Status {
        let sessions = &self.dispatcher.sessions;
        let subscriptions = self.dispatcher.router.subscriptions.count();
        let ProcessReading { resident_bytes, open_descriptors } = process::measure();
        // A guard inside the expression below would live to its end. `servers` borrows the configuration again, which
        // blocks behind a waiting writer.
        let state = self.readiness.borrow().as_str().to_owned();
        let configuration = self.configuration.borrow().status.clone();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: iso(self.started),
            uptime_seconds: self.started.elapsed().unwrap_or_default().as_secs(),
            pid: std::process::id(),
            state,
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

    /// Returns all servers in the order of the configuration, including disabled ones.
    pub(super) fn servers(&self) -> Vec<ServerStatus> {
        let catalogs = &self.dispatcher.router.catalogs;
        let catalog = catalogs.catalog();
        let counts = catalog.counts();
        let mut servers: Vec<_> =
            catalogs.backends().iter().map(|backend| server(backend, &catalog, &counts)).collect();
        let configured = self.configuration.borrow().servers.clone();
        let disabled = configured.iter().filter(|(_, enabled)| !enabled).map(|(id, _)| ServerStatus {
            id: id.to_string(),
            state: "disabled".to_owned(),
            ..ServerStatus::default()
        });
        servers.extend(disabled);
        servers.sort_by_key(|server| configured.iter().position(|(id, _)| id.as_str() == server.id));
        servers
    }

    /// Returns the ids of all servers, including disabled ones.
    pub(super) fn server_ids(&self) -> Vec<ServerId> {
        self.configuration.borrow().servers.iter().map(|(id, _)| id.clone()).collect()
    }
}

fn server(backend: &Arc<Backend>, catalog: &Catalog, counts: &[[usize; 4]]) -> ServerStatus {
    let description = ServerDescription::of(backend);
    let place = catalog.sources.iter().position(|source| Arc::ptr_eq(&source.backend, backend));
    let reason = match backend.state() {
        BackendState::Starting | BackendState::Ready => None,
        BackendState::Lost(reason) => Some(clean(&reason)),
        BackendState::Stopped => Some("the server was stopped".to_owned()),
    };
    ServerStatus {
        id: backend.id.to_string(),
        state: Availability::of(backend).as_str().to_owned(),
        reason,
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
