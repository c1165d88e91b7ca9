//! TASK-1 between the versions: tasks of 2025-11-25 for clients of the extension, the reverse, and clients without
//! tasks.
//!
//! The gateway translates the protocol. A client without tasks receives the final result of its call.

use serde_json::{Value, json};

use crate::client::modern::META;
use crate::harness::eventually;
use crate::tasks_client::{Over, Scene};

const OVERS: [Over; 2] = [Over::Stdio, Over::Http];

fn ada() -> Value {
    json!({"action": "accept", "content": {"name": "Ada"}})
}

fn names_ada(result: &Value) -> bool {
    result["content"][0]["text"].as_str().is_some_and(|text| text.contains("Ada"))
}

#[tokio::test]
async fn task1_a_modern_client_receives_a_task_of_a_legacy_server() {
    for over in OVERS {
        let scene = Scene::start(over, "legacy").await;
        let modern_client = scene.modern_client();
        let discovered = modern_client.request("server/discover", json!({})).await;
        assert!(discovered["result"]["capabilities"]["extensions"][format!("{META}tasks")].is_object());
        let task = modern_client.create_modern_task("a_task_required", json!({"polls": 2, "text": "well"})).await;
        assert_ne!(task["taskId"], scene.backend_tasks().await[0].0);
        assert_eq!((&task["ttlMs"], &task["pollIntervalMs"]), (&json!(60000), &json!(20)), "{task}");
        assert!(task["ttl"].is_null() && task["task"].is_null(), "{task}");
        for _ in 0..2 {
            let ended = modern_client.await_status(&task, "completed").await;
            let result = &ended["result"];
            assert_eq!((&result["content"][0]["text"], &result["resultType"]), (&json!("well"), &json!("complete")));
            assert_eq!(result["_meta"].get(format!("{META}related-task")), None, "{result}");
        }
        let failing = modern_client.create_modern_task("a_task_required", json!({"fail": "tool", "text": "no"})).await;
        let ended = modern_client.await_status(&failing, "completed").await;
        assert_eq!(ended["result"]["isError"], true, "{ended}");
        let broken =
            modern_client.create_modern_task("a_task_required", json!({"fail": "error", "text": "broken"})).await;
        let ended = modern_client.await_status(&broken, "failed").await;
        assert_eq!(ended["error"]["message"], "broken", "{ended}");
        let endless = modern_client.create_modern_task("a_task_required", json!({"polls": 1000})).await;
        for _ in 0..2 {
            let cancelled = modern_client.request_about("tasks/cancel", &endless).await;
            assert_eq!(cancelled["result"]["resultType"], "complete", "{cancelled}");
        }
        modern_client.await_status(&endless, "cancelled").await;
        let optional = modern_client.try_call("a_task_slow", json!({"text": "plain"})).await;
        assert_eq!(optional["result"]["resultType"], "complete", "{optional}");
    }
}

#[tokio::test]
async fn task1_a_modern_client_receives_the_input_requests_of_a_legacy_task() {
    for over in OVERS {
        let scene = Scene::start(over, "legacy").await;
        let modern_client = scene.modern_client();
        let task = modern_client.create_modern_task("a_task_required", json!({"elicit": true})).await;
        let input_requests = eventually("the task requires input", || async {
            let input_requests = modern_client.await_status(&task, "input_required").await["inputRequests"].clone();
            input_requests.as_object().filter(|input_requests| !input_requests.is_empty()).cloned()
        })
        .await;
        let (key, question) = input_requests.iter().next().expect("a question");
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let again = modern_client.await_status(&task, "input_required").await;
        assert_eq!(again["inputRequests"], json!(input_requests), "the input is requested once");
        let params = json!({ "taskId": task["taskId"], "inputResponses": { key: ada() } });
        let updated = modern_client.request("tasks/update", params).await;
        assert_eq!(updated["result"]["resultType"], "complete", "{updated}");
        let ended = modern_client.await_status(&task, "completed").await;
        assert!(names_ada(&ended["result"]), "{ended}");
    }
}

#[tokio::test]
async fn task1_a_client_without_tasks_receives_the_final_result() {
    for over in OVERS {
        let scene = Scene::start(over, "legacy").await;
        let client_without_tasks = scene.client_without_tasks();
        let plain = client_without_tasks.try_call("a_task_required", json!({"polls": 3, "text": "well"})).await;
        let result = &plain["result"];
        assert_eq!((&result["content"][0]["text"], &result["resultType"]), (&json!("well"), &json!("complete")));
        assert_eq!(result["_meta"].get(format!("{META}related-task")), None, "{result}");
        let older = scene.gateway.client_of("2025-03-26").await;
        assert_eq!(older.call_text("a_task_required", json!({"polls": 3, "text": "old"})).await, "old");
        let broken = client_without_tasks.try_call("a_task_required", json!({"fail": "error", "text": "broken"})).await;
        assert_eq!(broken["error"]["message"], "broken", "{broken}");
        // The input requests of the task are like those of any tool.
        let result = client_without_tasks.try_call("a_task_required", json!({"elicit": true})).await["result"].clone();
        assert_eq!(result["resultType"], "input_required", "{result}");
        let key =
            result["inputRequests"].as_object().and_then(|requests| requests.keys().next()).expect("a key").clone();
        let params = json!({
            "name": "a_task_required", "arguments": {"elicit": true},
            "inputResponses": { key: ada() }, "requestState": result["requestState"],
        });
        let ended = client_without_tasks.request("tools/call", params).await;
        assert!(names_ada(&ended["result"]), "{ended}");
    }
}

