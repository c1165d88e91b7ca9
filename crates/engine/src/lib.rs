//! The running gateway.
//!
//! The modules in reading order. Each module uses only those above it; a test keeps that true.

pub mod client;
pub mod upstream;

pub mod directory;
pub mod meta;
pub mod router;

pub mod admin;
pub mod front;

pub mod app;
