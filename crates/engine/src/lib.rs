//! The running gateway.
//!
//! The modules in import order: each one uses only itself and the modules above it, and `admin` and `front` use each
//! other. A test keeps that order.

mod client;
pub mod upstream;

pub mod catalog_store;
mod meta;
mod router;

mod dispatcher;

pub mod admin;
pub mod front;

pub mod app;
