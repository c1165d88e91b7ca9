//! Requests input from the client during a request, in the way of either era.
//!
//! A tool or prompt that needs input is a function of the responses so far: it is done, it is refused, or it asks for
//! more. For a 2026-07-28 request the input requests are the result, and the client calls again with its responses. In
//! a session of an older version they are sent as server requests, and this module calls the function again. Every such
//! tool therefore works in both eras, and all of them can test a gateway between the eras.

use rmcp::model::{
    ClientCapabilities, ClientResult, ElicitResult, ElicitationAction, ErrorData, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, ProtocolVersion, ServerRequest,
};
use rmcp::service::{RequestContext, RoleServer, ServiceError};
use serde_json::{Value, json};

/// The limit of rounds of server requests before a call in a session fails.
const ROUNDS: usize = 5;

pub enum Step<T> {
    Done(T),
    Requests(Requests),
    Rejected,
}

pub struct Requests {
    pub requests: InputRequests,
    pub state: Option<String>,
}

impl<T> Step<T> {
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Step<U> {
        match self {
            Step::Done(value) => Step::Done(change(value)),
            Step::Requests(pending) => Step::Requests(pending),
            Step::Rejected => Step::Rejected,
        }
    }

    pub fn request(key: &str, request: InputRequest) -> Step<T> {
        Step::Requests(Requests { requests: InputRequests::from([(key.to_owned(), request)]), state: None })
    }

    /// Makes the client return `state` with its responses. Has no effect if nothing is asked.
    pub fn with_state(self, state: String) -> Step<T> {
        match self {
            Step::Requests(pending) => Step::Requests(Requests { state: Some(state), ..pending }),
            other => other,
        }
    }
}

pub enum Reply<T> {
    Done(T),
    Rejected,
    InputRequired(InputRequiredResult),
}

/// The input responses and the state that the client has sent.
#[derive(Default)]
pub struct Answers {
    pub responses: InputResponses,
    pub state: Option<String>,
}

impl Answers {
    pub fn new(responses: Option<InputResponses>, state: Option<String>) -> Answers {
        Answers { responses: responses.unwrap_or_default(), state }
    }

    /// Returns the content of an elicitation. Asks if there is no valid response.
    pub fn elicited(&self, key: &str, request: InputRequest) -> Step<Value> {
        let answer = self.responses.get(key).and_then(|answer| serde_json::from_value(answer.clone()).ok());
        match answer {
            Some(ElicitResult { action: ElicitationAction::Accept, content, .. }) => {
                Step::Done(content.unwrap_or_default())
            }
            Some(_) => Step::Rejected,
            None => Step::request(key, request),
        }
    }

    /// Returns one text field of an elicitation. Asks if it is missing.
    pub fn field(&self, key: &str, field: &str, request: InputRequest) -> Step<String> {
        match self.elicited(key, request.clone()) {
            Step::Done(content) => match content[field].as_str() {
                Some(text) => Step::Done(text.to_owned()),
                None => Step::request(key, request),
            },
            other => other.map(|_| String::new()),
        }
    }

    /// Returns the text from the client's model. Asks if it is missing.
    pub fn sampled(&self, key: &str, request: InputRequest) -> Step<String> {
        let content = self.responses.get(key).map(|answer| &answer["content"]);
        // The content is a single block, or a list of blocks since 2025-11-25.
        let text = content.and_then(|content| content.get(0).unwrap_or(content)["text"].as_str());
        text.map_or_else(|| Step::request(key, request), |text| Step::Done(text.to_owned()))
    }

    /// Returns the URIs of the client's roots. Asks if they are missing.
    pub fn roots(&self, key: &str, request: InputRequest) -> Step<Vec<String>> {
        let Some(roots) = self.responses.get(key).and_then(|answer| answer["roots"].as_array()) else {
            return Step::request(key, request);
        };
        Step::Done(roots.iter().filter_map(|root| root["uri"].as_str()).map(str::to_owned).collect())
    }
}

/// Returns a form with these fields, all of them required.
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

/// Takes steps until there is a result, a refusal, or input to request from a modern client.
pub async fn drive<T>(
    context: &RequestContext<RoleServer>,
    mut answers: Answers,
    step: impl Fn(&Answers) -> Result<Step<T>, ErrorData>,
) -> Result<Reply<T>, ErrorData> {
    for _ in 0..ROUNDS {
        let pending = match step(&answers)? {
            Step::Done(value) => return Ok(Reply::Done(value)),
            Step::Rejected => return Ok(Reply::Rejected),
            Step::Requests(pending) => pending,
        };
        if is_modern(context) {
            return Ok(Reply::InputRequired(InputRequiredResult::new(Some(pending.requests), pending.state)));
        }
        answers = push(context, pending).await?;
    }
    Err(ErrorData::invalid_request(format!("no usable answer in {ROUNDS} rounds"), None))
}

/// Sends the input requests to a client of an older version, one after the other.
async fn push(context: &RequestContext<RoleServer>, pending: Requests) -> Result<Answers, ErrorData> {
    let mut responses = InputResponses::new();
    for (key, request) in pending.requests {
        let answer = match context.peer.send_request(server_request(request)?).await {
            Ok(ClientResult::CustomResult(result)) => result.0,
            Ok(result) => serde_json::to_value(result).unwrap_or_default(),
            Err(ServiceError::McpError(error)) => return Err(error),
            Err(error) => return Err(ErrorData::internal_error(format!("the client did not answer: {error}"), None)),
        };
        responses.insert(key, answer);
    }
    Ok(Answers { responses, state: pending.state })
}

fn server_request(request: InputRequest) -> Result<ServerRequest, ErrorData> {
    match request {
        InputRequest::CreateMessage(request) => Ok(ServerRequest::CreateMessageRequest(request)),
        InputRequest::Elicitation(request) => Ok(ServerRequest::ElicitRequest(request)),
        InputRequest::ListRoots(request) => Ok(ServerRequest::ListRootsRequest(request)),
        _ => Err(ErrorData::internal_error("an input request of a new kind", None)),
    }
}
