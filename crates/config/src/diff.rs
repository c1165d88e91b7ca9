//! Computes the steps from one configuration to another.
//!
//! [`diff`] is pure: it decides and the application acts. Start-up is the plan from [`Config::default`]. A disabled
//! server does not run: enabling a server starts it, disabling it stops it. A misconfigured server does not start, but
//! one that runs already keeps its old entry.

use std::sync::Arc;

use crate::{Config, Gateway, Policies, Server, ServerId};

/// The steps for the running servers. Changing only the order of servers does not affect running ones.
#[derive(Clone, Debug, PartialEq)]
pub struct ReloadPlan {
    pub start: Vec<(ServerId, Arc<Server>)>,
    pub change: Vec<ServerChange>,
    pub stop: Vec<ServerId>,
    /// The running servers whose new entry is misconfigured. They keep their old one (D16).
    pub keep: Vec<ServerId>,
}

/// A server that runs before and after the change.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerChange {
    pub id: ServerId,
    pub server: Arc<Server>,
}

/// The extent of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The connection must be reopened.
    Connection,
    /// Only names, filters, intervals or limits change. The connection stays open.
    Surface,
}

/// Returns the steps that lead from `old` to `new`.
pub fn diff(old: &Config, new: &Config) -> ReloadPlan {
    let mut plan = ReloadPlan { start: Vec::new(), change: Vec::new(), stop: removed(old, new), keep: Vec::new() };
    for (id, server) in &new.servers {
        let before = old.servers.get(id);
        if before == Some(server) {
            continue;
        }
        let running = before.filter(|before| before.is_runnable());
        match running {
            None if server.is_runnable() => plan.start.push((id.clone(), Arc::clone(server))),
            None => {}
            Some(_) if !server.enabled => plan.stop.push(id.clone()),
            Some(_) if server.misconfiguration().is_some() => plan.keep.push(id.clone()),
            Some(_) => plan.change.push(ServerChange { id: id.clone(), server: Arc::clone(server) }),
        }
    }
    plan
}

/// Returns the names, as in the file, of changed settings that need a restart. The destructuring lists every member, so
/// the compiler rejects a new member until it is handled here.
pub fn frozen(old: &Config, new: &Config) -> Vec<&'static str> {
    let Config {
        gateway,
        log,
        admin,
        telemetry,
        policies: _,
        exposure: _,
        meta_tools: _,
        namespacing: _,
        profiles: _,
        servers: _,
    } = new;
    let Gateway {
        host,
        port,
        tcp,
        socket,
        allowed_hosts,
        allowed_origins,
        max_sessions,
        session_idle_timeout,
        max_body_size,
        max_memory,
        start_wait,
        listing_cache,
        grace,
        token,
    } = gateway;
    let before = &old.gateway;
    let same = [
        ("gateway.host", before.host == *host),
        ("gateway.port", before.port == *port),
        ("gateway.tcp", before.tcp == *tcp),
        ("gateway.socket", before.socket == *socket),
        ("gateway.allowedHosts", before.allowed_hosts == *allowed_hosts),
        ("gateway.allowedOrigins", before.allowed_origins == *allowed_origins),
        ("gateway.maxSessions", before.max_sessions == *max_sessions),
        ("gateway.sessionIdleTimeout", before.session_idle_timeout == *session_idle_timeout),
        ("gateway.maxBodySize", before.max_body_size == *max_body_size),
        ("gateway.maxMemory", before.max_memory == *max_memory),
        ("gateway.startWait", before.start_wait == *start_wait),
        ("gateway.listingCache", before.listing_cache == *listing_cache),
        ("gateway.grace", before.grace == *grace),
        ("gateway.token", before.token == *token),
        ("log", old.log == *log),
        ("admin", old.admin == *admin),
        ("telemetry", old.telemetry == *telemetry),
    ];
    differing(same)
}

/// Returns the names, as in the file, of changed settings that a running gateway applies, besides the servers.
pub fn live(old: &Config, new: &Config) -> Vec<&'static str> {
    let Config { policies, exposure, meta_tools, namespacing, profiles, .. } = new;
    let Policies {
        default_timeout,
        max_timeout,
        ask_timeout,
        start_timeout,
        max_in_flight,
        max_in_flight_per_backend,
        max_message_size,
        page_size,
        subscriptions,
    } = policies;
    let policed = &old.policies;
    differing([
        ("policies.defaultTimeout", policed.default_timeout == *default_timeout),
        ("policies.maxTimeout", policed.max_timeout == *max_timeout),
        ("policies.askTimeout", policed.ask_timeout == *ask_timeout),
        ("policies.startTimeout", policed.start_timeout == *start_timeout),
        ("policies.maxInFlight", policed.max_in_flight == *max_in_flight),
        ("policies.maxInFlightPerBackend", policed.max_in_flight_per_backend == *max_in_flight_per_backend),
        ("policies.maxMessageSize", policed.max_message_size == *max_message_size),
        ("policies.pageSize", policed.page_size == *page_size),
        ("subscriptions", policed.subscriptions == *subscriptions),
        ("exposure", old.exposure == *exposure),
        ("metaTools", old.meta_tools == *meta_tools),
        ("namespacing", old.namespacing == *namespacing),
        ("profiles", old.profiles == *profiles),
    ])
}

fn differing<const N: usize>(same: [(&'static str, bool); N]) -> Vec<&'static str> {
    same.into_iter().filter(|(_, is_same)| !is_same).map(|(name, _)| name).collect()
}

/// Returns the running servers that the new configuration no longer contains.
fn removed(old: &Config, new: &Config) -> Vec<ServerId> {
    let removed = old.servers.iter().filter(|(id, server)| server.is_runnable() && !new.servers.contains_key(*id));
    removed.map(|(id, _)| id.clone()).collect()
}

/// Returns the extent of a change. The destructuring lists every member, so the compiler rejects a new member until it
/// is handled here.
pub fn depth(old: &Server, new: &Server) -> Depth {
    let Server {
        transport,
        protocol,
        session,
        declare,
        roots,
        max_clients: _,
        enabled: _,
        prefix: _,
        namespacing: _,
        timeout: _,
        poll,
        refresh: _,
        unlisted: _,
        validate: _,
        tools: _,
        prompts: _,
        resources: _,
    } = new;
    let is_same_connection = old.transport == *transport
        && old.protocol == *protocol
        && old.session == *session
        && old.declare == *declare
        && old.roots == *roots
        // Polling replaces the subscribe requests of a server that has none.
        && old.poll.is_some() == poll.is_some();
    if is_same_connection { Depth::Surface } else { Depth::Connection }
}
