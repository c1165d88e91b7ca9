//! The admin API: the types of its answers, the table of its routes, and its OpenAPI document.

pub mod api;
pub mod login;
pub mod openapi;
pub mod routes;
