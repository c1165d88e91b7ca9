//! Reads the whole file: turns the text into a configuration, or into a list of all its problems.

use std::cell::RefCell;
use std::sync::Arc;

use crate::exposure::Exposure;
use crate::field::{ConfigPart, Field, FieldContext, Section};
use crate::file::ConfigOrigin;
use crate::problem::{CollectedFaults, Fault, ProblemCollector, Problems};
use crate::schema::ObjectKeys;
use crate::secret::Secret;
use crate::views::ProfileContext;
use crate::{
    Config, Environment, Gateway, LoadedConfig, Log, LogFormat, LogLevel, Namespacing, Policies, SubscriptionLimits,
    Telemetry, Timeout, admin, document, network, rules, server, views, vocabulary,
};

pub(crate) fn read(text: &str, origin: &ConfigOrigin, environment: Environment<'_>) -> Result<LoadedConfig, Problems> {
    // Editors on Windows add a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let context =
        FieldContext { origin, environment, report: ProblemCollector::default(), expansions: RefCell::default() };
    if let Err(fault) = origin.check_trust() {
        context.report.problem(0, "", fault);
    }
    let value = document::parse(text, &context.report);
    // After a problem the configuration is incomplete. `finish` returns an error then, so it never leaves this
    // function.
    let mut config = match &value {
        Some(value) => root(&Field::root(value, &context)),
        None => Config::default(),
    };
    let CollectedFaults { warnings, misconfigured } = context.report.finish(text, &origin.file)?;
    for (server, problem) in misconfigured {
        if let Some(server) = config.servers.get_mut(server.as_str()) {
            Arc::make_mut(server).misconfigure(problem);
        }
    }
    Ok(LoadedConfig { config, warnings })
}

/// The fault of a file that consists of servers only.
pub(crate) const BARE_MAP: &str = "the servers are not in \"mcpServers\"";

fn root(field: &Field<'_>) -> Config {
    let mut config = Config::default();
    if is_bare_map(field) {
        let fault = Fault::new(BARE_MAP);
        field.problem(fault.cure("put them there: { \"mcpServers\": { ... } }"));
        return config;
    }
    let Some(section) = field.section(ObjectKeys::Root) else {
        return config;
    };
    section.set(&mut config.gateway, "gateway", gateway);
    section.set(&mut config.policies, "policies", policies);
    section.set(&mut config.policies.subscriptions, "subscriptions", subscriptions);
    section.set(&mut config.log, "log", log);
    section.set(&mut config.admin, "admin", admin::admin);
    require_two_tokens(&section, &config);
    section.set(&mut config.telemetry, "telemetry", telemetry);
    section.set(&mut config.namespacing, "namespacing", |field| rules::namespacing(field, &Namespacing::default()));
    let servers = section.one_of(&vocabulary::SERVERS);
    match &servers {
        Some(field) => {
            config.servers = server::servers(field, &config.namespacing);
            // All variables must be expanded before this step.
            server::withhold(field, &mut config.servers);
        }
        None => field.problem(Fault::new("there is no \"mcpServers\"").cure("add \"mcpServers\": {}")),
    }
    views(&section, servers.as_ref(), config.namespacing.max_length, &mut config);
    config
}

/// Reports whether the file has servers instead of keys, as the files of some clients do.
fn is_bare_map(field: &Field<'_>) -> bool {
    let Some(map) = Some(field).filter(|field| field.is_object()).and_then(Field::map) else { return false };
    let mut members = map.fields().filter(|(name, _)| *name != "$schema").peekable();
    members.peek().is_some()
        && members.all(|(name, member)| ObjectKeys::Root.check(name).is_err() && is_server(&member))
}

/// Reports whether an object has a member that only servers have.
fn is_server(field: &Field<'_>) -> bool {
    let Some(map) = Some(field).filter(|field| field.is_object()).and_then(Field::map) else { return false };
    map.fields().any(|(name, _)| ["command", "root"].contains(&name) || vocabulary::URL.contains(&name))
}

fn views(section: &Section<'_>, servers: Option<&Field<'_>>, max_length: usize, config: &mut Config) {
    section.set(&mut config.meta_tools, "metaTools", views::meta_tools);
    let meta_tools = &config.meta_tools;
    section.set(&mut config.exposure, "exposure", |field| views::exposure(field, &Exposure::default(), meta_tools));
    let servers = servers.filter(|field| field.is_object()).and_then(Field::map);
    let profile_context = ProfileContext {
        meta_tools,
        exposure: &config.exposure,
        server_ids: servers.map(|servers| servers.fields().map(|(id, _)| id).collect()),
        max_length,
    };
    section.set(&mut config.profiles, "profiles", |field| views::profiles(field, &profile_context));
}

