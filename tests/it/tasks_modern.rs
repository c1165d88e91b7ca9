//! TASK-1 with 2026-07-28 on both sides: the tasks extension, with ids of the gateway.
//!
//! Both sides must declare the extension.

use serde_json::{Value, json};

use crate::client::http::Listener;
use crate::client::modern::META;
use crate::harness::{Gateway, fixture_server};
use crate::tasks_client::{Over, Scene};

fn subscription(message: &Value) -> &Value {
    &message["params"]["_meta"][format!("{META}subscriptionId")]
}

#[tokio::test]
async fn task1_a_task_of_the_extension_has_an_id_of_the_gateway() {
    for over in [Over::Stdio, Over::Http] {
        let scene = Scene::start(over, "modern").await;
        let modern_client = scene.modern_client();
        let task = modern_client.create_modern_task("a_task_slow", json!({"polls": 3, "text": "well"})).await;
        let backend_tasks = scene.backend_tasks().await;
        assert_ne!(task["taskId"], backend_tasks[0].0, "{over:?}");
        assert_eq!((&task["status"], &task["ttlMs"]), (&json!("working"), &json!(60000)), "{task}");
        let ended = modern_client.await_status(&task, "completed").await;
        assert_eq!(ended["result"]["content"][0]["text"], "well", "{ended}");
        let failing = modern_client.create_modern_task("a_task_slow", json!({"fail": "error", "text": "broken"})).await;
        let ended = modern_client.await_status(&failing, "failed").await;
        assert_eq!(ended["error"]["message"], "broken", "{ended}");
        let native = modern_client.request("tasks/get", json!({ "taskId": backend_tasks[0].0 })).await;
        assert_eq!(native["error"]["code"], -32602, "{native}");
    }
}

#[tokio::test]
async fn task1_a_task_of_the_extension_requests_input_and_can_be_cancelled() {
    for over in [Over::Stdio, Over::Http] {
        let scene = Scene::start(over, "modern").await;
        let modern_client = scene.modern_client();
        let task = modern_client.create_modern_task("a_task_required", json!({"elicit": true})).await;
        let waiting = modern_client.await_status(&task, "input_required").await;
        assert_eq!(waiting["inputRequests"]["request-1"]["method"], "elicitation/create", "{waiting}");
        let answers = json!({"request-1": {"action": "accept", "content": {"name": "Ada"}}});
        let params = json!({ "taskId": task["taskId"], "inputResponses": answers });
        let updated = modern_client.request("tasks/update", params).await;
        assert_eq!(updated["result"]["resultType"], "complete", "{updated}");
        let ended = modern_client.await_status(&task, "completed").await;
        assert!(ended["result"]["content"][0]["text"].as_str().is_some_and(|text| text.contains("Ada")), "{ended}");
        let endless = modern_client.create_modern_task("a_task_slow", json!({"polls": 1000})).await;
        for _ in 0..2 {
            let cancelled = modern_client.request_about("tasks/cancel", &endless).await;
            assert_eq!(cancelled["result"]["resultType"], "complete", "{cancelled}");
        }
        modern_client.await_status(&endless, "cancelled").await;
    }
}

