//! The clients of the gateway: their identity, their sessions, their pending calls and their streams.

pub mod caller;
pub mod lane;
pub mod mailbox;
pub mod session;
pub mod subscriptions;
