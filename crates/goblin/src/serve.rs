//! `goblin serve`: runs the gateway over HTTP.
//!
//! The command binds its listeners first, then publishes a record for other commands, then starts the gateway. It also
//! follows the configuration file (see [`follow`]).

use std::io::{IsTerminal, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use goblin_client::address::{self, ENDPOINT};
use goblin_client::connect::ProxyEnvironment;
use goblin_client::environment::environment;
use goblin_client::lineage::Lineage;
use goblin_client::runtime::identity::Fingerprints;
use goblin_client::runtime::{self, PublishedRecord, RecordDirectories, TokenFile, Tokens};
use goblin_config::Gateway;
use goblin_config::admin::ListenAddress;
use goblin_config::visible::shell_word;
use goblin_engine::admin::permit::AdminAccess;
use goblin_engine::app::listener::Listeners;
use goblin_engine::app::operate::ConfigSource;
use goblin_engine::app::socket::SocketListener;
use goblin_engine::app::{self, App};
use goblin_engine::upstream::child::own_executable;
use goblin_telemetry::worker;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;

use crate::banner::Banner;
use crate::cli::CliError;
use crate::follow::{ConfigOverride, Output, SharedRecord};
use crate::load::{ConfigLocation, SourcedConfig};
use crate::log::LogFlags;
use crate::start_lines::{SHOWN_BY_LINES, StartLines};
use crate::style::warn;
#[cfg(feature = "tui")]
use crate::top;
use crate::{cli, follow, live_lines, load, log, port};

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub source: cli::ConfigArgs,
    #[command(flatten)]
    pub log: LogFlags,
    /// Listen on this address instead of gateway.host, even if gateway.tcp is false
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Listen on this port instead of gateway.port, even if gateway.tcp is false; 0 takes any free port
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Do not print the banner with instructions for clients
    #[arg(long, short)]
    pub quiet: bool,
    /// Show the dashboard of goblin top; quitting it stops the gateway. If stderr is a terminal, no log is written, and
    /// the events of the dashboard replace it; 2>goblin.log keeps the log
    #[cfg_attr(feature = "tui", arg(long))]
    #[cfg_attr(not(feature = "tui"), arg(skip))]
    pub tui: bool,
}

pub(crate) async fn run(arguments: Serve) -> Result<ExitCode> {
    #[cfg(feature = "tui")]
    if arguments.tui {
        top::check_terminal()?;
    }
    let mut given = load::load(arguments.source.config.as_deref()).map_err(CliError::Usage)?;
    let lineage = Lineage::of_process(Some(&given.identity));
    lineage.check().map_err(CliError::Usage)?;
    let apply_flags = apply_flags(&arguments);
    apply_flags(&mut given.config);
    let gateway = &given.config.gateway;
    if gateway.tcp && gateway.token.is_none() && !gateway.is_loopback() {
        bail!(CliError::Usage(format!(
            "refusing to listen on {} without a token: anyone on the network could use your servers\n\
             set gateway.token in the configuration, or listen on 127.0.0.1",
            gateway.host
        )));
    }
    let has_banner = stdout().is_terminal() && !arguments.quiet && !arguments.tui;
    let output = match stdin().is_terminal() || stdout().is_terminal() {
        true => Output::Terminal { has_lines: has_banner },
        false => Output::Unattended,
    };
    if arguments.tui && std::io::stderr().is_terminal() {
        // The dashboard uses the whole screen, so there is no log.
    } else if has_banner && std::io::stderr().is_terminal() {
        let has_default_level = given.config.log.level.is_none() && arguments.log.log_level.is_none();
        if has_default_level {
            goblin_telemetry::line::leave_out(SHOWN_BY_LINES);
        }
        log::start(Level::WARN, &given.config.log, &arguments.log);
    } else {
        log::start(Level::INFO, &given.config.log, &arguments.log);
    }
    // Install the signal handlers before anything starts that a signal must not leave behind.
    let terminated = stop_signals(output)?;
    let clients = bind(gateway, &arguments).await?;
    let addresses = Addresses::of(&clients)?;
    let operators = app::bind_admin(&given.config.admin).await?;
    let admin_url = match &operators {
        Some((listener, _)) => Some(reachable(listener)?),
        None => given.config.admin.enabled.then(|| addresses.admin.clone()),
    };
    let PublishedFiles { record, permit, _token_file } = publish(&addresses, admin_url, &given, &lineage)?;
    let flag = arguments.source.config.as_deref();
    let secrets = given.secrets.clone();
    let (source, _following) = follow::follow(flag, &given.from, secrets, apply_flags, Arc::clone(&record), output)?;
    let listeners = GatewayListeners { clients, operators, permit };
    #[cfg(feature = "tui")]
    if arguments.tui {
        return serve_with_dashboard(GatewayStart { given, lineage }, source, listeners, record, addresses.url).await;
    }
    serve(GatewayStart { given, lineage }, source, listeners, record, has_banner.then_some(addresses), terminated).await
}

