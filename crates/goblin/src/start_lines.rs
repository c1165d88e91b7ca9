//! The lines of `goblin serve` on a terminal: a live line for each server that starts, its result, and a summary.
//!
//! The task polls the servers, because its spinners move anyway. It continues after the start, so that servers of a
//! reload or of a restart get their lines too. The log reports servers that are lost while they run.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use goblin_catalog::ListedTools;
use goblin_catalog::listing::List;
use goblin_engine::admin::readiness::Readiness;
use goblin_engine::catalog_store::{CatalogStore, Source};
use goblin_engine::upstream::availability::{Availability, MisconfiguredServer};
use goblin_engine::upstream::problem::stable_part;
use goblin_engine::upstream::{Backend, BackendState};
use goblin_oauth::LoginNeed;
use goblin_telemetry::{EventKind, clean};
use goblin_wire::units::{self, duration};
use tokio::sync::watch;
use unicode_width::UnicodeWidthStr;

use crate::banner::{self, Banner, CLAUDE_PROGRAM};
use crate::doctor::servers::split;
use crate::live_lines::{self, LiveLine};
use crate::style::{is_colourful, paint_if, plural, width, wrap};

/// The time between two looks at servers that have all settled.
const IDLE: Duration = Duration::from_secs(1);

/// The events that these lines show. A log on the same terminal leaves them out, unless the user chose its level.
pub(crate) const SHOWN_BY_LINES: &[EventKind] =
    &[EventKind::BackendFailed, EventKind::LoginNeeded, EventKind::Ready, EventKind::ServerMisconfigured];

/// Follows the id of a server whose new entry does not work.
const RUNS_OLD_ENTRY: &str = "  runs with its previous entry:";
const STOPPED: &str = "it was stopped";

/// The lines of all servers.
pub(crate) struct StartLines {
    banner: Banner,
    catalogs: Arc<CatalogStore>,
    servers: Vec<ServerLine>,
    /// The misconfigured servers that have a line.
    misconfigured: Arc<Vec<MisconfiguredServer>>,
    summary: SummaryState,
}

/// Whether the summary is up to date. The first one follows the start, and another one follows late servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SummaryState {
    Missing,
    Outdated,
    Current,
}

/// A server with its live line while it starts.
struct ServerLine {
    backend: Arc<Backend>,
    /// The id of the server, as wide as the ids of all servers.
    label: String,
    since: Instant,
    live: Option<LiveLine>,
    /// Whether the server waits to replace one that runs with the previous entry of the file.
    is_successor: bool,
    /// Whether a look found the server starting. Without one the time is unknown.
    was_starting: bool,
    result: Option<ServerResult>,
}

/// The result of an attempt to start a server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ServerResult {
    /// The number of entries in each list.
    Ready([usize; 4]),
    /// The reason, with a cure in parentheses at its end.
    Failed(String),
    /// The same for a server that needs a login.
    LoginNeeded(String),
}

impl StartLines {
    pub(crate) fn new(banner: Banner, catalogs: Arc<CatalogStore>) -> StartLines {
        StartLines {
            banner,
            catalogs,
            servers: Vec::new(),
            misconfigured: Arc::default(),
            summary: SummaryState::Missing,
        }
    }

    /// Shows the lines until the gateway stops.
    pub(crate) async fn run(mut self, mut readiness: watch::Receiver<Readiness>) {
        let colourful = is_colourful(&std::io::stdout());
        live_lines::print(&(banner::head(&self.banner, colourful) + "\n"));
        loop {
            let state = *readiness.borrow_and_update();
            if state == Readiness::Stopping {
                break;
            }
            self.print_misconfigured(colourful);
            self.adopt_servers();
            for server in &mut self.servers {
                let has_settled = server.look(&self.catalogs, colourful);
                if has_settled && self.summary == SummaryState::Current {
                    self.summary = SummaryState::Outdated;
                }
            }
            let is_settled = self.servers.iter().all(|server| server.live.is_none());
            match self.summary {
                SummaryState::Missing if state.is_ready() => self.print_start(colourful),
                SummaryState::Outdated if is_settled => self.print_summary(colourful),
                _ => {}
            }
            let is_idle = self.summary == SummaryState::Current && is_settled;
            tokio::select! {
                () = tokio::time::sleep(if is_idle { IDLE } else { live_lines::TICK }) => {}
                // The gateway has ended.
                changed = readiness.changed() => if changed.is_err() { break },
            }
        }
    }

