//! Behaviour that the suite does not test: the way of each era, and changes in a session.
//!
//! A tool sends its questions as requests in a session, and returns them as its result without one.

use serde_json::json;

use super::client::{Server, Session};

#[tokio::test]
async fn a_tool_in_a_session_sends_server_requests() {
    let server = Server::start();
    let session = Session::open(&server, json!({"elicitation": {}})).await;
    let mut call = session.call("test_input_required_result_multi_round").await;
    for (question, answer) in [("step 1", json!({"name": "Ada"})), ("step 2", json!({"color": "blue"}))] {
        let request = call.message().await;
        assert_eq!(request["method"], "elicitation/create", "{request}");
        assert!(request["params"]["message"].as_str().unwrap().starts_with(question), "{request}");
        session.answer(&request, json!({"action": "accept", "content": answer})).await;
    }
    assert_eq!(call.message().await["result"]["content"][0]["text"], "Ada likes blue");
}

#[tokio::test]
async fn a_tool_without_a_session_returns_input_requests() {
    let server = Server::start();
    let arguments = json!({"message": "who?"});
    let result = server.call_modern(json!({"name": "test_elicitation", "arguments": arguments})).await;
    assert_eq!(result["result"]["resultType"], "input_required", "{result}");
    assert_eq!(result["result"]["inputRequests"]["form"]["params"]["message"], "who?", "{result}");
    let answers = json!({"form": {"action": "accept", "content": {"username": "ada", "email": "a@b"}}});
    let call = json!({"name": "test_elicitation", "arguments": arguments, "inputResponses": answers});
    let done = server.call_modern(call).await;
    assert_eq!(done["result"]["resultType"], "complete", "{done}");
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("ada"), "{done}");
}

#[tokio::test]
async fn a_session_receives_list_changes_and_subscribed_updates() {
    let server = Server::start();
    let session = Session::open(&server, json!({})).await;
    let mut stream = session.listen().await;
    // The session has no subscription yet, so the first notification is the change of the tools.
    session.call("test_trigger_resource_change").await.message().await;
    session.call("test_trigger_tool_change").await.message().await;
    assert_eq!(stream.message().await["method"], "notifications/tools/list_changed");
    let subscribed = session.request("resources/subscribe", json!({"uri": "test://watched-resource"})).await;
    assert_eq!(subscribed["result"], json!({}));
    session.call("test_trigger_resource_change").await.message().await;
    let updated = stream.message().await;
    assert_eq!(updated["method"], "notifications/resources/updated", "{updated}");
    assert_eq!(updated["params"]["uri"], "test://watched-resource", "{updated}");
}
