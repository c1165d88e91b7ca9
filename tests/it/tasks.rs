//! TASK-1 with 2025-11-25 on both sides: clients create, follow, fetch and cancel tasks by ids of the gateway.
//!
//! A task is visible only to the client that created it.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::modern::META;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::raw_server::{RawServer, response};
use crate::support::http_server;
use crate::tasks_client::{Over, Scene};

fn related(task: &Value) -> Value {
    json!({ format!("{META}related-task"): { "taskId": task["taskId"] } })
}

#[tokio::test]
async fn task1_a_task_is_followed_and_fetched_by_an_id_of_the_gateway() {
    for over in [Over::Stdio, Over::Http] {
        let scene = Scene::start(over, "legacy").await;
        let client = scene.client().await;
        let task = client.create_task("a_task_slow", json!({"polls": 2, "text": "well"}), json!({"ttl": 50000})).await;
        let backend_tasks = scene.backend_tasks().await;
        assert_eq!(backend_tasks.len(), 1, "{backend_tasks:?}");
        assert_ne!(task["taskId"], backend_tasks[0].0, "{over:?}");
        assert_eq!((&task["ttl"], &task["pollInterval"]), (&json!(50000), &json!(20)), "{task}");
        let seen = client.request_about("tasks/get", &task).await;
        assert_eq!(
            (&seen["result"]["taskId"], &seen["result"]["status"]),
            (&task["taskId"], &json!("working")),
            "{seen}"
        );
        let result = client.request_about("tasks/result", &task).await["result"].clone();
        assert_eq!((&result["content"][0]["text"], &result["_meta"]), (&json!("well"), &related(&task)), "{result}");
        let seen = client.request_about("tasks/get", &task).await;
        assert_eq!(seen["result"]["status"], "completed", "{seen}");
        let listed = client.request("tasks/list", json!({})).await;
        let listed = listed["result"]["tasks"].as_array().expect("a list").clone();
        assert_eq!(listed, [seen["result"].clone()], "{over:?}");
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let native = client.request(method, json!({ "taskId": backend_tasks[0].0 })).await;
            assert_eq!(native["error"]["code"], -32602, "{native}");
        }
    }
}

#[tokio::test]
async fn task1_only_its_own_client_sees_a_task() {
    let scene = Scene::start(Over::Http, "legacy").await;
    let (one, other) = (scene.client().await, scene.client().await);
    let task = one.create_task("a_task_slow", json!({"polls": 1000}), json!({})).await;
    let other_task = other.create_task("a_task_slow", json!({"polls": 1000}), json!({})).await;
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let rejected = other.request_about(method, &task).await;
        assert_eq!(rejected["error"]["code"], -32602, "{rejected}");
        let modern_client = scene.modern_client();
        let rejected = modern_client.request_about("tasks/get", &task).await;
        assert_eq!(rejected["error"]["code"], -32602, "{rejected}");
    }
    let ids = |answer: &Value| -> Vec<Value> {
        let tasks = answer["result"]["tasks"].as_array().unwrap_or_else(|| panic!("{answer}"));
        tasks.iter().map(|task| task["taskId"].clone()).collect()
    };
    assert_eq!(ids(&one.request("tasks/list", json!({})).await), [task["taskId"].clone()]);
    assert_eq!(ids(&other.request("tasks/list", json!({})).await), [other_task["taskId"].clone()]);
    let cancelled = one.request_about("tasks/cancel", &task).await;
    assert_eq!(cancelled["result"]["status"], "cancelled", "{cancelled}");
    let again = one.request_about("tasks/cancel", &task).await;
    assert_eq!(again["error"]["code"], -32602, "{again}");
    let statuses: Vec<_> = scene.backend_tasks().await.into_iter().map(|(_, status)| status).collect();
    assert_eq!(statuses, ["cancelled", "working"]);
}

/// Returns the same task for every call.
fn same(arguments: &Value) -> Vec<u8> {
    let task = json!({"taskId": "same", "status": "working", "ttl": null, "createdAt": "x", "lastUpdatedAt": "x"});
    let body = json!({"jsonrpc": "2.0", "id": arguments["id"], "result": {"task": task}}).to_string();
    response("200 OK", "Content-Type: application/json\r\n", &body)
}

