//! Asking the client in the middle of a request, in the way of either era.
//!
//! A tool or prompt that asks is a function of the answers so far: it is done, it is refused, or it asks for more. On a
//! 2026-07-28 request its questions are the result, and the client calls again with the answers. In a session of an
//! older version they are pushed as requests of their own, and the function is called again here. So every asking tool
//! works in both eras, and a gateway between a client of one and a server of the other can be tested with all of them.

use rmcp::model::{
    ClientCapabilities, ClientResult, ElicitResult, ElicitationAction, ErrorData, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, ProtocolVersion, ServerRequest,
};
use rmcp::service::{RequestContext, RoleServer, ServiceError};
use serde_json::{Value, json};

/// How often a client of an older version is asked before the call fails.
const ROUNDS: usize = 5;

pub enum Step<T> {
    Done(T),
    Ask(Ask),
    Refused,
}

pub struct Ask {
    pub requests: InputRequests,
    pub state: Option<String>,
}

impl<T> Step<T> {
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Step<U> {
        match self {
            Step::Done(value) => Step::Done(change(value)),
            Step::Ask(ask) => Step::Ask(ask),
            Step::Refused => Step::Refused,
        }
    }

    pub fn ask(key: &str, request: InputRequest) -> Step<T> {
        Step::Ask(Ask { requests: InputRequests::from([(key.to_owned(), request)]), state: None })
    }

    /// Has the client send `state` along with its answers, if there is something to ask.
    pub fn with_state(self, state: String) -> Step<T> {
        match self {
            Step::Ask(ask) => Step::Ask(Ask { state: Some(state), ..ask }),
            other => other,
        }
    }
}

pub enum Reply<T> {
    Done(T),
    Refused,
    InputRequired(InputRequiredResult),
}

/// What the client has sent with a call, or has answered since.
#[derive(Default)]
pub struct Answers {
    pub given: InputResponses,
    pub state: Option<String>,
}

impl Answers {
    pub fn new(given: Option<InputResponses>, state: Option<String>) -> Answers {
        Answers { given: given.unwrap_or_default(), state }
    }

    /// What the user filled in; asks when there is no answer that can be read.
    pub fn elicited(&self, key: &str, request: InputRequest) -> Step<Value> {
        let answer = self.given.get(key).and_then(|answer| serde_json::from_value(answer.clone()).ok());
        match answer {
            Some(ElicitResult { action: ElicitationAction::Accept, content, .. }) => {
                Step::Done(content.unwrap_or_default())
            }
            Some(_) => Step::Refused,
            None => Step::ask(key, request),
        }
    }

    /// One text that the user filled in; asks when it is not there.
    pub fn field(&self, key: &str, field: &str, request: InputRequest) -> Step<String> {
        match self.elicited(key, request.clone()) {
            Step::Done(content) => match content[field].as_str() {
                Some(text) => Step::Done(text.to_owned()),
                None => Step::ask(key, request),
            },
            other => other.map(|_| String::new()),
        }
    }

    /// The text that the client's model wrote.
    pub fn sampled(&self, key: &str, request: InputRequest) -> Step<String> {
        let content = self.given.get(key).map(|answer| &answer["content"]);
        // A single block, or since 2025-11-25 a list of them.
        let text = content.and_then(|content| content.get(0).unwrap_or(content)["text"].as_str());
        text.map_or_else(|| Step::ask(key, request), |text| Step::Done(text.to_owned()))
    }

    /// The URIs of the client's roots.
    pub fn roots(&self, key: &str, request: InputRequest) -> Step<Vec<String>> {
        let Some(roots) = self.given.get(key).and_then(|answer| answer["roots"].as_array()) else {
            return Step::ask(key, request);
        };
        Step::Done(roots.iter().filter_map(|root| root["uri"].as_str()).map(str::to_owned).collect())
    }
}

/// A form with these fields, all of which are required.
pub fn form(message: &str, properties: &Value) -> Result<InputRequest, ErrorData> {
    let required: Vec<_> = properties.as_object().into_iter().flat_map(|properties| properties.keys()).collect();
    let schema = json!({"type": "object", "properties": properties, "required": required});
    request(json!({"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}))
}

pub fn sampling(prompt: &str) -> Result<InputRequest, ErrorData> {
    let message = json!({"role": "user", "content": {"type": "text", "text": prompt}});
    request(json!({"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 100}}))
}

pub fn roots() -> Result<InputRequest, ErrorData> {
    request(json!({"method": "roots/list"}))
}

fn request(request: Value) -> Result<InputRequest, ErrorData> {
    let request = serde_json::from_value(request);
    request.map_err(|error| ErrorData::internal_error(format!("not a request to a client: {error}"), None))
}

pub fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

pub fn capabilities(context: &RequestContext<RoleServer>) -> ClientCapabilities {
    context.client_capabilities().unwrap_or_default()
}

/// Takes steps until there is something to tell the client.
pub async fn drive<T>(
    context: &RequestContext<RoleServer>,
    mut answers: Answers,
    step: impl Fn(&Answers) -> Result<Step<T>, ErrorData>,
) -> Result<Reply<T>, ErrorData> {
    for _ in 0..ROUNDS {
        let ask = match step(&answers)? {
            Step::Done(value) => return Ok(Reply::Done(value)),
            Step::Refused => return Ok(Reply::Refused),
            Step::Ask(ask) => ask,
        };
        if is_modern(context) {
            return Ok(Reply::InputRequired(InputRequiredResult::new(Some(ask.requests), ask.state)));
        }
        answers = push(context, ask).await?;
    }
    Err(ErrorData::invalid_request(format!("no usable answer in {ROUNDS} rounds"), None))
}

/// Sends the questions to a client of an older version, one after the other.
async fn push(context: &RequestContext<RoleServer>, ask: Ask) -> Result<Answers, ErrorData> {
    let mut given = InputResponses::new();
    for (key, request) in ask.requests {
        let answer = match context.peer.send_request(server_request(request)?).await {
            Ok(ClientResult::CustomResult(result)) => result.0,
            Ok(result) => serde_json::to_value(result).unwrap_or_default(),
            Err(ServiceError::McpError(error)) => return Err(error),
            Err(error) => return Err(ErrorData::internal_error(format!("the client did not answer: {error}"), None)),
        };
        given.insert(key, answer);
    }
    Ok(Answers { given, state: ask.state })
}

fn server_request(request: InputRequest) -> Result<ServerRequest, ErrorData> {
    match request {
        InputRequest::CreateMessage(request) => Ok(ServerRequest::CreateMessageRequest(request)),
        InputRequest::Elicitation(request) => Ok(ServerRequest::ElicitRequest(request)),
        InputRequest::ListRoots(request) => Ok(ServerRequest::ListRootsRequest(request)),
        _ => Err(ErrorData::internal_error("an input request of a new kind", None)),
    }
}
