//! The transports for clients: Streamable HTTP, HTTP+SSE and stdio. Each decodes a message once, enforces its size
//! limit and passes it to the [`Dispatcher`](crate::dispatcher::Dispatcher).

pub(crate) mod activity;
pub(crate) mod batch;
pub mod body;
pub(crate) mod duplex;
pub(crate) mod gate;
pub(crate) mod http;
pub(crate) mod modern;
pub(crate) mod outbound;
pub(crate) mod peer_timeout;
pub(crate) mod request;
pub(crate) mod sse;
pub(crate) mod stdio;
pub(crate) mod stream;
pub(crate) mod via;

use std::time::Duration;

/// The shortest time between two `list_changed` notifications to one client. It limits a burst to two per second.
pub(crate) const NOTIFY_INTERVAL: Duration = Duration::from_millis(500);
