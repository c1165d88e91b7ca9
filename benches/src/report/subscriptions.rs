//! The tables and bars of the cost of subscriptions.
//!
//! One part covers the fan-out of updates, the other the memory and the end of subscriptions. The functions here only
//! format and compare.

use super::{Bar, KIB, MIB, line, median, time};
use crate::fan::{Fan, FanOut};
use crate::ledger::{Kept, Ledger};
use crate::scenario::Through;

const FAN_LIMIT: f64 = 1.5;
const KEPT_LIMIT: usize = 300;
/// The limit for the growth of the cost of an end with a hundred times as many other subscriptions. A scan of all of
/// them costs a hundred times as much; cache misses cost a little more.
const END_LIMIT: f64 = 5.0;

pub fn fan_table(fan_out: &FanOut) -> String {
    let FanOut { sessions, unread, updates, .. } = fan_out;
    let mut text = format!("\n| {updates} updates to {sessions} sessions, {unread} of which do not read | ");
    text += "per second | CPU each | CPU / yardstick | memory grew by | each session |\n|---|--:|--:|--:|--:|--:|\n";
    let yardstick = cpu_each(fan_out, &fan_out.bare);
    for (through, fans) in [(Through::Bare, &fan_out.bare), (Through::Goblin, &fan_out.goblin)] {
        let of = |part: fn(&Fan) -> f64| median(fans.iter().map(part).collect());
        let (title, cpu) = (through.title(), cpu_each(fan_out, fans));
        let rate = fan_out.deliveries() as f64 / of(|fan| fan.elapsed.as_secs_f64());
        let (grown, each) = (of(|fan| fan.grown as f64), time(cpu));
        let (all, one) = (grown / MIB as f64, grown / *sessions as f64 / KIB as f64);
        line(
            &mut text,
            format_args!("| {title} | {rate:.0} | {each} | {:.2} | {all:.1} MiB | {one:.1} KiB |", cpu / yardstick),
        );
    }
    text
}

/// Compares the CPU of both servers. The ratio of the medians decides.
pub fn fan_bar(fan_out: &FanOut) -> Bar {
    let ratio = cpu_each(fan_out, &fan_out.goblin) / cpu_each(fan_out, &fan_out.bare);
    let of_rounds =
        fan_out.goblin.iter().zip(&fan_out.bare).map(|(goblin, bare)| goblin.cpu.div_duration_f64(bare.cpu));
    let (least, most) = of_rounds.fold((f64::MAX, 0.0_f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
    Bar {
        promise: format!("CPU of fan-out against {}, {} sessions", Through::Bare.title(), fan_out.sessions),
        limit: format!("{FAN_LIMIT:.1}"),
        measured: format!("{ratio:.2} ({least:.2} to {most:.2})"),
        kept: ratio <= FAN_LIMIT,
    }
}

/// Returns the microseconds of CPU per update and session.
fn cpu_each(fan_out: &FanOut, fans: &[Fan]) -> f64 {
    let all = median(fans.iter().map(|fan| fan.cpu.as_secs_f64()).collect());
    all * 1e6 / fan_out.deliveries() as f64
}

pub fn ledger_table(ledger: &Ledger) -> String {
    let mut text = "\n| subscriptions | clients | resources | heap | each |\n|--:|--:|--:|--:|--:|\n".to_owned();
    for kept in &ledger.memory {
        let Kept { clients, uris, subscriptions, bytes } = kept;
        let (all, each) = (*bytes as f64 / MIB as f64, each(kept));
        line(&mut text, format_args!("| {subscriptions} | {clients} | {uris} | {all:.1} MiB | {each} B |"));
    }
    text += "\n| end of a client with | among | CPU each |\n|---|--:|--:|\n";
    for end in &ledger.ends {
        let cpu = time(end.nanoseconds as f64 / 1e3);
        line(&mut text, format_args!("| {} subscriptions | {} others | {cpu} |", end.own, end.others));
    }
    text
}

pub fn ledger_bars(ledger: &Ledger) -> Vec<Bar> {
    let kept = ledger.memory.iter().filter(|kept| kept.uris < kept.subscriptions).map(|kept| Bar {
        promise: format!("heap of a subscription, {} resources shared by {} clients", kept.uris, kept.clients),
        limit: format!("{KEPT_LIMIT} B"),
        measured: format!("{} B", each(kept)),
        kept: each(kept) < KEPT_LIMIT,
    });
    let end = ledger.ends.first().zip(ledger.ends.last()).map(|(few, many)| {
        let ratio = many.nanoseconds as f64 / few.nanoseconds as f64;
        Bar {
            promise: format!("CPU of a client's end, {} other subscriptions against {}", many.others, few.others),
            limit: format!("{END_LIMIT:.1}"),
            measured: format!("{ratio:.2}"),
            kept: ratio <= END_LIMIT,
        }
    });
    kept.chain(end).collect()
}

fn each(kept: &Kept) -> usize {
    kept.bytes / kept.subscriptions
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{fan_bar, fan_table, ledger_bars};
    use crate::fan::{Fan, FanOut};
    use crate::ledger::{End, Kept, Ledger};

    fn fan_out(goblin: [u64; 3]) -> FanOut {
        let fan = |millis| Fan {
            cpu: Duration::from_millis(millis),
            elapsed: Duration::from_secs(1),
            bytes: 1,
            grown: 2 << 20,
        };
        let (bare, goblin) = ([100, 200, 300].map(fan).to_vec(), goblin.map(fan).to_vec());
        FanOut { sessions: 1000, unread: 10, updates: 100, bare, goblin }
    }

    #[test]
    fn fan_out_is_compared_with_its_bar() {
        let kept = fan_bar(&fan_out([300, 300, 300]));
        assert!(kept.kept && kept.measured == "1.50 (1.00 to 3.00)", "{}", kept.measured);
        assert!(!fan_bar(&fan_out([301, 301, 301])).kept);
        let text = fan_table(&fan_out([300, 300, 300]));
        assert!(text.contains("| Goblin | 100000 | 3.0 us | 1.50 | 2.0 MiB | 2.0 KiB |"), "{text}");
    }

    fn check(bytes: usize, nanoseconds: u64, kept: [bool; 2]) {
        let memory = |uris| Kept { clients: 10, uris, subscriptions: 100, bytes };
        let end = |others, nanoseconds| End { own: 10, others, nanoseconds };
        let ledger = Ledger { memory: vec![memory(10), memory(100)], ends: vec![end(1, 100), end(100, nanoseconds)] };
        let bars: Vec<_> = ledger_bars(&ledger).iter().map(|bar| bar.kept).collect();
        assert_eq!(bars, kept, "{bytes} {nanoseconds}");
    }

    #[test]
    fn the_cost_of_a_subscription_is_compared_with_its_bars() {
        check(29_999, 500, [true, true]);
        check(30_000, 501, [false, false]);
    }
}