#[tokio::test]
async fn task1_a_client_that_disconnects_cancels_the_task_of_its_call() {
    let scene = Scene::start(Over::Http, "legacy").await;
    let client_without_tasks = scene.client_without_tasks();
    let waiting = tokio::spawn({
        let client_without_tasks = client_without_tasks.clone();
        async move { client_without_tasks.try_call("a_task_required", json!({"polls": 100_000, "interval": 50})).await }
    });
    eventually("the task is made", || async { (!scene.backend_tasks().await.is_empty()).then_some(()) }).await;
    assert_eq!(scene.backend_tasks().await[0].1, "working");
    waiting.abort();
    eventually("the task is cancelled", || async { (scene.backend_tasks().await[0].1 == "cancelled").then_some(()) })
        .await;
}

#[tokio::test]
async fn task1_a_legacy_client_receives_a_task_of_a_modern_server() {
    for over in OVERS {
        let scene = Scene::start(over, "modern").await;
        let client = scene.client().await;
        let task = client.create_task("a_task_required", json!({"polls": 3, "text": "well"}), json!({})).await;
        assert_ne!(task["taskId"], scene.backend_tasks().await[0].0);
        assert_eq!((&task["ttl"], &task["pollInterval"]), (&json!(60000), &json!(20)), "{task}");
        assert!(task["ttlMs"].is_null() && task["resultType"].is_null(), "{task}");
        let seen = client.request_about("tasks/get", &task).await["result"].clone();
        assert_eq!((&seen["taskId"], &seen["status"]), (&task["taskId"], &json!("working")), "{seen}");
        let result = client.request_about("tasks/result", &task).await["result"].clone();
        assert_eq!(result["content"][0]["text"], "well", "{result}");
        assert_eq!(result["_meta"], json!({ format!("{META}related-task"): { "taskId": task["taskId"] } }), "{result}");
        assert!(result["resultType"].is_null(), "{result}");
        let seen = client.request_about("tasks/get", &task).await["result"].clone();
        assert_eq!((&seen["status"], &seen["result"]), (&json!("completed"), &Value::Null), "{seen}");
        assert_eq!(client.request("tasks/list", json!({})).await["result"]["tasks"], json!([seen]));
        let over = client.request_about("tasks/cancel", &task).await;
        assert_eq!(over["error"]["code"], -32602, "{over}");
        let failing = client.create_task("a_task_slow", json!({"fail": "tool", "text": "no"}), json!({})).await;
        assert_eq!(client.request_about("tasks/result", &failing).await["result"]["isError"], true);
        assert_eq!(client.request_about("tasks/get", &failing).await["result"]["status"], "failed");
        let broken = client.create_task("a_task_slow", json!({"fail": "error", "text": "broken"}), json!({})).await;
        assert_eq!(client.request_about("tasks/result", &broken).await["error"]["message"], "broken");
        let endless = client.create_task("a_task_slow", json!({"polls": 1000}), json!({})).await;
        let cancelled = client.request_about("tasks/cancel", &endless).await;
        assert_eq!(cancelled["result"]["status"], "cancelled", "{cancelled}");
        assert_eq!(client.call_text("a_task_slow", json!({"text": "plain"})).await, "plain");
    }
}

#[tokio::test]
async fn task1_a_legacy_client_receives_the_elicitation_of_a_modern_task() {
    for over in OVERS {
        let scene = Scene::start(over, "modern").await;
        let client = scene.client().await;
        let task = client.create_task("a_task_required", json!({"elicit": true}), json!({})).await;
        let params = json!({ "taskId": task["taskId"] });
        let fetch = json!({"jsonrpc": "2.0", "id": "fetch", "method": "tasks/result", "params": params});
        let (_, mut stream) = client.open(fetch.to_string()).await;
        let server_request = stream.await_method("elicitation/create").await;
        client.post(json!({"jsonrpc": "2.0", "id": server_request["id"], "result": ada()}).to_string()).await;
        let answer = stream.next().await.expect("an answer");
        assert!(names_ada(&answer["result"]), "{answer}");
    }
}
