//! The transports for clients: Streamable HTTP, HTTP+SSE and stdio. Each decodes a message once, enforces its size
//! limit and passes it to the [`Desk`](crate::session::desk::Desk).

pub mod attention;
pub mod batch;
pub mod body;
pub mod dialogue;
pub mod gate;
pub mod guest;
pub mod http;
pub mod io;
pub mod modern;
pub mod outlet;
pub mod request;
pub mod sse;
pub mod stdio;
pub mod stream;
pub mod visit;

use std::time::Duration;

/// The shortest time between two `list_changed` notifications to one client. It limits a burst to two per second.
pub const NOTIFY_INTERVAL: Duration = Duration::from_millis(500);
