use goblin_catalog::listing::List;
use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, json};

use super::*;
use crate::api::{
    CallList, EntryList, ErrorResponse, EventInfo, LogList, Missed, Ready, Reloaded, ServerList, ServerStatus,
    SessionList, Status, SubscriptionList,
};
use crate::login::{LoginCallback, LoginRequest, LoginStatus, LogoutStatus};
use crate::routes::{Access, ChangeTarget, ROUTES, ReadTarget, Route, RouteAction, ServerAction};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

#[test]
fn the_document_describes_the_routes_and_the_types() {
    let expected = generated();
    if std::env::var_os("GOBLIN_BLESS").is_some() {
        std::fs::write(FILE, format!("{expected:#}\n")).expect("the file is written");
        return;
    }
    assert_eq!(document(), expected, "GOBLIN_BLESS=1 writes the document");
}

/// The name of the token's security scheme.
const TOKEN: &str = "adminToken";

fn generated() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for route in ROUTES {
        let operation = operation(route, &mut generator);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb().as_str().to_ascii_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Goblin, an MCP gateway: the admin API",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": { TOKEN: { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let content = content(route.action, generator);
    let summary = summary(route.action);
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({ "description": summary, "content": content }));
    let error_content = json!({ "application/json": { "schema": generator.subschema_for::<ErrorResponse>() } });
    for (status, reason) in errors(route) {
        let content = if route.access == Access::Probe { &content } else { &error_content };
        responses.insert(status.to_string(), json!({ "description": reason, "content": content }));
    }
    let security = match route.access {
        Access::Probe => json!([]),
        Access::Client => json!([{}, { TOKEN: [] }]),
        Access::Operator => json!([{ TOKEN: [] }]),
    };
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": summary,
        "parameters": parameters(route),
        "responses": responses,
        "security": security,
    });
    if let RouteAction::Change(change) = route.action {
        let (is_required, body) = match change {
            ChangeTarget::Login => (false, answer::<LoginRequest>(generator)),
            ChangeTarget::LoginCallback => (true, answer::<LoginCallback>(generator)),
            ChangeTarget::Configuration | ChangeTarget::Server(_) | ChangeTarget::Logout => {
                let schema = json!({ "type": "object", "additionalProperties": false });
                (false, json!({ "application/json": { "schema": schema } }))
            }
        };
        operation["requestBody"] = json!({ "required": is_required, "content": body });
    }
    operation
}

/// Returns the operation id: `GET /api/servers/{id}` becomes `getApiServersId`.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(route.verb().as_str().to_ascii_lowercase(), |id, word| {
        let (first, rest) = word.split_at(1);
        id + &first.to_ascii_uppercase() + rest
    })
}

fn parameters(route: &Route) -> Vec<Value> {
    let text = json!({ "type": "string" });
    let id =
        json!({ "name": "id", "in": "path", "required": true, "schema": text, "description": "the id of a server" });
    let number = json!({ "type": "integer", "minimum": 0 });
    let query = route.parameters.iter().map(|name| {
        let (schema, about) = match *name {
            "server" => (&text, "the id of a server; selects what belongs to that server"),
            "uri" => (&text, "a URI as clients use it; selects the subscriptions that an update of this URI reaches"),
            "client" => (&text, "the name of a client; selects its calls"),
            "tool" => (&text, "the exposed name of a tool or prompt, or a URI; selects its calls"),
            "outcome" => (&text, "`ok`, `tool_error`, `error` or `cancelled`; `failed` selects both kinds of errors"),
            "level" => (&text, "`error`, `warn`, `info` or `debug`; selects events of this level or a more severe one"),
            "after" => (&number, "a sequence number; selects newer entries"),
            "limit" => (&number, "the largest number of entries; the newest ones are returned"),
            "wait" => (&number, "the number of seconds to wait for a first entry, at most 60"),
            other => panic!("{other} has no description"),
        };
        json!({ "name": name, "in": "query", "required": false, "schema": schema, "description": about })
    });
    route.has_id().then_some(id).into_iter().chain(query).collect()
}

/// Returns the statuses that a route may return besides 200, with their reasons.
fn errors(route: &Route) -> Vec<(u16, &'static str)> {
    let mut errors = Vec::new();
    if route.access == Access::Probe {
        return if route.action == RouteAction::Read(ReadTarget::Ready) {
            vec![(503, "the gateway is not ready")]
        } else {
            errors
        };
    }
    errors.push((400, "the route does not accept the query or the body"));
    errors.push((401, "the token is missing or wrong"));
    errors.push((403, "Host or Origin is not allowed"));
    if route.has_id() || !route.parameters.is_empty() {
        errors.push((404, "the server does not exist"));
    }
    if matches!(route.action, RouteAction::Read(ReadTarget::Events | ReadTarget::Logs | ReadTarget::Calls)) {
        errors.push((503, "the maximum number of readers is reached"));
    }
    if matches!(route.action, RouteAction::Change(_)) {
        errors.push((409, "the state of the server does not allow the change"));
        errors.push((422, "the configuration file or the authorization server does not allow the change"));
        errors.push((503, "the gateway accepts no commands, or too many are waiting"));
    }
    errors
}

