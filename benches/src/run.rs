//! One run: a separate target set for each scenario, interleaved rounds for each number of sessions, and the report at the
//! end.
//!
//! The order of the ways rotates from round to round. A drift of the machine and the state of its caches thus affect
//! all of them alike.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::load::Load;
use crate::report::{Measured, Report, Row, Sample};
use crate::scenario::Scenario;
use crate::workspace::{TargetSet, Workspace};
use crate::{context, fan, ledger, memory, procfs, refresh, search, start};

/// The file descriptors of a process that are not sessions.
const OTHER_DESCRIPTORS: usize = 500;
/// The number of sessions that the default range of local ports allows.
const MAX_PORTS: usize = 28_000;

#[derive(clap::Args)]
pub struct Options {
    /// The goblin binary, a release build; without it only the yardsticks are measured
    #[arg(long)]
    goblin: Option<PathBuf>,
    /// Interleaved rounds; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of one measurement
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Numbers of concurrent sessions
    #[arg(long, value_delimiter = ',', default_values_t = [16, 64], value_parser = clap::value_parser!(u16).range(1..))]
    sessions: Vec<u16>,
    /// Idle sessions with an open stream in the memory scenario
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..))]
    memory_sessions: u16,
    /// Sessions in the fan-out
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u16).range(1..))]
    fan_out_sessions: u16,
    /// Parts of the run; all when absent
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Also write every sample to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The parts that `--only` selects from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Load(Scenario),
    Memory,
    Start,
    Refresh,
    FanOut,
    Subscriptions,
    Search,
    Context,
}

impl Part {
    const ALL: &[Self] = {
        let [first, second, third, fourth, fifth] = Scenario::ALL;
        let (first, second) = (Self::Load(first), Self::Load(second));
        let (third, fourth, fifth) = (Self::Load(third), Self::Load(fourth), Self::Load(fifth));
        &[
            first,
            second,
            third,
            fourth,
            fifth,
            Self::Memory,
            Self::Start,
            Self::Refresh,
            Self::FanOut,
            Self::Subscriptions,
            Self::Search,
            Self::Context,
        ]
    };
}

impl ValueEnum for Part {
    fn value_variants<'a>() -> &'a [Self] {
        Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::Load(scenario) => scenario.name(),
            Self::Memory => "memory",
            Self::Start => "start",
            Self::Refresh => "refresh",
            Self::FanOut => "fan-out",
            Self::Subscriptions => "subscriptions",
            Self::Search => "search",
            Self::Context => "context",
        }))
    }
}

/// Runs the selected measurements, and writes the samples if a file is given.
pub async fn run(options: &Options) -> Result<Report> {
    let most = raise_file_limit();
    let machine = procfs::machine();
    let goblin = options
        .goblin
        .as_ref()
        .map(|path| path.canonicalize().with_context(|| format!("cannot find {}", path.display())));
    let duration = Duration::try_from_secs_f64(options.seconds).context("--seconds is not a valid duration")?;
    let workspace = Workspace::new(goblin.transpose()?)?;
    let mut measured = Measured::default();
    for part in Part::ALL.iter().filter(|part| options.only.is_empty() || options.only.contains(part)) {
        match *part {
            Part::Load(scenario) => {
                let target_set = workspace.target_set(scenario).await?;
                measured.rows.extend(measure(&target_set, scenario, options, duration).await?);
            }
            Part::Memory => measured.memory = memory::measure(&workspace, options.memory_sessions.into()).await?,
            Part::Start => measured.starts = start::measure(&workspace, options.rounds.into()).await?,
            Part::Refresh => measured.refresh = refresh::measure(&workspace).await?,
            Part::FanOut => {
                let sessions = usize::from(options.fan_out_sessions);
                ensure!(sessions <= most, "{sessions} sessions do not fit: descriptors and ports allow {most}");
                measured.fan_out = fan::measure(&workspace, sessions, options.rounds.into()).await?;
            }
            Part::Subscriptions => measured.subscriptions = Some(ledger::measure()?),
            Part::Search => measured.searches = search::measure(options.rounds.into()),
            Part::Context => measured.context = context::measure(&workspace).await?,
        }
    }
    let report = Report::new(machine, options.rounds.into(), options.seconds, measured);
    if let Some(file) = &options.json {
        let json = serde_json::to_vec_pretty(&report)?;
        fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(report)
}

async fn measure(
    target_set: &TargetSet,
    scenario: Scenario,
    options: &Options,
    duration: Duration,
) -> Result<Vec<Row>> {
    let mut loads = Vec::new();
    for &target in &target_set.targets {
        loads.push(Load::learn(target, scenario).await?);
    }
    let mut rows = Vec::new();
    for sessions in options.sessions.iter().map(|&sessions| usize::from(sessions)) {
        let mut samples: Vec<Vec<Sample>> = loads.iter().map(|_| Vec::new()).collect();
        for round in 0..usize::from(options.rounds) {
            for turn in 0..loads.len() {
                let index = (round + turn) % loads.len();
                let sample = loads[index].measure(sessions, duration).await?;
                samples[index].push(sample);
            }
            eprintln!("{}, {sessions} sessions: round {} of {}", scenario.title(), round + 1, options.rounds);
        }
        let of_load = loads.iter().zip(samples);
        rows.extend(of_load.map(|(load, samples)| Row::new(scenario, sessions, load.through(), samples)));
    }
    Ok(rows)
}

/// Raises the limit of open files and returns the number of sessions that fit. A session is a socket in this process
/// and one in Goblin, which inherits the limit. The usual soft limit of 1,024 is too low.
fn raise_file_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the system refuses, the old limit stays, and a run that needs more fails when it connects.
    let _ = setrlimit(Resource::Nofile, limit);
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(OTHER_DESCRIPTORS).min(MAX_PORTS)
}
