//! The running gateway.
//!
//! The modules in import order: each one uses only itself and the modules above it, and `admin` and `front` use each
//! other. A test keeps that order.

pub mod client;
pub mod upstream;

pub mod directory;
pub mod meta;
pub mod router;

pub mod session;

pub mod admin;
pub mod front;

pub mod app;