    /// Adds servers that have started, and removes those that no longer run. A changed server waits as the successor of
    /// the one that runs.
    fn adopt_servers(&mut self) {
        let backends = self.catalogs.backends();
        let successors: Vec<_> = backends.iter().filter_map(|backend| backend.successor.load_full()).collect();
        let all = || backends.iter().chain(&successors);
        self.servers.retain(|server| all().any(|backend| backend.shares_links(&server.backend)));
        let widest = self.widest();
        for (index, backend) in all().enumerate() {
            let is_successor = index >= backends.len();
            let known = self.servers.iter_mut().find(|server| backend.shares_links(&server.backend));
            if let Some(known) = known {
                known.backend = Arc::clone(backend);
                known.is_successor = is_successor;
            } else {
                let label = padded(backend.id.as_str(), widest);
                self.servers.push(ServerLine {
                    backend: Arc::clone(backend),
                    live: Some(LiveLine::new(label.clone())),
                    label,
                    since: Instant::now(),
                    is_successor,
                    was_starting: false,
                    result: None,
                });
            }
        }
    }

    /// Returns the width of the widest id.
    fn widest(&self) -> usize {
        let (backends, misconfigured) = (self.catalogs.backends(), self.catalogs.misconfigured());
        let ids = backends.iter().map(|backend| &backend.id).chain(misconfigured.iter().map(|server| &server.id));
        ids.map(|id| id.as_str().width()).max().unwrap_or_default()
    }

    /// Prints the servers that have become misconfigured.
    fn print_misconfigured(&mut self, colourful: bool) {
        let misconfigured = self.catalogs.misconfigured();
        let widest = self.widest();
        for server in misconfigured.iter().filter(|server| !server.is_among(&self.misconfigured)) {
            let result = ServerResult::Failed(server.misconfiguration.reason());
            let label = padded(server.id.as_str(), widest) + if server.is_running { RUNS_OLD_ENTRY } else { "" };
            print_result(&label, &result, None, colourful);
        }
        self.misconfigured = misconfigured;
    }

    /// Prints the first summary and the lines for clients.
    fn print_start(&mut self, colourful: bool) {
        self.print_summary(colourful);
        let catalog = self.catalogs.catalog();
        let always_load = matches!(catalog.lists_for(Some(CLAUDE_PROGRAM)).tools, ListedTools::Pinned { .. });
        live_lines::print(&(banner::client_lines(&self.banner, always_load, colourful) + "\n"));
    }

    /// Prints the summary with the failed servers at its end.
    fn print_summary(&mut self, colourful: bool) {
        self.summary = SummaryState::Current;
        let running = self.servers.iter().filter(|server| !server.is_successor);
        let results = running.map(|server| (server.backend.id.to_string(), server.result.clone()));
        let misconfigured = self.catalogs.misconfigured();
        let stopped = misconfigured.iter().filter(|server| !server.is_running);
        let stopped = stopped.map(|server| (server.id.to_string(), Some(ServerResult::Failed(String::new()))));
        live_lines::print(&summary(&results.chain(stopped).collect::<Vec<_>>(), colourful));
    }
}

impl ServerLine {
    /// Updates the live line. Prints the result when the server has settled, and again when it recovers, fails or fails
    /// for another reason. Reports whether the live line has ended.
    fn look(&mut self, catalogs: &CatalogStore, colourful: bool) -> bool {
        let result = self.current_result(catalogs);
        if let (Some(live), None) = (&self.live, &result) {
            let state = if self.backend.state() == BackendState::Ready { "lists its entries" } else { "connecting" };
            live.show(format!("{state}, {}", units::span(self.since.elapsed().as_secs(), units::WORDS)));
            self.was_starting = true;
        }
        let Some(result) = result else { return false };
        let is_first = self.live.take().is_some();
        let is_news = match (&self.result, &result) {
            (Some(ServerResult::Failed(_) | ServerResult::LoginNeeded(_)), ServerResult::Ready(_)) => true,
            (Some(ServerResult::LoginNeeded(before)), ServerResult::LoginNeeded(reason)) => before != reason,
            (Some(_), ServerResult::LoginNeeded(_)) => true,
            (Some(ServerResult::Failed(before)), ServerResult::Failed(reason)) => {
                stable_part(before) != stable_part(reason) && reason != STOPPED
            }
            (Some(_), ServerResult::Failed(reason)) => reason != STOPPED,
            _ => false,
        };
        if is_first || is_news {
            let took = (is_first && self.was_starting).then(|| self.since.elapsed());
            let is_old = self.is_successor && !matches!(result, ServerResult::Ready(_));
            let label = self.label.clone() + if is_old { RUNS_OLD_ENTRY } else { "" };
            print_result(&label, &result, took, colourful);
        }
        self.result = Some(result);
        is_first
    }

