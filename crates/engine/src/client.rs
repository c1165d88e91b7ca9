//! The clients of the gateway: their identity, their pending calls, and the state that outlives a stream.

pub mod caller;
pub mod lane;
pub mod mailbox;
pub mod subscriptions;
