//! Generates the OpenAPI document from the route table and the response types.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::api::Refused;
use crate::routes::{Access, ROUTES, ReadTarget, ResponseContent, Route, RouteAction};

/// The name of the token's security scheme.
const TOKEN: &str = "adminToken";

pub fn document() -> Value {
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
    let content = match route.answer {
        ResponseContent::Text(kind) => json!({ kind: { "schema": { "type": "string" } } }),
        ResponseContent::Json(schema) => json!({ "application/json": { "schema": schema(generator) } }),
        ResponseContent::Events(data, (name, other)) => {
            let (data, other) = (data(generator), other(generator));
            let events = json!({ "message": data, name: other });
            json!({ "text/event-stream": { "schema": { "type": "string" }, "x-events": events } })
        }
    };
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({ "description": route.summary, "content": content }));
    let refused = json!({ "application/json": { "schema": generator.subschema_for::<Refused>() } });
    for (status, reason) in refusals(route) {
        let content = if route.access == Access::Probe { &content } else { &refused };
        responses.insert(status.to_string(), json!({ "description": reason, "content": content }));
    }
    let security = match route.access {
        Access::Probe => json!([]),
        Access::Client => json!([{}, { TOKEN: [] }]),
        Access::Operator => json!([{ TOKEN: [] }]),
    };
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses,
        "security": security,
    });
    if matches!(route.action, RouteAction::Change(_)) {
        let body = json!({ "schema": { "type": "object", "additionalProperties": false } });
        operation["requestBody"] = json!({ "required": false, "content": { "application/json": body } });
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
    let query = route.parameter.map(|parameter| {
        let (name, about) = (parameter.name, parameter.about);
        json!({ "name": name, "in": "query", "required": false, "schema": text, "description": about })
    });
    route.has_id().then_some(id).into_iter().chain(query).collect()
}

/// Returns the statuses that a route may return besides 200, with their reasons.
fn refusals(route: &Route) -> Vec<(u16, &'static str)> {
    let mut refusals = Vec::new();
    if route.access == Access::Probe {
        return if route.action == RouteAction::Look(ReadTarget::Ready) {
            vec![(503, "the gateway is not ready")]
        } else {
            refusals
        };
    }
    refusals.push((400, "the route does not accept the query or the body"));
    refusals.push((401, "the token is missing or wrong"));
    refusals.push((403, "Host or Origin is not allowed"));
    if route.has_id() || route.parameter.is_some() {
        refusals.push((404, "the server does not exist"));
    }
    if route.action == RouteAction::Look(ReadTarget::Events) {
        refusals.push((503, "the maximum number of readers is reached"));
    }
    if matches!(route.action, RouteAction::Change(_)) {
        refusals.push((409, "the state of the server does not allow the change"));
        refusals.push((422, "the configuration file does not allow the change"));
        refusals.push((503, "the gateway accepts no commands, or too many are waiting"));
    }
    refusals
}
