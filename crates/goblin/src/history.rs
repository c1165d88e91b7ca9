//! `goblin calls` and `goblin logs`: print the ended calls and the logs of a running gateway, and follow them.
//!
//! Both commands print the newest entries last. With `--follow` they repeat a request that waits for new entries, so
//! they survive a restart of the gateway. The gateway keeps a limited number of entries, so a command that is too slow
//! reports how many it missed.

mod show;

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCompleter;
use goblin_admin::api::{CallInfo, CallList, EventInfo, LogList};
use goblin_client::admin::{AdminClient, UNKNOWN_SERVER};
use goblin_wire::date;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admin_client::{self, GatewayArgs};
use crate::catalog::complete;
use crate::cli::CliError;
use crate::history::show::Row;
use crate::serve::termination;
use crate::style::{is_colourful, note, plural, warn, width, write};
use crate::table::Table;

/// The seconds for which one request waits. It is shorter than the timeout of the client.
const WAIT: u64 = 5;
/// The pause between two requests, so that many new entries come in one response.
const PAUSE: Duration = Duration::from_millis(200);
/// The pause while the gateway does not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct Calls {
    /// Only calls of this server
    #[arg(long, value_name = "SERVER", add = ArgValueCompleter::new(complete::configured_servers))]
    pub server: Option<String>,
    /// Only calls of clients with this name
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
    /// Only calls that ended with an error or a tool error
    #[arg(long)]
    pub failed: bool,
    #[command(flatten)]
    pub output: HistoryArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Only events of this server, with the lines that it wrote to stderr
    #[arg(add = ArgValueCompleter::new(complete::configured_servers))]
    pub server: Option<String>,
    /// Only events of this level and the more severe ones. The gateway keeps debug events only while somebody follows
    /// them, so use debug with --follow
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<Level>,
    #[command(flatten)]
    pub output: HistoryArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Print new entries until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
    /// The largest number of past entries
    #[arg(short = 'n', value_name = "N", default_value_t = 50)]
    pub count: u64,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(crate) async fn calls(arguments: Calls) -> Result<ExitCode> {
    let outcome = arguments.failed.then_some("failed");
    let filters =
        [("server", arguments.server.as_deref()), ("client", arguments.client.as_deref()), ("outcome", outcome)];
    run::<CallList>("/api/calls", &filters, &arguments.output).await
}

pub(crate) async fn logs(arguments: Logs) -> Result<ExitCode> {
    let level = arguments.level.and_then(|level| level.to_possible_value());
    let level = level.as_ref().map(|level| level.get_name());
    let filters = [("server", arguments.server.as_deref()), ("level", level)];
    run::<LogList>("/api/logs", &filters, &arguments.output).await
}

/// A list of the admin API that can be followed.
trait History: DeserializeOwned {
    type Entry: Serialize + Row;
    /// The noun for one entry.
    const ENTRY: &'static str;
    /// The words before the number of missed entries.
    const MISSED: &'static str;

    fn into_parts(self) -> Parts<Self::Entry>;
}

/// The content of a list.
struct Parts<E> {
    /// The start time of the gateway.
    started: String,
    /// The newest sequence number.
    last: u64,
    missed: u64,
    /// The entries, oldest first.
    entries: Vec<E>,
}

impl History for CallList {
    type Entry = CallInfo;
    const ENTRY: &'static str = "call";
    const MISSED: &'static str = "";

    fn into_parts(mut self) -> Parts<CallInfo> {
        self.calls.reverse();
        Parts { started: self.started, last: self.total, missed: self.missed, entries: self.calls }
    }
}

impl History for LogList {
    type Entry = EventInfo;
    const ENTRY: &'static str = "event";
    // The numbers of events have gaps.
    const MISSED: &'static str = "up to ";

    fn into_parts(self) -> Parts<EventInfo> {
        Parts { started: self.started, last: self.last, missed: self.missed, entries: self.events }
    }
}

async fn run<H: History>(
    route: &'static str,
    filters: &[(&str, Option<&str>)],
    output: &HistoryArgs,
) -> Result<ExitCode> {
    let mut terminated = termination()?;
    let client = admin_client::find(&output.gateway).await?;
    let mut follower = Follower { client, route, filters: query(filters), after: 0, started: String::new() };
    let mut printer = Printer { is_json: output.json, table: Table::new(H::Entry::COLUMNS) };
    let first = follower.read::<H>(&format!("limit={}", output.count)).await.map_err(refused)?;
    if !printer.print(&first.unwrap_or_default().entries)? || !output.follow {
        return Ok(ExitCode::SUCCESS);
    }
    tokio::select! {
        followed = follow::<H>(&mut follower, &mut printer) => followed,
        () = terminated() => Ok(ExitCode::SUCCESS),
    }
}

