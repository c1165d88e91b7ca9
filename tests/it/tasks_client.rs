//! Helpers for the tests of tasks: of 2025-11-25, and of the extension of 2026-07-28 with its independent requests.
//!
//! `tasks`, `tasks_bridge` and `tasks_modern` use them.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::modern::META;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, eventually, fixture_server};

/// The transport between the fixture with tasks and the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Stdio,
    Http,
}

/// A gateway with a server `a` that has tasks, in this era.
pub struct Scene {
    pub gateway: Gateway,
    _fixture: Option<HttpFixture>,
}

impl Scene {
    pub async fn start(over: Over, era: &str) -> Scene {
        let switches = ["--tasks", "--era", era];
        let (server, fixture) = match over {
            Over::Stdio => (fixture_server(&switches), None),
            Over::Http => {
                let fixture = HttpFixture::start(&switches).await;
                (fixture.server(), Some(fixture))
            }
        };
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        gateway.client_seeing("a_task_slow").await;
        Scene { gateway, _fixture: fixture }
    }

    /// Returns a scene with any gateway.
    pub fn of(gateway: Gateway) -> Scene {
        Scene { gateway, _fixture: None }
    }

    /// Waits until this many streams at the server include tasks.
    pub async fn listens(&self, count: usize) {
        eventually(&format!("{count} streams include tasks"), || async {
            let text = self.client_without_tasks().call_text("a_listens", json!({})).await;
            (text.matches("taskIds").count() == count).then_some(())
        })
        .await;
    }

    /// Returns a client of 2025-11-25 with elicitation.
    pub async fn client(&self) -> Client {
        let mut client = Client::new(self.gateway.address);
        client.initialize_with("2025-11-25", json!({ "elicitation": {} })).await;
        client
    }

    /// Returns a client of the extension with elicitation.
    pub fn modern_client(&self) -> Client {
        let capabilities = json!({ "elicitation": {}, "extensions": { format!("{META}tasks"): {} } });
        Client::modern(self.gateway.address, capabilities)
    }

    /// Returns a client of 2026-07-28 with elicitation but without tasks.
    pub fn client_without_tasks(&self) -> Client {
        Client::modern(self.gateway.address, json!({ "elicitation": {} }))
    }

    /// Returns the server's tasks: the native ids and the states.
    pub async fn backend_tasks(&self) -> Vec<(String, String)> {
        let text = self.client_without_tasks().call_text("a_tasks", json!({})).await;
        let tasks: Vec<Value> = serde_json::from_str(&text).expect("a list");
        let text_member = |task: &Value, key: &str| task[key].as_str().expect("a text").to_owned();
        tasks.iter().map(|task| (text_member(task, "taskId"), text_member(task, "status"))).collect()
    }
}

impl Client {
    /// Calls a tool as a task of 2025-11-25 and returns the task.
    pub async fn create_task(&self, tool: &str, arguments: Value, task: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments, "task": task });
        let answer = self.request("tools/call", params).await;
        assert!(answer["result"]["task"].is_object(), "{answer}");
        answer["result"]["task"].clone()
    }

    /// Calls a tool that becomes a task of 2026-07-28 and returns the task.
    pub async fn create_modern_task(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.try_call(tool, arguments).await;
        assert_eq!(answer["result"]["resultType"], "task", "{answer}");
        answer["result"].clone()
    }

    /// Sends a request about a task and returns the whole response.
    pub async fn request_about(&self, method: &str, task: &Value) -> Value {
        self.request(method, json!({ "taskId": task["taskId"] })).await
    }

    /// Waits until a task of 2026-07-28 has this status, and returns the task.
    pub async fn await_status(&self, task: &Value, status: &str) -> Value {
        eventually(&format!("{task} is {status}"), || async {
            let answer = self.request_about("tasks/get", task).await;
            assert_eq!(answer["result"]["taskId"], task["taskId"], "{answer}");
            assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
            (answer["result"]["status"] == status).then(|| answer["result"].clone())
        })
        .await
    }
}