    /// Returns `None` while the server starts, and until the catalog has its lists.
    fn current_result(&self, catalogs: &CatalogStore) -> Option<ServerResult> {
        match (Availability::of(&self.backend), self.backend.state()) {
            (_, BackendState::Lost(reason)) => Some(ServerResult::Failed(reason)),
            (_, BackendState::LoginNeeded(reason)) => Some(ServerResult::LoginNeeded(reason)),
            (_, BackendState::Stopped) => Some(ServerResult::Failed(STOPPED.to_owned())),
            (Availability::Ready, _) => {
                let (catalog, listing) = (catalogs.catalog(), self.backend.listing());
                let is_own = |source: &Source| {
                    Arc::ptr_eq(&source.backend, &self.backend) && Arc::ptr_eq(&source.listing, &listing)
                };
                let index = catalog.sources.iter().position(is_own)?;
                catalog.counts().get(index).copied().map(ServerResult::Ready)
            }
            _ => None,
        }
    }
}

/// Returns the text with spaces up to this width on a terminal.
fn padded(text: &str, width: usize) -> String {
    text.to_owned() + &" ".repeat(width.saturating_sub(text.width()))
}

fn print_result(server: &str, result: &ServerResult, took: Option<Duration>, colourful: bool) {
    live_lines::print(&result_lines(server, result, took, width(&std::io::stdout()), colourful));
}

/// Returns the lines for the result of one server: its counts and the time, or the reason of the failure and its cure.
fn result_lines(
    server: &str,
    result: &ServerResult,
    took: Option<Duration>,
    columns: Option<usize>,
    colourful: bool,
) -> String {
    match result {
        ServerResult::Ready(counts) => {
            let took = took.map(|took| format!(", {}", duration(took))).unwrap_or_default();
            format!("  {} {server}  {}{took}\n", paint_if(colourful, "✓", "32"), counted(counts))
        }
        ServerResult::Failed(reason) => {
            let (what, cure) = split(&clean(reason));
            marked_lines(("✗", "31"), server, &[Some(what), cure], (columns, colourful))
        }
        ServerResult::LoginNeeded(reason) => {
            let texts = login_texts(&clean(reason));
            marked_lines(("○", "33"), server, &texts, (columns, colourful))
        }
    }
}

/// Returns the command of a needed login and then its cause, or the cause and its cure if no command helps. The first
/// login has no cause to show.
fn login_texts(reason: &str) -> [Option<String>; 2] {
    let (what, cure) = split(reason);
    let Some(command) = cure.as_deref().and_then(|cure| cure.strip_prefix("run: ")) else { return [Some(what), cure] };
    let cause = what.strip_prefix("it needs a login: ").unwrap_or(&what);
    let is_known = cause == LoginNeed::Never.to_string() || cause == "it needs a login";
    [Some(format!("needs a login: {command}")), (!is_known).then(|| cause.to_owned())]
}

/// Returns the texts below each other, the first one behind a coloured mark and the server.
fn marked_lines(
    (mark, colour): (&str, &str),
    server: &str,
    texts: &[Option<String>],
    (columns, colourful): (Option<usize>, bool),
) -> String {
    let before = format!("  {mark} {server}  ");
    // `wrap` indents by this width.
    let indent = " ".repeat(before.width_cjk());
    let starts = std::iter::once(before.as_str()).chain(std::iter::repeat(indent.as_str()));
    let lines: String = starts.zip(texts.iter().flatten()).map(|(start, text)| wrap(start, text, columns)).collect();
    match colourful {
        true => lines.replacen(mark, &paint_if(true, mark, colour), 1),
        false => lines,
    }
}

fn counted(counts: &[usize; 4]) -> String {
    let some = counts.iter().zip(List::ALL.map(List::noun)).filter(|(count, _)| **count > 0);
    let texts: Vec<_> = some.map(|(count, noun)| plural(*count, noun)).collect();
    if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
}