/// The configuration of a gateway that starts, and its id.
struct GatewayStart {
    given: SourcedConfig,
    lineage: Lineage,
}

/// The addresses at which programs on this machine reach the gateway.
struct Addresses {
    /// The URL of the endpoint: over TCP if there is a TCP listener, else over the socket.
    url: String,
    /// The address of the admin API, without a path: the socket if there is one, else the TCP listener.
    admin: String,
    has_tcp: bool,
    socket: Option<PathBuf>,
}

impl Addresses {
    fn of(listeners: &Listeners) -> Result<Addresses> {
        let tcp = listeners.tcp.as_ref().map(reachable).transpose()?;
        let socket = listeners.socket.as_ref().map(|socket| socket.path().to_owned());
        let has_tcp = tcp.is_some();
        let at_socket = |path: &str| socket.as_deref().map(|socket| address::of_socket(socket, path));
        let url = tcp.as_ref().map(|tcp| format!("{tcp}{ENDPOINT}")).or_else(|| at_socket(ENDPOINT));
        let (url, admin) = url.zip(at_socket("/").or(tcp)).context("the gateway has no address to listen on")?;
        Ok(Addresses { url, admin, has_tcp, socket })
    }
}

/// The listeners of the gateway.
struct GatewayListeners {
    clients: Listeners,
    /// The listener of the admin API, if it has its own address.
    operators: Option<(TcpListener, ListenAddress)>,
    permit: AdminAccess,
}

/// The files that other programs on this machine can read. They exist while this value lives.
struct PublishedFiles {
    record: SharedRecord,
    permit: AdminAccess,
    _token_file: Option<TokenFile>,
}

/// Returns a function that applies the flags to a configuration. It also runs at every reload.
fn apply_flags(arguments: &Serve) -> ConfigOverride {
    let (host, port) = (arguments.host.clone(), arguments.port);
    Arc::new(move |config| {
        if let Some(host) = &host {
            config.gateway.host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        }
        config.gateway.port = port.unwrap_or(config.gateway.port);
        config.gateway.tcp |= host.is_some() || port.is_some();
    })
}

/// Runs the gateway with the dashboard, until the user quits the dashboard.
#[cfg(feature = "tui")]
async fn serve_with_dashboard(
    start: GatewayStart,
    source: ConfigSource,
    listeners: GatewayListeners,
    record: SharedRecord,
    url: String,
) -> Result<ExitCode> {
    use goblin_tui::remote::Remote;
    use goblin_tui::remote::api::GatewayAddress;

    use crate::login::open_on_desktop;

    let own = |record: &runtime::GatewayRecord| record.pid == std::process::id() && record.url == url;
    let gateway = match RecordDirectories::of(&environment).running().into_iter().find(own) {
        Some(record) => GatewayAddress::Recorded(Box::new(record)),
        None => {
            let token = start.given.config.gateway.token.clone();
            GatewayAddress::Named { url, token, admin_token: Some(listeners.permit.token().clone()) }
        }
    };
    let (dashboard_ended, mut dashboard_end) = tokio::sync::watch::channel(false);
    let output = Output::Terminal { has_lines: false };
    let (mut signals, mut has_ended) = (stop_signals(output)?, false);
    let terminated = async move || match std::mem::replace(&mut has_ended, true) {
        // Cannot fail: the sender outlives this future.
        false => drop(dashboard_end.wait_for(|has_ended| *has_ended).await),
        true => signals().await,
    };
    let shown = async {
        let shown = async {
            let (remote, terminated) = (Remote::new(gateway)?, stop_signals(output)?);
            goblin_tui::run(remote, top::theme(), open_on_desktop, terminated).await
        };
        let shown = shown.await;
        dashboard_ended.send_replace(true);
        shown
    };
    let (served, shown) = tokio::join!(serve(start, source, listeners, record, None, terminated), shown);
    shown.and(served)
}

async fn serve(
    start: GatewayStart,
    source: ConfigSource,
    listeners: GatewayListeners,
    record: SharedRecord,
    banner: Option<Addresses>,
    mut terminated: impl AsyncFnMut(),
) -> Result<ExitCode> {
    let GatewayStart { given: SourcedConfig { config, from, .. }, lineage } = start;
    let has_token = config.gateway.token.is_some();
    let mut app = App::start_as(lineage, config, own_executable()?, ProxyEnvironment::from_process(), Arc::default());
    app.set_source(shown(&from), source);
    app.set_permit(listeners.permit);
    if let Some((listener, listen)) = listeners.operators {
        app.accept_operators(listener, &listen);
    }
    if banner.is_some() {
        live_lines::start().context("cannot start the thread of the terminal")?;
    }
    let banner_task = banner.map(|Addresses { url, has_tcp, socket, .. }| {
        let banner = Banner { url: has_tcp.then_some(url), socket, from: shown(&from), has_token };
        worker::spawn(StartLines::new(banner, Arc::clone(app.catalogs())).run(app.readiness()))
    });
    let shutdown = async move || {
        terminated().await;
        // Remove the record first, so that no new client connects during the shutdown.
        drop(record.lock().take());
    };
    let served = app.serve_http(listeners.clients, shutdown).await;
    if let Some(banner_task) = banner_task {
        banner_task.abort();
        live_lines::end();
    }
    served.map(|()| ExitCode::SUCCESS)
}

