//! The transports for clients: Streamable HTTP, HTTP+SSE and stdio. Each decodes a message once, enforces its size
//! limit and passes it to the [`Dispatcher`](crate::session::desk::Dispatcher).

pub(crate) mod attention;
pub(crate) mod batch;
pub mod body;
pub(crate) mod dialogue;
pub(crate) mod gate;
pub(crate) mod guest;
pub(crate) mod http;
pub(crate) mod io;
pub(crate) mod modern;
pub(crate) mod outlet;
pub(crate) mod request;
pub(crate) mod sse;
pub(crate) mod stdio;
pub(crate) mod stream;
pub(crate) mod visit;

use std::time::Duration;

/// The shortest time between two `list_changed` notifications to one client. It limits a burst to two per second.
pub(crate) const NOTIFY_INTERVAL: Duration = Duration::from_millis(500);
