//! Turns samples into medians, medians into bars, and both into Markdown. These functions are pure.

mod context;
mod search;
mod subscriptions;

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::context::Context;
use crate::fan::FanOut;
use crate::ledger::Ledger;
use crate::memory::Footprint;
use crate::procfs::Memory;
use crate::refresh::RefreshCost;
use crate::scenario::{Scenario, Through};
use crate::search::Search;
use crate::start::{Start, Starts};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
/// The largest part of one core that refreshes may need, in percent.
const MAX_REFRESH_PERCENT: f64 = 0.5;
const SETUP_BAR: &str = "for information; the bar is against the bare proxy";

/// The result of one measurement, or the medians of several.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    pub operations: usize,
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub cpu_us: f64,
}

/// The measurements of one way under one load, in the order of the rounds.
#[derive(Serialize)]
pub struct Row {
    pub scenario: Scenario,
    pub sessions: usize,
    pub through: Through,
    pub median: Sample,
    pub rounds: Vec<Sample>,
}

/// The results of a run. Parts that were not selected are empty.
#[derive(Default, Serialize)]
pub struct Measured {
    pub rows: Vec<Row>,
    pub memory: Option<Footprint>,
    pub starts: Vec<Starts>,
    pub refresh: Option<RefreshCost>,
    pub fan_out: Option<FanOut>,
    pub subscriptions: Option<Ledger>,
    pub searches: Vec<Search>,
    pub context: Option<Context>,
}

#[derive(Serialize)]
pub struct Report {
    pub machine: String,
    pub rounds: usize,
    pub seconds: f64,
    pub measured: Measured,
    pub bars: Vec<Bar>,
}

/// A promise, its limit, the measured value, and whether the promise was kept.
#[derive(Serialize)]
pub struct Bar {
    pub promise: String,
    pub limit: String,
    pub measured: String,
    pub kept: bool,
}

impl Sample {
    pub fn new(mut latencies: Vec<u64>, elapsed: Duration, cpu: Duration) -> Self {
        latencies.sort_unstable();
        let operations = latencies.len();
        Self {
            operations,
            per_second: operations as f64 / elapsed.as_secs_f64(),
            p50_us: percentile(&latencies, 50) as f64 / 1e3,
            p99_us: percentile(&latencies, 99) as f64 / 1e3,
            cpu_us: cpu.as_secs_f64() * 1e6 / operations.max(1) as f64,
        }
    }
}

impl Row {
    pub fn new(scenario: Scenario, sessions: usize, through: Through, rounds: Vec<Sample>) -> Self {
        let of = |part: fn(&Sample) -> f64| median(rounds.iter().map(part).collect());
        let median = Sample {
            operations: of(|sample| sample.operations as f64) as usize,
            per_second: of(|sample| sample.per_second),
            p50_us: of(|sample| sample.p50_us),
            p99_us: of(|sample| sample.p99_us),
            cpu_us: of(|sample| sample.cpu_us),
        };
        Self { scenario, sessions, through, median, rounds }
    }
}

impl Report {
    pub fn new(machine: String, rounds: usize, seconds: f64, measured: Measured) -> Self {
        let mut bars = cpu_bars(&measured.rows);
        bars.extend(measured.memory.iter().flat_map(memory_bars));
        bars.extend(measured.refresh.iter().map(refresh_bar));
        bars.extend(measured.fan_out.iter().map(subscriptions::fan_bar));
        bars.extend(measured.subscriptions.iter().flat_map(subscriptions::ledger_bars));
        bars.extend(search::bars(&measured.searches));
        Self { machine, rounds, seconds, measured, bars }
    }

    pub fn every_bar_kept(&self) -> bool {
        self.bars.iter().all(|bar| bar.kept)
    }

    pub fn markdown(&self) -> String {
        let mut text =
            format!("{}. Medians of {} interleaved rounds of {} s each.\n", self.machine, self.rounds, self.seconds);
        if !self.measured.rows.is_empty() {
            text += "\n| | sessions | through | per second | p50 | p99 | CPU each | CPU / yardstick |\n";
            text += "|---|--:|---|--:|--:|--:|--:|--:|\n";
        }
        for row in &self.measured.rows {
            let Sample { per_second, p50_us, p99_us, cpu_us, .. } = row.median;
            let ratio = self
                .yardstick(row)
                .map_or(String::new(), |yardstick| format!("{:.2}", cpu_us / yardstick.median.cpu_us));
            let (scenario, through) = (row.scenario.title(), row.through.title());
            let (p50, p99, cpu) = (time(p50_us), time(p99_us), time(cpu_us));
            let sessions = row.sessions;
            line(
                &mut text,
                format_args!(
                    "| {scenario} | {sessions} | {through} | {per_second:.0} | {p50} | {p99} | {cpu} | {ratio} |"
                ),
            );
        }
        text.extend(self.measured.memory.iter().map(memory_table));
        text += &start_table(&self.measured.starts);
        text.extend(self.measured.fan_out.iter().map(subscriptions::fan_table));
        text.extend(self.measured.subscriptions.iter().map(subscriptions::ledger_table));
        text += &search::table(&self.measured.searches);
        text.extend(self.measured.context.iter().map(context::tables));
        if !self.bars.is_empty() {
            text += "\n| bar | limit | measured | |\n|---|--:|--:|---|\n";
        }
        for Bar { promise, limit, measured, kept } in &self.bars {
            let verdict = if *kept { "PASS" } else { "FAIL" };
            line(&mut text, format_args!("| {promise} | {limit} | {measured} | {verdict} |"));
        }
        text + &self.setup_note()
    }

