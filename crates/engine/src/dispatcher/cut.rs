//! Logs the calls that a shutdown interrupts, so that an operator can find out which ones were lost.

use std::cmp::Reverse;

use goblin_telemetry::{Event, Observe};
use goblin_wire::json;

use crate::client::call::Call;
use crate::dispatcher::Dispatcher;

/// The number of calls that are logged one by one. The others are only counted.
pub(crate) const MAX_LOGGED_CALLS: usize = 20;
/// The length at which names are cut, because clients choose them.
const MAX_NAME: usize = 80;

impl Dispatcher {
    /// Logs the calls that are still open, the oldest first.
    pub(crate) fn log_cut_calls(&self, observe: &Observe) {
        let mut open = self.sessions.list_open_calls();
        // The cached key reads each age once. Ages grow during the sort, and a changing order could make the sort
        // panic.
        open.sort_by_cached_key(|call| Reverse(call.age()));
        for call in open.iter().take(MAX_LOGGED_CALLS) {
            let server = self.router.server_of(call);
            observe.emit(&Event::CallCut {
                server: server.as_ref().map_or("unknown", |server| server.as_str()),
                method: call.request.method.as_str(),
                name: &short_name(call),
                session: &call.caller.session.map_or_else(|| "none".to_owned(), |session| session.short()),
                age: call.age().unwrap_or_default(),
            });
        }
        match open.len() {
            0 => observe.emit(&Event::ConnectionsCut),
            count => observe.emit(&Event::CallsCut { count, unnamed: count.saturating_sub(MAX_LOGGED_CALLS) }),
        }
    }
}

/// Returns the name of the tool or prompt, or the URI, from the parameters of a call. Empty if they have none.
fn short_name(call: &Call) -> String {
    let params = &call.request.params;
    let text = call.request.raw.as_str();
    let name = params.name.or(params.uri).and_then(|at| json::string(text, at)).unwrap_or_default();
    let mut short: String = name.chars().take(MAX_NAME).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_name_of_a_call_is_its_tool_name() {
        assert_eq!(short_name(&Call::example()), "t");
    }
}
