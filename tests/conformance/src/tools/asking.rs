//! Tools that request input from the user, the client's model or the client.
//!
//! Each tool is a function of the responses so far, so it works in both eras. Tools with several rounds keep their
//! progress in the sealed `requestState`.

use rmcp::model::{CallToolResult, ClientCapabilities, ErrorData, InputRequest, InputRequests, JsonObject};
use serde_json::{Value, json};

use crate::ask::{Answers, Requests, Step, form, roots, sampling};
use crate::tools::content::text;
use crate::tools::{text_argument, unknown};
use crate::world::World;

/// The inputs of a tool's step.
pub struct Call<'a> {
    pub world: &'a World,
    pub name: &'a str,
    pub arguments: &'a JsonObject,
    pub capabilities: &'a ClientCapabilities,
}

/// Takes the next step of a tool that requests input.
pub fn step(call: &Call<'_>, answers: &Answers) -> Result<Step<CallToolResult>, ErrorData> {
    match call.name {
        "test_missing_capability" => missing_capability(call.capabilities),
        "test_sampling" => {
            let request = sampling(text_argument(call.arguments, "prompt")?)?;
            Ok(answers.sampled("answer", request).map(|answer| text(format!("the model says: {answer}"))))
        }
        "test_elicitation" => {
            let person = json!({"username": {"type": "string"}, "email": {"type": "string"}});
            filled_in(answers, text_argument(call.arguments, "message")?, &person)
        }
        "test_elicitation_sep1034_defaults" => filled_in(answers, "check these values", &defaults()),
        "test_elicitation_sep1330_enums" => filled_in(answers, "choose", &choices()),
        "test_streaming_elicitation" | "test_input_required_result_elicitation" => {
            let name = answers.field("user_name", "name", name_form()?);
            Ok(name.map(|name| text(format!("hello {name}"))))
        }
        "test_input_required_result_sampling" => {
            let request = sampling("what is the capital of France?")?;
            Ok(answers.sampled("capital_question", request).map(text))
        }
        "test_input_required_result_list_roots" => {
            Ok(answers.roots("client_roots", roots()?).map(|roots| text(format!("roots: {}", roots.join(", ")))))
        }
        "test_input_required_result_request_state" | "test_input_required_result_tampered_state" => {
            confirmed(call, answers)
        }
        "test_input_required_result_multiple_inputs" => everything(call, answers),
        "test_input_required_result_multi_round" => two_rounds(call, answers),
        "test_input_required_result_capabilities" => all_supported(call.capabilities, answers),
        name => Err(unknown(name)),
    }
}

pub fn name_form() -> Result<InputRequest, ErrorData> {
    form("what is your name?", &json!({"name": {"type": "string"}}))
}

#[expect(deprecated, reason = "the suite wants a tool that needs sampling")]
fn missing_capability(capabilities: &ClientCapabilities) -> Result<Step<CallToolResult>, ErrorData> {
    if capabilities.sampling.is_none() {
        let required = ClientCapabilities::builder().enable_sampling().build();
        return Err(ErrorData::missing_required_client_capability(required));
    }
    Ok(Step::Done(text("the client samples")))
}

fn filled_in(answers: &Answers, message: &str, properties: &Value) -> Result<Step<CallToolResult>, ErrorData> {
    let content = answers.elicited("form", form(message, properties)?);
    Ok(content.map(|content| text(format!("the user says: {content}"))))
}

fn defaults() -> Value {
    json!({
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": true},
    })
}

/// Returns the five forms of a choice in a schema.
fn choices() -> Value {
    let plain = ["option1", "option2", "option3"];
    let titled = json!([
        {"const": "value1", "title": "First Option"},
        {"const": "value2", "title": "Second Option"},
        {"const": "value3", "title": "Third Option"},
    ]);
    json!({
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    })
}

/// Returns the state that the tool gave the client, or `None` in the first round. Returns an error if the client has
/// changed it.
fn state_of(call: &Call<'_>, answers: &Answers) -> Result<Option<Value>, ErrorData> {
    answers.state.as_deref().map(|sealed| call.world.open(call.name, sealed)).transpose()
}

fn confirmed(call: &Call<'_>, answers: &Answers) -> Result<Step<CallToolResult>, ErrorData> {
    let request = form("please confirm", &json!({"ok": {"type": "boolean"}}))?;
    let step = match state_of(call, answers)? {
        Some(_) => answers.elicited("confirm", request).map(|_| text("state-ok")),
        None => Step::request("confirm", request),
    };
    Ok(step.with_state(call.world.seal(call.name, &json!("requested"))?))
}

/// Requests a name, a greeting and the roots at once. A response counts only together with the others of its round.
fn everything(call: &Call<'_>, answers: &Answers) -> Result<Step<CallToolResult>, ErrorData> {
    state_of(call, answers)?;
    let [name, greeting, roots] = [name_form()?, sampling("write a greeting")?, roots()?];
    let steps = (
        answers.field("user_name", "name", name.clone()),
        answers.sampled("greeting", greeting.clone()),
        answers.roots("client_roots", roots.clone()),
    );
    match steps {
        (Step::Done(name), Step::Done(greeting), Step::Done(roots)) => {
            Ok(Step::Done(text(format!("{greeting} {name}, you have {} roots", roots.len()))))
        }
        (Step::Rejected, _, _) => Ok(Step::Rejected),
        _ => {
            let requests = [("user_name", name), ("greeting", greeting), ("client_roots", roots)];
            let requests = requests.map(|(key, request)| (key.to_owned(), request)).into();
            Ok(Step::Requests(Requests { requests, state: Some(call.world.seal(call.name, &json!("requested"))?) }))
        }
    }
}

