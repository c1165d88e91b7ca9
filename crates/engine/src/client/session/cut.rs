//! Calls that a shutdown cuts, by name: whoever waited for one can be told what became of it.

use std::cmp::Reverse;

use crate::client::lane::Call;
use goblin_telemetry::{Event, Observe};
use goblin_wire::json;
use crate::client::session::desk::Desk;

/// How many are named; the rest is counted.
pub const MOST_NAMED: usize = 20;
/// Names are cut here: they are the client's words.
const LONGEST_NAME: usize = 80;

impl Desk {
    /// Names what is still open, oldest first.
    pub fn tell_cut(&self, observe: &Observe) {
        let mut open = self.sessions.each_open_call();
        // Each age is asked for once: it grows while we sort, and an order that changes is none.
        open.sort_by_cached_key(|(_, call)| Reverse(call.age()));
        for (session, call) in open.iter().take(MOST_NAMED) {
            let server = self.router.server_of(call);
            observe.emit(&Event::CallCut {
                server: server.as_ref().map_or("unknown", |server| server.as_str()),
                method: call.request.method.as_str(),
                name: &short_name(call),
                session: &session.map_or_else(|| "none".to_owned(), |session| session.short()),
                age: call.age().unwrap_or_default(),
            });
        }
        match open.len() {
            0 => observe.emit(&Event::ConnectionsCut),
            count => observe.emit(&Event::CallsCut { count, unnamed: count.saturating_sub(MOST_NAMED) }),
        }
    }
}

/// The tool, prompt or resource that a call is about; nothing where its parameters name none.
fn short_name(call: &Call) -> String {
    let params = &call.request.params;
    let text = call.request.raw.as_str();
    let name = params.name.or(params.uri).and_then(|at| json::string(text, at)).unwrap_or_default();
    let mut short: String = name.chars().take(LONGEST_NAME).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_by_what_it_asks_for() {
        assert_eq!(short_name(&Call::example()), "t");
    }
}
