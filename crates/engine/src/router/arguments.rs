//! Checks a tool's arguments against its input schema, for backends with `validate` set (ROUTE-5).
//!
//! By default only the backend validates arguments. The gateway rejects a call only if its arguments are certainly
//! wrong. A call passes unvalidated if it exceeds the limits of [`schema`](goblin_catalog::schema) or the validation
//! times out. The backend validates again, and a slow validation must not delay other calls.

use std::sync::Arc;
use std::time::Duration;

use goblin_catalog::schema::{InputSchema, MAX_SCHEMA_NODES, ValidationSkip};
use goblin_telemetry::{Event, worker};
use goblin_wire::json::quote;
use goblin_wire::{Limit, Request};

use crate::catalog_store::Catalog;
use crate::client::call::Call;
use crate::router::Router;

/// The longest time that a call waits for the check, including the wait for a free thread.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(2);

impl Router {
    /// Returns a tool error if the arguments do not match the schema. An agent can read it and correct its call.
    pub(super) async fn reject_arguments(
        &self,
        catalog: &Arc<Catalog>,
        tool: usize,
        call: &Arc<Call>,
    ) -> Option<String> {
        let entry = &catalog.tools.entries[tool];
        let outcome = match entry.schema.get() {
            Some(schema) if is_quick(schema, &call.request) => validate(schema, &call.request),
            _ => self.validate_offloaded(catalog, tool, call).await,
        };
        match outcome {
            Ok(problem) => {
                let text = quote(&format!("invalid arguments for {}: {}", entry.exposed, problem?));
                return Some(format!(r#"{{"content":[{{"type":"text","text":{text}}}],"isError":true}}"#));
            }
            Err(ValidationSkip::Unusable) => {}
            Err(ValidationSkip::TooMuchWork) => self.observe.limit_hit(Limit::ValidationWork),
            Err(ValidationSkip::TooLarge) => self.observe.limit_hit(Limit::SchemaNodes),
        }
        None
    }

    /// Checks the arguments with [`worker::compute`], outside the async worker threads. The first call of a tool also
    /// compiles its schema there.
    async fn validate_offloaded(
        &self,
        catalog: &Arc<Catalog>,
        tool: usize,
        call: &Arc<Call>,
    ) -> Result<Option<String>, ValidationSkip> {
        let (catalog, call, observe) = (Arc::clone(catalog), Arc::clone(call), Arc::clone(&self.observe));
        let work = worker::compute(move || {
            let entry = &catalog.tools.entries[tool];
            let compile = || {
                let schema = InputSchema::compile(&entry.definition);
                if matches!(schema, Err(ValidationSkip::TooLarge)) {
                    let server = catalog.source(entry.source).backend.id.as_str();
                    let reason = format!("the input schema expands to more than {MAX_SCHEMA_NODES} nodes");
                    observe.emit(&Event::SchemaTooLarge { server, tool: &entry.native, reason: &reason });
                }
                schema
            };
            validate(entry.schema.get_or_init(compile), &call.request)
        });
        // The result is missing if the check is late or the gateway shuts down.
        let outcome = tokio::time::timeout(VALIDATION_TIMEOUT, work).await.ok().flatten();
        outcome.unwrap_or(Err(ValidationSkip::TooMuchWork))
    }
}

/// Reports whether the check is so cheap that it can run on the worker thread.
fn is_quick(schema: &Result<InputSchema, ValidationSkip>, request: &Request) -> bool {
    schema.as_ref().map_or(true, |schema| schema.is_quick(arguments(request).len()))
}

/// Returns the first problem of the arguments, or `None` if they match the schema.
fn validate(schema: &Result<InputSchema, ValidationSkip>, request: &Request) -> Result<Option<String>, ValidationSkip> {
    schema.as_ref().map_err(|skip| *skip)?.problem(arguments(request))
}

fn arguments(request: &Request) -> &str {
    request.params.arguments.map_or("{}", |at| at.get(request.raw.as_str()))
}