fn two_rounds(call: &Call<'_>, answers: &Answers) -> Result<Step<CallToolResult>, ErrorData> {
    let color_form = || form("step 2: what is your favourite colour?", &json!({"color": {"type": "string"}}));
    let state = state_of(call, answers)?.unwrap_or_default();
    if let Some(name) = state["name"].as_str() {
        let color = answers.field("step2", "color", color_form()?);
        let step = color.map(|color| text(format!("{name} likes {color}")));
        return Ok(step.with_state(call.world.seal(call.name, &state)?));
    }
    let name_form = form("step 1: what is your name?", &json!({"name": {"type": "string"}}))?;
    match answers.field("step1", "name", name_form) {
        Step::Done(name) => {
            let state = call.world.seal(call.name, &json!({ "name": name }))?;
            Ok(Step::request("step2", color_form()?).with_state(state))
        }
        other => Ok(other.map(text).with_state(call.world.seal(call.name, &json!({}))?)),
    }
}

/// Requests only the input that the client's capabilities cover.
fn all_supported(capabilities: &ClientCapabilities, answers: &Answers) -> Result<Step<CallToolResult>, ErrorData> {
    let mut requests = InputRequests::new();
    if capabilities.elicitation.is_some() {
        requests.insert("user_name".to_owned(), name_form()?);
    }
    if capabilities.sampling.is_some() {
        requests.insert("greeting".to_owned(), sampling("write a greeting")?);
    }
    if capabilities.roots.is_some() {
        requests.insert("client_roots".to_owned(), roots()?);
    }
    requests.retain(|key, _| !answers.responses.contains_key(key));
    if requests.is_empty() {
        return Ok(Step::Done(text(format!("{} answers", answers.responses.len()))));
    }
    Ok(Step::Requests(Requests { requests, state: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one step of a tool. Returns the text of its result, `refused`, or the requested keys.
    fn take(world: &World, name: &str, answers: &Answers) -> Result<String, ErrorData> {
        let capabilities = ClientCapabilities::default();
        let call = Call { world, name, arguments: &JsonObject::new(), capabilities: &capabilities };
        Ok(match step(&call, answers)? {
            Step::Done(result) => result.content[0].as_text().expect("a text block").text.clone(),
            Step::Rejected => "refused".to_owned(),
            Step::Requests(step) => format!("requests {}", step.requests.into_keys().collect::<Vec<_>>().join(" ")),
        })
    }

    #[test]
    fn an_input_request_is_repeated_until_its_answer_is_valid() {
        let check = |name, responses: Value, expected| {
            let answers = Answers::new(serde_json::from_value(responses).unwrap(), None);
            assert_eq!(take(&World::default(), name, &answers).unwrap(), expected, "{name}");
        };
        let elicitation = "test_input_required_result_elicitation";
        let accept = |content: Value| json!({"action": "accept", "content": content});
        check(elicitation, json!({}), "requests user_name");
        check(elicitation, json!({"other": accept(json!({"name": "Ada"}))}), "requests user_name");
        check(elicitation, json!({"user_name": 12345}), "requests user_name");
        check(elicitation, json!({"user_name": accept(json!({"name": 1}))}), "requests user_name");
        check(elicitation, json!({"user_name": accept(json!({"name": "Ada"}))}), "hello Ada");
        check(elicitation, json!({"user_name": {"action": "decline"}}), "refused");

        let sampling = "test_input_required_result_sampling";
        check(sampling, json!({"capital_question": {"content": {"type": "text", "text": "Paris"}}}), "Paris");
        check(sampling, json!({"capital_question": {"content": [{"type": "text", "text": "Paris"}]}}), "Paris");
        check(sampling, json!({"capital_question": {}}), "requests capital_question");
        let roots = json!({"client_roots": {"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]}});
        check("test_input_required_result_list_roots", roots.clone(), "roots: file:///a, file:///b");
        check("test_input_required_result_multiple_inputs", roots, "requests client_roots greeting user_name");
    }

    #[test]
    fn a_request_state_is_accepted_only_unmodified_and_by_its_tool() {
        let world = World::default();
        let name = "test_input_required_result_request_state";
        let take = |state: Option<String>| {
            let yes = ("confirm".to_owned(), json!({"action": "accept", "content": {"ok": true}}));
            take(&world, name, &Answers::new(Some([yes].into()), state))
        };
        let sealed = world.seal(name, &json!("requested")).unwrap();
        assert_eq!(take(None).unwrap(), "requests confirm");
        assert_eq!(take(Some(sealed.clone())).unwrap(), "state-ok");
        assert!(take(Some(format!("{sealed}x"))).is_err());
        assert!(take(Some(world.seal("another tool", &json!("requested")).unwrap())).is_err());
    }
}