fn gateway(field: &Field<'_>) -> Option<Gateway> {
    let section = field.section(ObjectKeys::Gateway)?;
    let mut gateway = Gateway::default();
    section.set(&mut gateway.host, "host", |field| field.accept(network::check_host(field.text()?)));
    section.set(&mut gateway.port, "port", |field| field.whole(0..=65535));
    section.set(&mut gateway.tcp, "tcp", Field::flag);
    section.set(&mut gateway.socket, "socket", |field| field.accept(network::check_socket(field.path()?)).map(Some));
    section.set(&mut gateway.allowed_hosts, "allowedHosts", |field| {
        field.list(|field| field.accept(network::check_allowed_host(field.text()?)))
    });
    section.set(&mut gateway.allowed_origins, "allowedOrigins", |field| {
        field.list(|field| field.accept(network::check_allowed_origin(field.text()?)))
    });
    section.set(&mut gateway.max_sessions, "maxSessions", Field::count);
    section.set(&mut gateway.session_idle_timeout, "sessionIdleTimeout", Field::positive_duration);
    section.set(&mut gateway.max_body_size, "maxBodySize", Field::size);
    section.set(&mut gateway.max_memory, "maxMemory", |field| field.memory().map(Some));
    section.set(&mut gateway.start_wait, "startWait", Field::duration);
    section.set(&mut gateway.listing_cache, "listingCache", Field::flag);
    section.set(&mut gateway.grace, "grace", Field::duration);
    section.set(&mut gateway.token, "token", |field| token(field).map(Some));
    require_token(&section, &gateway);
    require_socket(&section, &gateway);
    Some(gateway)
}

/// Reports a problem if both tokens are equal. A client with `gateway.token` must not be able to act as an operator.
fn require_two_tokens(section: &Section<'_>, config: &Config) {
    let is_same = config.admin.token.is_some() && config.admin.token == config.gateway.token;
    let admin = section.get("admin").filter(|_| is_same).and_then(|field| field.map());
    if let Some(token) = admin.and_then(|admin| admin.get("token")) {
        token.problem(Fault::new("is the same as gateway.token, which clients know").cure("use another token"));
    }
}

/// Reads a token of the gateway itself.
pub(crate) fn token(field: &Field<'_>) -> Option<Secret> {
    let text = field.context().within(ConfigPart::Token, || field.expanded())?;
    field.accept(network::check_token(&text))?;
    field.warn_if_literal_secret();
    Some(Secret::new(text))
}

/// Reports a gateway that other machines can reach without a token. A client of the gateway can reach every server.
fn require_token(section: &Section<'_>, gateway: &Gateway) {
    // Check for the member instead of the value, because an invalid token has already been reported.
    let has_token = section.get("token").is_some();
    let is_open = gateway.tcp && !has_token && !network::is_loopback(&gateway.host);
    if let Some(host) = section.get("host").filter(|_| is_open) {
        let fault = Fault::new("other machines can reach this address and there is no gateway.token");
        host.problem(fault.cure("set gateway.token or use \"127.0.0.1\""));
    }
}

/// Reports a gateway without any address to listen on.
fn require_socket(section: &Section<'_>, gateway: &Gateway) {
    // An invalid socket has already been reported.
    let has_socket = section.get("socket").is_some();
    if let Some(tcp) = section.get("tcp").filter(|_| !gateway.tcp && !has_socket) {
        tcp.problem(
            Fault::new("without TCP the gateway needs gateway.socket").cure("set gateway.socket or remove tcp"),
        );
    }
}

fn policies(field: &Field<'_>) -> Option<Policies> {
    let section = field.section(ObjectKeys::Policies)?;
    let mut policies = Policies::default();
    let limit = |field: &Field<'_>| field.timeout().map(Timeout::duration);
    section.set(&mut policies.default_timeout, "defaultTimeout", limit);
    section.set(&mut policies.max_timeout, "maxTimeout", limit);
    section.set(&mut policies.ask_timeout, "askTimeout", limit);
    section.set(&mut policies.start_timeout, "startTimeout", Field::positive_duration);
    section.set(&mut policies.max_in_flight, "maxInFlight", Field::count);
    section.set(&mut policies.max_in_flight_per_backend, "maxInFlightPerBackend", Field::count);
    section.set(&mut policies.max_message_size, "maxMessageSize", Field::size);
    section.set(&mut policies.page_size, "pageSize", Field::count);
    Some(policies)
}

fn subscriptions(field: &Field<'_>) -> Option<SubscriptionLimits> {
    let section = field.section(ObjectKeys::Subscriptions)?;
    let mut limits = SubscriptionLimits::default();
    section.set(&mut limits.per_client, "maxPerClient", Field::count);
    section.set(&mut limits.total, "maxTotal", Field::count);
    section.set(&mut limits.upstream, "maxUpstream", Field::count);
    Some(limits)
}

pub(crate) const LEVELS: [(&str, LogLevel); 5] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

fn log(field: &Field<'_>) -> Option<Log> {
    let section = field.section(ObjectKeys::Log)?;
    let mut log = Log::default();
    section.set(&mut log.level, "level", |field| field.choice(&LEVELS).map(Some));
    section.set(&mut log.format, "format", |field| field.choice(&LogFormat::ALL));
    section.set(&mut log.audit, "audit", Field::flag);
    Some(log)
}

fn telemetry(field: &Field<'_>) -> Option<Telemetry> {
    let section = field.section(ObjectKeys::Telemetry)?;
    let mut telemetry = Telemetry::default();
    section.set(&mut telemetry.otlp, "otlp", |field| {
        let url = field.expanded()?;
        field.accept(network::check_url(&url)).map(|()| Some(url))
    });
    Some(telemetry)
}