    /// Returns the note about session set-up. Set-up has two baselines and one bar: Goblin answers by itself, like the
    /// static server.
    fn setup_note(&self) -> String {
        let rows = &self.measured.rows;
        let goblin = rows.iter().filter(|row| row.scenario == Scenario::Setup && row.through == Through::Goblin);
        let notes = goblin.filter_map(|row| {
            let fixed = find(rows, row.scenario, row.sessions, Through::Static)?;
            let (ratio, sessions) = (row.median.cpu_us / fixed.median.cpu_us, row.sessions);
            Some(format!(
                "\nSession set-up, {sessions} sessions: {ratio:.2} times the CPU of the static server, {SETUP_BAR}.\n"
            ))
        });
        notes.collect()
    }

    fn yardstick(&self, row: &Row) -> Option<&Row> {
        find(&self.measured.rows, row.scenario, row.sessions, yardstick(row.scenario))
    }
}

/// Returns the baseline for the CPU of a scenario.
fn yardstick(scenario: Scenario) -> Through {
    match scenario {
        Scenario::List => Through::Static,
        Scenario::CallSmall | Scenario::CallLarge | Scenario::Setup => Through::Proxy,
        Scenario::Stateless => Through::Goblin,
    }
}

fn cpu_limit(scenario: Scenario) -> f64 {
    match scenario {
        Scenario::CallSmall => 1.3,
        Scenario::CallLarge => 1.5,
        Scenario::List | Scenario::Setup => 1.2,
        Scenario::Stateless => 1.1,
    }
}

