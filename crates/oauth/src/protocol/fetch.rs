//! Requests to URLs that a server names.
use crate::LoginTarget;
use crate::error::LoginError;
use std::net::IpAddr;

/// Fetches the URLs that one server names: at most 1 MiB, within 10 s (60 s for tokens), to addresses that are not more private than the server's own.
pub(crate) struct Fetcher;

impl Fetcher {
    /// `peer` is the address of a connection to the server, if there was one without a proxy.
    pub(crate) fn new(_target: &LoginTarget, _peer: Option<IpAddr>) -> Fetcher {
        todo!()
    }
}
