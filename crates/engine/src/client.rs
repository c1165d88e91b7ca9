//! The clients of the gateway: their identity, their pending calls, and the state that outlives a stream.

pub(crate) mod call;
pub(crate) mod caller;
pub(crate) mod input_request;
pub(crate) mod mailbox;
pub(crate) mod pending;
pub(crate) mod subscriptions;
