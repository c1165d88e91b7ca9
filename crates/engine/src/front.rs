//! The sides that clients see: Streamable HTTP, HTTP+SSE and stdio. All decode once, bounded, and hand messages to the desk.

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

/// At least this long between two `list_changed` of the same client: a storm is told twice a second at most.
pub const NOTIFY_INTERVAL: Duration = Duration::from_millis(500);
