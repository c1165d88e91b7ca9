//! The running gateway.
//!
//! The modules in import order: each one uses only itself and the modules above it, and `admin` and `front` use each
//! other. A test keeps that order.

mod client;
pub mod upstream;

pub mod directory;
mod meta;
mod router;

mod session;

pub mod admin;
pub mod front;

pub mod app;