/// Prints new entries until the reader of stdout is gone.
async fn follow<H: History>(follower: &mut Follower, printer: &mut Printer) -> Result<ExitCode> {
    let mut is_lost = false;
    loop {
        match follower.read::<H>(&format!("wait={WAIT}")).await {
            Ok(news) => {
                if std::mem::take(&mut is_lost) {
                    note("the gateway answers again");
                }
                let News { missed, entries } = news.unwrap_or_default();
                if missed > 0 {
                    warn(&missed_entries::<H>(missed));
                }
                if !printer.print(&entries)? {
                    return Ok(ExitCode::SUCCESS);
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(reason) => {
                if !std::mem::replace(&mut is_lost, true) {
                    warn(&format!("{reason}; waiting for the gateway"));
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Returns the warning about entries that the gateway removed before they were read.
fn missed_entries<H: History>(missed: u64) -> String {
    let count = plural(usize::try_from(missed).unwrap_or(usize::MAX), H::ENTRY);
    format!("{}{count} missed, because the gateway keeps only the newest ones", H::MISSED)
}

/// The entries since the last response.
struct News<E> {
    missed: u64,
    entries: Vec<E>,
}

impl<E> Default for News<E> {
    fn default() -> News<E> {
        News { missed: 0, entries: Vec::new() }
    }
}

/// Reads a list of the gateway from the last entry on.
struct Follower {
    client: AdminClient,
    route: &'static str,
    filters: String,
    after: u64,
    /// The start time of the gateway of the last response.
    started: String,
}

impl Follower {
    /// Returns the entries after the last response. Returns `None` if the gateway restarted: the next read returns all
    /// of its entries.
    async fn read<H: History>(&mut self, extent: &str) -> Result<Option<News<H::Entry>>, String> {
        let Follower { route, filters, after, .. } = &self;
        let body = self.client.get(&format!("{route}?after={after}&{extent}{filters}")).await?;
        let list: H = serde_json::from_slice(&body)
            .map_err(|error| format!("{} sent an unexpected response: {error}", self.client.place()))?;
        let Parts { started, last, missed, entries } = list.into_parts();
        let is_restarted = !self.started.is_empty() && self.started != started;
        self.started = started;
        self.after = if is_restarted { 0 } else { last };
        Ok((!is_restarted).then_some(News { missed, entries }))
    }
}

/// Returns the filters as the rest of a query.
fn query(filters: &[(&str, Option<&str>)]) -> String {
    let given = filters.iter().filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)));
    given.map(|(name, value)| format!("&{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))).collect()
}

/// Returns the error for a first request that failed. A misspelled server is an error of the arguments.
pub(crate) fn refused(message: String) -> CliError {
    match message.starts_with(UNKNOWN_SERVER) {
        true => CliError::Usage(message),
        false => CliError::Unavailable(message),
    }
}

/// Returns the present time as in an entry.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date::iso(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

struct Printer {
    is_json: bool,
    table: Table,
}

impl Printer {
    /// Prints entries. Returns `false` if the reader of stdout is gone.
    fn print<E: Serialize + Row>(&mut self, entries: &[E]) -> Result<bool> {
        let text = match self.is_json {
            true => {
                entries.iter().map(|entry| serde_json::to_string(entry).expect("all keys are strings") + "\n").collect()
            }
            false => {
                let stdout = std::io::stdout();
                let width = width(&stdout);
                let now = now();
                for entry in entries {
                    self.table.push(if width.is_some() { entry.short_cells(&now) } else { entry.cells() });
                }
                self.table.take_lines(width, is_colourful(&stdout))
            }
        };
        write(text.as_bytes()).context("cannot write to stdout")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use6_filters_become_an_encoded_query() {
        assert_eq!(
            query(&[("server", Some("a b&c")), ("client", None), ("outcome", Some("failed"))]),
            "&server=a%20b%26c&outcome=failed"
        );
        assert!(matches!(refused("there is no server `x`".to_owned()), CliError::Usage(_)));
        assert!(matches!(refused("gone".to_owned()), CliError::Unavailable(_)));
    }

    #[test]
    fn use6_a_warning_names_the_number_of_missed_entries() {
        let kept = ", because the gateway keeps only the newest ones";
        assert_eq!(missed_entries::<CallList>(1), format!("1 call missed{kept}"));
        assert_eq!(missed_entries::<LogList>(7), format!("up to 7 events missed{kept}"));
    }
}