#[tokio::test]
async fn task1_equal_native_ids_of_two_servers_are_two_tasks() {
    let reject = |method: &str| (method == "tasks/get").then(|| response("502 Bad Gateway", "", ""));
    let servers = [RawServer::rejecting(reject, same).await, RawServer::rejecting(reject, same).await];
    let entry = |server: &RawServer| {
        let mut entry = http_server(server.address);
        entry["protocol"] = json!("legacy");
        entry
    };
    let gateway = Gateway::with_servers(json!({ "a": entry(&servers[0]), "b": entry(&servers[1]) })).await;
    let (one, other) = (gateway.client_seeing("a_t").await, gateway.client_seeing("b_t").await);
    let task = one.create_task("a_t", json!({}), json!({})).await;
    let other_task = other.create_task("b_t", json!({}), json!({})).await;
    assert_ne!(task["taskId"], other_task["taskId"]);
    assert_eq!(task["ttl"], 86_400_000, "for ever is not promised");
    for (client, own, foreign, server) in [(&one, &task, &other_task, "a"), (&other, &other_task, &task, "b")] {
        let answer = client.request_about("tasks/get", own).await;
        assert_eq!(answer["error"]["data"]["serverId"], server, "{answer}");
        let answer = client.request_about("tasks/get", foreign).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    let newer = other.create_task("a_t", json!({}), json!({})).await;
    let answer = one.request_about("tasks/get", &task).await;
    assert_eq!(answer["error"]["code"], -32602, "its id belongs to another task: {answer}");
    let answer = other.request_about("tasks/get", &newer).await;
    assert_eq!(answer["error"]["data"]["serverId"], "a", "{answer}");
}

#[tokio::test]
async fn task1_elicitation_of_a_task_reaches_the_client_that_waits_for_its_result() {
    for over in [Over::Stdio, Over::Http] {
        let scene = Scene::start(over, "legacy").await;
        let client = scene.client().await;
        let task = client.create_task("a_task_required", json!({"elicit": true}), json!({})).await;
        let params = json!({ "taskId": task["taskId"] });
        let fetch = json!({"jsonrpc": "2.0", "id": "fetch", "method": "tasks/result", "params": params});
        let (_, mut stream) = client.open(fetch.to_string()).await;
        let server_request = stream.await_method("elicitation/create").await;
        assert_eq!(server_request["params"]["_meta"], related(&task), "{server_request}");
        let answer = json!({"action": "accept", "content": {"name": "Ada"}, "_meta": related(&task)});
        client.post(json!({"jsonrpc": "2.0", "id": server_request["id"], "result": answer}).to_string()).await;
        let result = stream.next().await.expect("an answer");
        let text = result["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"));
        assert!(text.contains("Ada"), "{result}");
        let native = &scene.backend_tasks().await[0].0;
        assert!(text.contains(native.as_str()), "the answer has the server's task id: {text}");
    }
}

#[tokio::test]
async fn task1_a_status_change_notifies_only_the_session_of_the_task() {
    for over in [Over::Stdio, Over::Http] {
        let scene = Scene::start(over, "legacy").await;
        let (one, other) = (scene.client().await, scene.client().await);
        let mut streams = [one.listen().await, other.listen().await];
        let task = one.create_task("a_task_slow", json!({"polls": 1000}), json!({})).await;
        let other_task = other.create_task("a_task_slow", json!({"polls": 1000}), json!({})).await;
        one.request_about("tasks/cancel", &task).await;
        other.request_about("tasks/cancel", &other_task).await;
        for (stream, task) in streams.iter_mut().zip([&task, &other_task]) {
            let status = stream.await_method("notifications/tasks/status").await;
            assert_eq!(
                (&status["params"]["taskId"], &status["params"]["status"]),
                (&task["taskId"], &json!("cancelled")),
                "{over:?}: {status}"
            );
        }
    }
}

#[tokio::test]
async fn task1_a_task_expires_after_its_time_to_live() {
    let scene = Scene::start(Over::Stdio, "legacy").await;
    let client = scene.client().await;
    let task = client.create_task("a_task_slow", json!({}), json!({"ttl": 1})).await;
    let kept = client.create_task("a_task_slow", json!({}), json!({"ttl": 60000})).await;
    eventually("the task is forgotten", || async {
        let answer = client.request_about("tasks/get", &task).await;
        (answer["error"]["code"] == -32602).then_some(())
    })
    .await;
    assert!(client.request_about("tasks/get", &kept).await["result"].is_object());
    let listed = client.request("tasks/list", json!({})).await;
    assert_eq!(listed["result"]["tasks"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(scene.backend_tasks().await.len(), 2, "the server keeps both");
}

#[tokio::test]
async fn task1_a_client_has_at_most_a_thousand_tasks_and_no_more_reach_the_server() {
    let scene = Scene::start(Over::Http, "legacy").await;
    let (client, other) = (scene.client().await, scene.client().await);
    for _ in 0..1000 {
        client.create_task("a_task_slow", json!({}), json!({})).await;
    }
    let params = json!({"name": "a_task_slow", "arguments": {}, "task": {}});
    let rejected = client.request("tools/call", params).await;
    assert_eq!(rejected["error"]["data"]["code"], "LIMIT_EXCEEDED", "{rejected}");
    assert_eq!(rejected["error"]["data"]["limit"], "tasks", "{rejected}");
    assert_eq!(scene.backend_tasks().await.len(), 1000);
    assert_eq!(client.call_text("a_task_slow", json!({"text": "plain"})).await, "plain");
    other.create_task("a_task_slow", json!({}), json!({})).await;
}

#[tokio::test]
async fn task1_tasks_are_declared_only_if_a_server_and_the_version_support_them() {
    let scene = Scene::start(Over::Stdio, "legacy").await;
    let declared = |answer: &Value| answer["result"]["capabilities"]["tasks"].clone();
    let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    let mut client = Client::new(scene.gateway.address);
    assert_eq!(declared(&client.initialize("2025-11-25").await), tasks);
    let tools = client.list("tools/list", "tools").await;
    let support = |name: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name).expect("the tool");
        tool["execution"]["taskSupport"].clone()
    };
    assert_eq!((support("a_task_slow"), support("a_task_required")), (json!("optional"), json!("required")));
    let mut older = Client::new(scene.gateway.address);
    assert_eq!(declared(&older.initialize("2025-06-18").await), Value::Null);
    for method in ["tasks/get", "tasks/list", "tasks/result", "tasks/cancel"] {
        let rejected = older.request(method, json!({"taskId": "x"})).await;
        assert_eq!(rejected["error"]["code"], -32601, "{rejected}");
    }
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    gateway.client_seeing("a_echo").await;
    let mut without = Client::new(gateway.address);
    assert_eq!(declared(&without.initialize("2025-11-25").await), Value::Null);
}