/// Returns the summary of all servers. The failed ones are last. A server without a result still starts.
fn summary(results: &[(String, Option<ServerResult>)], colourful: bool) -> String {
    if results.is_empty() {
        return "  no server yet: goblin add, goblin import\n".to_owned();
    }
    let mut counts = [0; 4];
    let (mut ready, mut starting, mut failed, mut without_login) = (0, Vec::new(), Vec::new(), Vec::new());
    for (server, result) in results {
        match result {
            Some(ServerResult::Ready(of_server)) => {
                ready += 1;
                counts.iter_mut().zip(of_server).for_each(|(sum, count)| *sum += count);
            }
            Some(ServerResult::Failed(_)) => failed.push(server.as_str()),
            Some(ServerResult::LoginNeeded(_)) => without_login.push(server.as_str()),
            None => starting.push(server.as_str()),
        }
    }
    let mut text = format!("\n  {ready} of {} ready: {}\n", plural(results.len(), "server"), counted(&counts));
    if !starting.is_empty() {
        let _ = writeln!(text, "  {} still starting: {}", starting.len(), starting.join(", "));
    }
    if !without_login.is_empty() {
        let verb = if without_login.len() == 1 { "needs" } else { "need" };
        let line = format!("{} {verb} a login: {}", without_login.len(), without_login.join(", "));
        let _ = writeln!(text, "  {}", paint_if(colourful, &line, "33"));
    }
    if !failed.is_empty() {
        let line = format!("{} failed: {}", failed.len(), failed.join(", "));
        let _ = writeln!(text, "  {}", paint_if(colourful, &line, "33"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use2_a_result_line_has_the_counts_and_the_time_or_the_reason_and_the_cure() {
        let ready = ServerResult::Ready([35, 1, 0, 0]);
        let line = result_lines("notes", &ready, Some(Duration::from_millis(412)), Some(80), false);
        assert_eq!(line, "  ✓ notes  35 tools, 1 prompt, 412 ms\n");
        let nothing = result_lines("notes", &ServerResult::Ready([0; 4]), None, None, false);
        assert_eq!(nothing, "  ✓ notes  nothing\n");
        let failed = ServerResult::Failed("no\u{1b}[2J answer (is it up?)".to_owned());
        let lines = result_lines("web", &failed, None, Some(80), false);
        assert!(!lines.contains('\u{1b}'), "{lines:?}");
        assert!(lines.starts_with("  ✗ web  no") && lines.ends_with("\n         is it up?\n"), "{lines:?}");
    }

    #[test]
    fn oauth2_the_line_of_a_server_without_a_login_has_the_command() {
        let line =
            |reason: &str| result_lines("linear", &ServerResult::LoginNeeded(reason.to_owned()), None, Some(80), false);
        let first = line("it needs a login: nobody has logged in (run: goblin login linear)");
        assert_eq!(first, "  ○ linear  needs a login: goblin login linear\n");
        let again = line("its login lacks a permission (run: goblin login linear)");
        assert!(again.starts_with("  ○ linear  needs a login: goblin login linear\n"), "{again}");
        assert!(again.ends_with("  its login lacks a permission\n"), "{again}");
        let automatic = line("the gateway cannot log in: the secret is wrong (correct clientSecret)");
        assert!(automatic.starts_with("  ○ linear  the gateway cannot log in: the secret is wrong\n"), "{automatic}");
        assert!(automatic.ends_with("  correct clientSecret\n"), "{automatic}");
    }

    #[test]
    fn oauth2_the_summary_counts_servers_without_a_login_on_their_own() {
        let needed = |name: &str| (name.to_owned(), Some(ServerResult::LoginNeeded(String::new())));
        let failed = ("c".to_owned(), Some(ServerResult::Failed("gone".to_owned())));
        let ready = ("d".to_owned(), Some(ServerResult::Ready([1, 0, 0, 0])));
        let text = summary(&[needed("a"), needed("b"), failed, ready], false);
        assert_eq!(text, "\n  1 of 4 servers ready: 1 tool\n  2 need a login: a, b\n  1 failed: c\n");
        assert!(summary(&[needed("a")], false).ends_with("\n  1 needs a login: a\n"));
    }

    #[test]
    fn use15_labels_with_wide_characters_align() {
        assert_eq!([padded("日本", 5), padded("abcde", 5), padded("abcdef", 5)], ["日本 ", "abcde", "abcdef"]);
        let failed = ServerResult::Failed("gone (is it up?)".to_owned());
        let lines = result_lines("日本", &failed, None, None, false);
        assert!(lines.ends_with(&format!("\n{}is it up?\n", " ".repeat(10))), "{lines:?}");
    }

    #[test]
    fn use2_the_failed_servers_end_the_summary() {
        let result = |server: &str, result: Option<ServerResult>| (server.to_owned(), result);
        let results = [
            result("a", Some(ServerResult::Ready([2, 1, 0, 0]))),
            result("b", Some(ServerResult::Failed("gone".to_owned()))),
            result("c", None),
            result("d", Some(ServerResult::Ready([1, 0, 0, 4]))),
        ];
        let expected =
            "\n  2 of 4 servers ready: 3 tools, 1 prompt, 4 templates\n  1 still starting: c\n  1 failed: b\n";
        assert_eq!(summary(&results, false), expected);
        assert!(summary(&[], false).contains("goblin add"));
    }
}
