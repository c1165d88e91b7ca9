//! Requests to authorization servers and what their answers mean. Has no state: `login` keeps that.

pub(crate) mod assertion;
pub(crate) mod authorize;
pub(crate) mod browser;
pub(crate) mod challenge;
pub(crate) mod client;
pub(crate) mod device;
pub(crate) mod discovery;
pub(crate) mod fetch;
pub(crate) mod form;
pub(crate) mod listener;
pub(crate) mod metadata;
pub(crate) mod probe;
pub(crate) mod token;
pub(crate) mod url;

#[cfg(test)]
mod tests;