fn shown(from: &ConfigLocation) -> String {
    match from {
        ConfigLocation::File(path) => path.display().to_string(),
        ConfigLocation::Directory(path) => format!("the files of {} (there is no configuration)", path.display()),
    }
}

/// Binds the listeners for clients. The socket comes last: binding it changes the umask of the whole process, so no
/// other work may run meanwhile.
async fn bind(gateway: &Gateway, arguments: &Serve) -> Result<Listeners> {
    let tcp = match gateway.tcp {
        true => Some(bind_tcp(gateway, arguments).await?),
        false => None,
    };
    let socket = gateway.socket.as_deref().map(SocketListener::bind).transpose()?;
    Ok(Listeners { tcp, socket })
}

async fn bind_tcp(gateway: &Gateway, arguments: &Serve) -> Result<TcpListener> {
    app::bind(gateway).await.map_err(|error| {
        let config = arguments.source.config.as_ref().map(|path| path.display().to_string());
        let flag = |name: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!(" --{name} {}", shell_word(value))).unwrap_or_default()
        };
        let flags = flag("config", &config) + &flag("host", &arguments.host);
        anyhow!(port::explain(gateway, &error, &flags))
    })
}

/// Returns the URL at which programs on this machine reach the listener. Replaces an unspecified address by loopback.
fn reachable(listener: &TcpListener) -> Result<String> {
    let mut address = listener.local_addr().context("the listener has no address")?;
    if address.ip().is_unspecified() {
        let loopback = if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    Ok(format!("http://{address}"))
}

/// Publishes the record, by which other commands find this gateway. A failure is only a warning. A failure to write the
/// admin token to a configured file is an error.
fn publish(
    addresses: &Addresses,
    admin_url: Option<String>,
    given: &SourcedConfig,
    lineage: &Lineage,
) -> Result<PublishedFiles> {
    let (gateway, admin) = (&given.config.gateway, &given.config.admin);
    let permit = AdminAccess::new(gateway, admin);
    let chosen = admin.token_file.clone().filter(|_| admin.enabled);
    let write = |path: &PathBuf| {
        let written = TokenFile::write(path, permit.token());
        written.with_context(|| format!("cannot write the admin token to {} (admin.tokenFile)", path.display()))
    };
    let token_file = chosen.as_ref().map(write).transpose()?;
    let record_token = Some(permit.token()).filter(|_| admin.enabled && chosen.is_none());
    let record = record(&addresses.url, given).and_then(|mut record| {
        record.socket = addresses.socket.clone();
        record.gateway_id = Some(lineage.id.to_string());
        (record.admin_url, record.admin_token_file) = (admin_url, chosen.clone());
        RecordDirectories::of(&environment)
            .publish(record, Tokens { gateway: gateway.token.as_ref(), admin: record_token })
    });
    let record = record.map_err(|error| warn(&format!("other goblin commands will not find this gateway: {error}")));
    let record = record.ok();
    let place = record.as_ref().and_then(PublishedRecord::admin_token_file).map(Path::to_owned).or(chosen);
    let permit = match place {
        Some(place) => permit.written_to(place),
        None => permit,
    };
    Ok(PublishedFiles { record: Arc::new(Mutex::new(record)), permit, _token_file: token_file })
}

fn record(url: &str, given: &SourcedConfig) -> std::io::Result<runtime::GatewayRecord> {
    let mut salt = [0; 16];
    getrandom::fill(&mut salt).map_err(std::io::Error::other)?;
    Ok(runtime::GatewayRecord::new(url.to_owned(), given.identity.clone(), Fingerprints::new(salt, &given.variables)))
}

/// Installs the signal handlers. Each call of the result waits for the next SIGINT or SIGTERM.
pub(crate) fn termination() -> Result<impl AsyncFnMut()> {
    stop_signals(Output::Unattended)
}

/// Installs the signal handlers. Each call of the result waits for the next signal that stops the gateway: SIGINT,
/// SIGTERM, or SIGHUP if the gateway has a terminal.
fn stop_signals(output: Output) -> Result<impl AsyncFnMut()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut hangup = match output {
        Output::Terminal { .. } => Some(signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?),
        Output::Unattended => None,
    };
    Ok(async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = follow::next(&mut hangup) => {}
        }
    })
}
