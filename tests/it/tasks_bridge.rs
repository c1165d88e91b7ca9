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
async fn task1_a_newer_client_gets_a_task_of_an_older_server() {
    for over in OVERS {
        let scene = Scene::start(over, "legacy").await;
        let visitor = scene.visitor();
        let discovered = visitor.request("server/discover", json!({})).await;
        assert!(discovered["result"]["capabilities"]["extensions"][format!("{META}tasks")].is_object());
        let task = visitor.make("a_task_required", json!({"polls": 2, "text": "well"})).await;
        assert_ne!(task["taskId"], scene.natives().await[0].0);
        assert_eq!((&task["ttlMs"], &task["pollIntervalMs"]), (&json!(60000), &json!(20)), "{task}");
        assert!(task["ttl"].is_null() && task["task"].is_null(), "{task}");
        for _ in 0..2 {
            let ended = visitor.becomes(&task, "completed").await;
            let result = &ended["result"];
            assert_eq!((&result["content"][0]["text"], &result["resultType"]), (&json!("well"), &json!("complete")));
            assert_eq!(result["_meta"].get(format!("{META}related-task")), None, "{result}");
        }
        let complaint = visitor.make("a_task_required", json!({"fail": "tool", "text": "no"})).await;
        let ended = visitor.becomes(&complaint, "completed").await;
        assert_eq!(ended["result"]["isError"], true, "{ended}");
        let broken = visitor.make("a_task_required", json!({"fail": "error", "text": "broken"})).await;
        let ended = visitor.becomes(&broken, "failed").await;
        assert_eq!(ended["error"]["message"], "broken", "{ended}");
        let endless = visitor.make("a_task_required", json!({"polls": 1000})).await;
        for _ in 0..2 {
            let cancelled = visitor.about("tasks/cancel", &endless).await;
            assert_eq!(cancelled["result"]["resultType"], "complete", "{cancelled}");
        }
        visitor.becomes(&endless, "cancelled").await;
        let optional = visitor.try_call("a_task_slow", json!({"text": "plain"})).await;
        assert_eq!(optional["result"]["resultType"], "complete", "{optional}");
    }
}

#[tokio::test]
async fn task1_a_newer_client_is_asked_what_a_task_of_an_older_server_wants() {
    for over in OVERS {
        let scene = Scene::start(over, "legacy").await;
        let visitor = scene.visitor();
        let task = visitor.make("a_task_required", json!({"ask": true})).await;
        let asked = eventually("the task asks", || async {
            let asked = visitor.becomes(&task, "input_required").await["inputRequests"].clone();
            asked.as_object().filter(|asked| !asked.is_empty()).cloned()
        })
        .await;
        let (key, question) = asked.iter().next().expect("a question");
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let again = visitor.becomes(&task, "input_required").await;
        assert_eq!(again["inputRequests"], json!(asked), "it asks once");
        let params = json!({ "taskId": task["taskId"], "inputResponses": { key: ada() } });
        let updated = visitor.request("tasks/update", params).await;
        assert_eq!(updated["result"]["resultType"], "complete", "{updated}");
        let ended = visitor.becomes(&task, "completed").await;
        assert!(names_ada(&ended["result"]), "{ended}");
    }
}

#[tokio::test]
async fn task1_who_knows_no_tasks_waits_for_the_result() {
    for over in OVERS {
        let scene = Scene::start(over, "legacy").await;
        let stranger = scene.stranger();
        let plain = stranger.try_call("a_task_required", json!({"polls": 3, "text": "well"})).await;
        let result = &plain["result"];
        assert_eq!((&result["content"][0]["text"], &result["resultType"]), (&json!("well"), &json!("complete")));
        assert_eq!(result["_meta"].get(format!("{META}related-task")), None, "{result}");
        let older = scene.gateway.client_of("2025-03-26").await;
        assert_eq!(older.call_text("a_task_required", json!({"polls": 3, "text": "old"})).await, "old");
        let broken = stranger.try_call("a_task_required", json!({"fail": "error", "text": "broken"})).await;
        assert_eq!(broken["error"]["message"], "broken", "{broken}");
        // The input requests of the task are like those of any tool.
        let asked = stranger.try_call("a_task_required", json!({"ask": true})).await["result"].clone();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let key = asked["inputRequests"].as_object().and_then(|asked| asked.keys().next()).expect("a key").clone();
        let params = json!({
            "name": "a_task_required", "arguments": {"ask": true},
            "inputResponses": { key: ada() }, "requestState": asked["requestState"],
        });
        let ended = stranger.request("tools/call", params).await;
        assert!(names_ada(&ended["result"]), "{ended}");
    }
}