fn summary(action: RouteAction) -> &'static str {
    match action {
        RouteAction::Read(ReadTarget::Alive) => "liveness probe: the process answers",
        RouteAction::Read(ReadTarget::Ready) => "readiness probe; 503 if the gateway is not ready",
        RouteAction::Read(ReadTarget::Metrics) => "all metrics, for Prometheus",
        RouteAction::Read(ReadTarget::Status) => "the state of the gateway and its servers",
        RouteAction::Read(ReadTarget::Servers) => "the state of each server, including disabled ones",
        RouteAction::Read(ReadTarget::Server) => "the state of one server",
        RouteAction::Read(ReadTarget::Login) => "the login at one server",
        RouteAction::Read(ReadTarget::Entries(List::Tools)) => "the tools of all servers",
        RouteAction::Read(ReadTarget::Entries(List::Prompts)) => "the prompts of all servers",
        RouteAction::Read(ReadTarget::Entries(List::Resources)) => "the resources of all servers",
        RouteAction::Read(ReadTarget::Entries(List::Templates)) => "the resource templates of all servers",
        RouteAction::Read(ReadTarget::Subscriptions) => "the subscriptions of clients",
        RouteAction::Read(ReadTarget::Sessions) => "the sessions of clients, most recently active first",
        RouteAction::Read(ReadTarget::Events) => "a stream of events; Last-Event-ID resumes it",
        RouteAction::Read(ReadTarget::Logs) => "the recent events, or those of one server with its stderr lines",
        RouteAction::Read(ReadTarget::Calls) => "the ended calls that the gateway remembers, newest first",
        RouteAction::Read(ReadTarget::OpenApi) => "this API as an OpenAPI document",
        RouteAction::Change(ChangeTarget::Configuration) => "reload the configuration file",
        RouteAction::Change(ChangeTarget::Server(ServerAction::Restart)) => {
            "restart a server: end its connection and connect again"
        }
        RouteAction::Change(ChangeTarget::Server(ServerAction::Enable)) => "start a disabled server",
        RouteAction::Change(ChangeTarget::Server(ServerAction::Disable)) => {
            "stop a server until it is enabled or the gateway restarts"
        }
        RouteAction::Change(ChangeTarget::Login) => "begin a login at a server; a person finishes it in a browser",
        RouteAction::Change(ChangeTarget::LoginCallback) => "finish a login with the URL to which the browser returned",
        RouteAction::Change(ChangeTarget::Logout) => "revoke and forget the login at a server",
    }
}

/// Returns the content of a successful response.
fn content(action: RouteAction, generator: &mut SchemaGenerator) -> Value {
    let text = |kind: &str| json!({ kind: { "schema": { "type": "string" } } });
    match action {
        RouteAction::Read(ReadTarget::Alive) => text("text/plain; charset=utf-8"),
        RouteAction::Read(ReadTarget::Metrics) => text(goblin_telemetry::metrics::CONTENT_TYPE),
        RouteAction::Read(ReadTarget::Ready) => answer::<Ready>(generator),
        RouteAction::Read(ReadTarget::Status) => answer::<Status>(generator),
        RouteAction::Read(ReadTarget::Servers) => answer::<ServerList>(generator),
        RouteAction::Read(ReadTarget::Entries(_)) => answer::<EntryList>(generator),
        RouteAction::Read(ReadTarget::Subscriptions) => answer::<SubscriptionList>(generator),
        RouteAction::Read(ReadTarget::Sessions) => answer::<SessionList>(generator),
        RouteAction::Read(ReadTarget::Logs) => answer::<LogList>(generator),
        RouteAction::Read(ReadTarget::Calls) => answer::<CallList>(generator),
        RouteAction::Read(ReadTarget::Events) => {
            let events = generator.subschema_for::<EventInfo>();
            let events = json!({ "message": events, "missed": generator.subschema_for::<Missed>() });
            json!({ "text/event-stream": { "schema": { "type": "string" }, "x-events": events } })
        }
        RouteAction::Read(ReadTarget::OpenApi) => {
            json!({ "application/json": { "schema": { "type": "object", "required": ["openapi", "paths"] } } })
        }
        RouteAction::Read(ReadTarget::Login)
        | RouteAction::Change(ChangeTarget::Login | ChangeTarget::LoginCallback) => answer::<LoginStatus>(generator),
        RouteAction::Change(ChangeTarget::Logout) => answer::<LogoutStatus>(generator),
        RouteAction::Change(ChangeTarget::Configuration) => answer::<Reloaded>(generator),
        RouteAction::Read(ReadTarget::Server) | RouteAction::Change(ChangeTarget::Server(_)) => {
            answer::<ServerStatus>(generator)
        }
    }
}

fn answer<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    json!({ "application/json": { "schema": generator.subschema_for::<T>() } })
}