/// Compares the CPU of each scenario with its baseline. The ratio of the medians decides. The smallest and largest
/// ratio of a round show its reliability.
fn cpu_bars(rows: &[Row]) -> Vec<Bar> {
    let mut bars = Vec::new();
    let is_ours = |row: &&Row| matches!(row.through, Through::Goblin | Through::Stateless);
    for row in rows.iter().filter(is_ours).filter(|row| row.through != yardstick(row.scenario)) {
        let Some(base) = find(rows, row.scenario, row.sessions, yardstick(row.scenario)) else { continue };
        let ratio = row.median.cpu_us / base.median.cpu_us;
        let of_rounds = row.rounds.iter().zip(&base.rounds).map(|(row, base)| row.cpu_us / base.cpu_us);
        let (least, most) =
            of_rounds.fold((f64::MAX, 0.0_f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
        let limit = cpu_limit(row.scenario);
        bars.push(Bar {
            promise: format!(
                "CPU of {} against {}, {} sessions",
                row.scenario.title(),
                base.through.title(),
                row.sessions
            ),
            limit: format!("{limit:.1}"),
            measured: format!("{ratio:.2} ({least:.2} to {most:.2})"),
            kept: ratio <= limit,
        });
    }
    bars
}

fn memory_bars(memory: &Footprint) -> [Bar; 2] {
    let (idle, session) = (memory.idle.rss, memory.per_session(|memory| memory.rss));
    [
        Bar {
            promise: "resident memory, idle".to_owned(),
            limit: "20 MiB".to_owned(),
            measured: format!("{:.1} MiB", idle as f64 / MIB as f64),
            kept: idle < 20 * MIB,
        },
        Bar {
            promise: "resident memory per idle session with its stream".to_owned(),
            limit: "30 KiB".to_owned(),
            measured: format!("{:.1} KiB", session as f64 / KIB as f64),
            kept: session < 30 * KIB,
        },
    ]
}

fn refresh_bar(cost: &RefreshCost) -> Bar {
    Bar {
        promise: format!("CPU of one core, {}", RefreshCost::title()),
        limit: format!("{MAX_REFRESH_PERCENT} %"),
        measured: format!("{:.2} %", cost.percent()),
        kept: cost.percent() <= MAX_REFRESH_PERCENT,
    }
}

type MemoryPart = fn(&Memory) -> u64;
const MEMORY_PARTS: [(&str, MemoryPart); 3] =
    [("resident", |memory| memory.rss), ("proportional", |memory| memory.pss), ("private", |memory| memory.private)];

fn memory_table(memory: &Footprint) -> String {
    let sessions = memory.sessions;
    let mut text = format!("\n| memory of Goblin | idle | {sessions} sessions | each |\n|---|--:|--:|--:|\n");
    for (name, part) in MEMORY_PARTS {
        let mib = |bytes| bytes as f64 / MIB as f64;
        let (idle, busy) = (mib(part(&memory.idle)), mib(part(&memory.with_sessions)));
        let each = memory.per_session(part) as f64 / KIB as f64;
        line(&mut text, format_args!("| {name} | {idle:.1} MiB | {busy:.1} MiB | {each:.1} KiB |"));
    }
    text
}

fn start_table(starts: &[Starts]) -> String {
    let mut text = String::new();
    if !starts.is_empty() {
        text += "\n| from the start until | it listens | all tools are listed | `/readyz` |\n|---|--:|--:|--:|\n";
    }
    for starts in starts {
        let of = |part: fn(&Start) -> Duration| {
            let mut values: Vec<_> = starts.rounds.iter().map(|start| part(start).as_secs_f64() * 1e3).collect();
            values.sort_unstable_by(f64::total_cmp);
            let (least, most) = (values.first().copied().unwrap_or(0.0), values.last().copied().unwrap_or(0.0));
            format!("{:.0} ms ({least:.0} to {most:.0})", median(values))
        };
        let (title, listening, listed, ready) =
            (starts.title(), of(|start| start.listening), of(|start| start.listed), of(|start| start.ready));
        line(&mut text, format_args!("| {title} | {listening} | {listed} | {ready} |"));
    }
    text
}

fn find(rows: &[Row], scenario: Scenario, sessions: usize, through: Through) -> Option<&Row> {
    rows.iter().find(|row| row.scenario == scenario && row.sessions == sessions && row.through == through)
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a String cannot fail");
}

fn time(microseconds: f64) -> String {
    match microseconds {
        0.0..100.0 => format!("{microseconds:.1} us"),
        0.0..10_000.0 => format!("{microseconds:.0} us"),
        _ => format!("{:.1} ms", microseconds / 1e3),
    }
}

/// Returns the nearest-rank percentile: at least `percent` percent of the values are not above it. The values must be
/// sorted.
fn percentile(values: &[u64], percent: usize) -> u64 {
    let rank = (values.len() * percent).div_ceil(100);
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Measured, Report, Row, Sample, median, percentile};
    use crate::memory::Footprint;
    use crate::procfs::Memory;
    use crate::scenario::{Scenario, Through};
    use crate::start::{Start, Starts};

    fn row(through: Through, cpu_us: &[f64]) -> Row {
        let sample =
            |cpu_us: &f64| Sample { operations: 1, per_second: 1.0, p50_us: 1.0, p99_us: 1.0, cpu_us: *cpu_us };
        Row::new(Scenario::CallSmall, 16, through, cpu_us.iter().map(sample).collect())
    }

    fn report(goblin: &[f64]) -> Report {
        let rows = vec![row(Through::Proxy, &[10.0, 9.0, 11.0]), row(Through::Goblin, goblin)];
        Report::new(String::new(), 3, 2.0, Measured { rows, ..Measured::default() })
    }

    #[test]
    fn a_bar_limits_the_ratio_of_medians_and_permits_equality() {
        let kept = report(&[13.0, 12.0, 90.0]);
        assert!(kept.every_bar_kept());
        assert_eq!(kept.bars[0].measured, "1.30 (1.30 to 8.18)");
        assert!(kept.markdown().contains("| 1.30 |\n"));
        assert!(!report(&[13.1, 13.2, 1.0]).every_bar_kept());
    }

    #[test]
    fn memory_is_compared_with_its_bars() {
        let memory = |rss| Memory { rss, pss: 0, private: 0 };
        let footprint =
            |idle, more| Footprint { idle: memory(idle), with_sessions: memory(idle + more), sessions: 100 };
        let kept = |footprint| {
            let measured = Measured { memory: Some(footprint), ..Measured::default() };
            Report::new(String::new(), 1, 1.0, measured).every_bar_kept()
        };
        assert!(kept(footprint((20 << 20) - 1, 100 * ((30 << 10) - 1))));
        assert!(!kept(footprint(20 << 20, 0)));
        assert!(!kept(footprint(0, 100 * (30 << 10))));
    }

    #[test]
    fn start_times_are_reported_as_medians() {
        let start = |millis| {
            let time = Duration::from_millis(millis);
            Start { listening: time, listed: 2 * time, ready: 3 * time }
        };
        let starts = Starts { silent_servers: 1, rounds: [10, 30, 20].map(start).to_vec() };
        let measured = Measured { starts: vec![starts], ..Measured::default() };
        let text = Report::new(String::new(), 3, 1.0, measured).markdown();
        let row = "| 10 servers, 1 of which never answers | 20 ms (10 to 30) | 40 ms (20 to 60) | 60 ms (30 to 90) |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn a_sample_contains_rates_and_percentiles() {
        let sample = Sample::new(
            (1..=100).rev().map(|number| number * 1000).collect(),
            Duration::from_secs(2),
            Duration::from_millis(1),
        );
        assert_eq!((sample.per_second, sample.p50_us, sample.p99_us, sample.cpu_us), (50.0, 50.0, 99.0, 10.0));
        assert_eq!(percentile(&[], 99), 0);
        assert_eq!(percentile(&[7], 1), 7);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }
}