#[tokio::test]
async fn task1_who_does_not_wait_any_more_takes_the_task_back() {
    let scene = Scene::start(Over::Http, "legacy").await;
    let stranger = scene.stranger();
    let waiting = tokio::spawn({
        let stranger = stranger.clone();
        async move { stranger.try_call("a_task_required", json!({"polls": 100_000, "interval": 50})).await }
    });
    eventually("the task is made", || async { (!scene.natives().await.is_empty()).then_some(()) }).await;
    assert_eq!(scene.natives().await[0].1, "working");
    waiting.abort();
    eventually("the task is cancelled", || async { (scene.natives().await[0].1 == "cancelled").then_some(()) }).await;
}

#[tokio::test]
async fn task1_an_older_client_gets_a_task_of_a_newer_server() {
    for over in OVERS {
        let scene = Scene::start(over, "modern").await;
        let client = scene.client().await;
        let task = client.make_task("a_task_required", json!({"polls": 3, "text": "well"}), json!({})).await;
        assert_ne!(task["taskId"], scene.natives().await[0].0);
        assert_eq!((&task["ttl"], &task["pollInterval"]), (&json!(60000), &json!(20)), "{task}");
        assert!(task["ttlMs"].is_null() && task["resultType"].is_null(), "{task}");
        let seen = client.about("tasks/get", &task).await["result"].clone();
        assert_eq!((&seen["taskId"], &seen["status"]), (&task["taskId"], &json!("working")), "{seen}");
        let result = client.about("tasks/result", &task).await["result"].clone();
        assert_eq!(result["content"][0]["text"], "well", "{result}");
        assert_eq!(result["_meta"], json!({ format!("{META}related-task"): { "taskId": task["taskId"] } }), "{result}");
        assert!(result["resultType"].is_null(), "{result}");
        let seen = client.about("tasks/get", &task).await["result"].clone();
        assert_eq!((&seen["status"], &seen["result"]), (&json!("completed"), &Value::Null), "{seen}");
        assert_eq!(client.request("tasks/list", json!({})).await["result"]["tasks"], json!([seen]));
        let over = client.about("tasks/cancel", &task).await;
        assert_eq!(over["error"]["code"], -32602, "{over}");
        let complaint = client.make_task("a_task_slow", json!({"fail": "tool", "text": "no"}), json!({})).await;
        assert_eq!(client.about("tasks/result", &complaint).await["result"]["isError"], true);
        assert_eq!(client.about("tasks/get", &complaint).await["result"]["status"], "failed");
        let broken = client.make_task("a_task_slow", json!({"fail": "error", "text": "broken"}), json!({})).await;
        assert_eq!(client.about("tasks/result", &broken).await["error"]["message"], "broken");
        let endless = client.make_task("a_task_slow", json!({"polls": 1000}), json!({})).await;
        let cancelled = client.about("tasks/cancel", &endless).await;
        assert_eq!(cancelled["result"]["status"], "cancelled", "{cancelled}");
        assert_eq!(client.call_text("a_task_slow", json!({"text": "plain"})).await, "plain");
    }
}

#[tokio::test]
async fn task1_an_older_client_is_asked_what_a_task_of_a_newer_server_wants() {
    for over in OVERS {
        let scene = Scene::start(over, "modern").await;
        let client = scene.client().await;
        let task = client.make_task("a_task_required", json!({"ask": true}), json!({})).await;
        let params = json!({ "taskId": task["taskId"] });
        let fetch = json!({"jsonrpc": "2.0", "id": "fetch", "method": "tasks/result", "params": params});
        let (_, mut stream) = client.open(fetch.to_string()).await;
        let ask = stream.await_method("elicitation/create").await;
        client.post(json!({"jsonrpc": "2.0", "id": ask["id"], "result": ada()}).to_string()).await;
        let answer = stream.next().await.expect("an answer");
        assert!(names_ada(&answer["result"]), "{answer}");
    }
}