#[tokio::test]
async fn task1_tasks_require_the_extension_on_both_sides() {
    let scene = Scene::start(Over::Http, "modern").await;
    let (modern_client, client_without_tasks) = (scene.modern_client(), scene.client_without_tasks());
    let extensions = |answer: &Value| answer["result"]["capabilities"]["extensions"][format!("{META}tasks")].clone();
    assert_eq!(extensions(&modern_client.request("server/discover", json!({})).await), json!({}));
    let plain = client_without_tasks.try_call("a_task_slow", json!({"text": "plain"})).await;
    assert_eq!(plain["result"]["resultType"], "complete", "{plain}");
    let task = modern_client.create_modern_task("a_task_slow", json!({"polls": 1000})).await;
    let required = json!({ "extensions": { format!("{META}tasks"): {} } });
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let answer = client_without_tasks
            .send_draft(&client_without_tasks.draft(method, json!({ "taskId": task["taskId"] })))
            .await;
        assert_eq!(answer.status, 400, "{answer:?}");
        let error = &answer.json()["error"];
        assert_eq!((&error["code"], &error["data"]["requiredCapabilities"]), (&json!(-32021), &required), "{error}");
        let misnamed = modern_client.draft(method, json!({ "taskId": task["taskId"] })).with("mcp-name", "task-other");
        let answer = modern_client.send_draft(&misnamed).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (400, &json!(-32020)), "{answer:?}");
        let answer = modern_client.send_draft(&modern_client.draft(method, json!({ "taskId": "task-other" }))).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (200, &json!(-32602)), "{answer:?}");
    }
    for method in ["tasks/result", "tasks/list"] {
        let answer = modern_client.send_draft(&modern_client.draft(method, json!({ "taskId": task["taskId"] }))).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (404, &json!(-32601)), "{answer:?}");
    }
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--era", "modern"]) })).await;
    gateway.client_seeing("a_echo").await;
    let without = Scene::of(gateway).modern_client().request("server/discover", json!({})).await;
    assert_eq!(extensions(&without), Value::Null, "{without}");
}

async fn acknowledged(stream: &mut Listener) -> Value {
    let first = stream.next().await.expect("an acknowledgement");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    first["params"]["notifications"].clone()
}

#[tokio::test]
async fn task1_a_listener_of_a_task_receives_its_status_changes() {
    for over in [Over::Stdio, Over::Http] {
        let scene = Scene::start(over, "modern").await;
        let modern_client = scene.modern_client();
        let task = modern_client.create_modern_task("a_task_required", json!({"elicit": true})).await;
        let other = modern_client.create_modern_task("a_task_slow", json!({"polls": 1000})).await;
        // Both streams have the same id.
        let listen = async |ids: Value| {
            let draft = modern_client.draft("subscriptions/listen", json!({ "notifications": { "taskIds": ids } }));
            modern_client.open_draft(&draft.changed(|body| body["id"] = json!("v-1"))).await
        };
        let (_, mut stream) = listen(json!([task["taskId"], "task-unknown"])).await;
        assert_eq!(acknowledged(&mut stream).await, json!({ "taskIds": [task["taskId"]] }));
        let (_, mut others) = listen(json!([other["taskId"]])).await;
        assert_eq!(acknowledged(&mut others).await, json!({ "taskIds": [other["taskId"]] }));
        scene.listens(2).await;
        let answers = json!({"request-1": {"action": "accept", "content": {"name": "Ada"}}});
        let params = json!({ "taskId": task["taskId"], "inputResponses": answers });
        modern_client.request("tasks/update", params).await;
        for status in ["working", "completed"] {
            let notification = stream.next().await.expect("a text");
            assert_eq!(notification["method"], "notifications/tasks", "{notification}");
            assert_eq!(
                (&notification["params"]["taskId"], subscription(&notification)),
                (&task["taskId"], &json!("v-1")),
                "{notification}"
            );
            assert_eq!(notification["params"]["status"], status, "{notification}");
        }
        modern_client.request_about("tasks/cancel", &other).await;
        let notification = others.next().await.expect("a text");
        assert_eq!(
            (&notification["params"]["taskId"], &notification["params"]["status"]),
            (&other["taskId"], &json!("cancelled"))
        );
        drop((stream, others));
        scene.listens(0).await;
    }
    let scene = Scene::start(Over::Stdio, "modern").await;
    let params = json!({ "notifications": { "taskIds": ["task-unknown"] } });
    let rejected = scene
        .client_without_tasks()
        .send_draft(&scene.client_without_tasks().draft("subscriptions/listen", params))
        .await;
    assert_eq!((rejected.status.as_u16(), &rejected.json()["error"]["code"]), (400, &json!(-32021)), "{rejected:?}");
}
