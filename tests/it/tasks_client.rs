//! Clients that create tasks: of 2025-11-25, and of the extension of 2026-07-28 with its independent requests.
//!
//! `tasks`, `tasks_bridge` and `tasks_modern` use them.

use http::Method;
use http::response::Parts;
use serde_json::{Value, json};

use crate::fixture_http::HttpFixture;
use crate::harness::{Answer, Client, Gateway, Listener, eventually, fixture_server};

pub const META: &str = "io.modelcontextprotocol/";

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
        eventually(&format!("{count} streams tell of tasks"), || async {
            let told = self.stranger().call("a_listens", json!({})).await;
            let text = told["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
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
    pub fn visitor(&self) -> Visitor {
        let capabilities = json!({ "elicitation": {}, "extensions": { format!("{META}tasks"): {} } });
        Visitor { client: Client::new(self.gateway.address), capabilities }
    }

    /// Returns a client of 2026-07-28 with elicitation but without tasks.
    pub fn stranger(&self) -> Visitor {
        Visitor { capabilities: json!({ "elicitation": {} }), ..self.visitor() }
    }

    /// Returns the server's tasks: the native ids and the states.
    pub async fn natives(&self) -> Vec<(String, String)> {
        let told = self.stranger().call("a_tasks", json!({})).await;
        let text = told["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
        let tasks: Vec<Value> = serde_json::from_str(&text).expect("a list");
        let word = |task: &Value, key: &str| task[key].as_str().expect("a word").to_owned();
        tasks.iter().map(|task| (word(task, "taskId"), word(task, "status"))).collect()
    }
}

impl Client {
    /// Calls a tool as a task and returns the task.
    pub async fn make(&self, tool: &str, arguments: Value, task: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments, "task": task });
        let answer = self.request("tools/call", params).await;
        assert!(answer["result"]["task"].is_object(), "{answer}");
        answer["result"]["task"].clone()
    }

    /// Sends a request about a task and returns the whole response.
    pub async fn about(&self, method: &str, task: &Value) -> Value {
        self.request(method, json!({ "taskId": task["taskId"] })).await
    }
}

/// A client without a session.
#[derive(Clone)]
pub struct Visitor {
    client: Client,
    pub capabilities: Value,
}

impl Visitor {
    fn message(&self, method: &str, mut params: Value) -> Value {
        params["_meta"][format!("{META}protocolVersion")] = json!("2026-07-28");
        params["_meta"][format!("{META}clientCapabilities")] = self.capabilities.clone();
        json!({ "jsonrpc": "2.0", "id": "v-1", "method": method, "params": params })
    }

    fn headers<'a>(message: &'a Value, name: Option<&'a str>) -> Vec<(&'static str, &'a str)> {
        let params = &message["params"];
        let named = ["name", "uri", "taskId"].iter().find_map(|key| params[key].as_str());
        let mut headers = vec![
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", message["method"].as_str().expect("a method")),
        ];
        headers.extend(name.or(named).map(|name| ("mcp-name", name)));
        headers
    }

    /// Sends a request with `name` in its header instead of the name in the body.
    pub async fn send(&self, method: &str, params: Value, name: Option<&str>) -> Answer {
        let message = self.message(method, params);
        self.client.send(Method::POST, "/mcp", &Visitor::headers(&message, name), message.to_string()).await
    }

    pub async fn request(&self, method: &str, params: Value) -> Value {
        let answer = self.send(method, params, None).await.json();
        assert_eq!(answer["id"], "v-1", "{answer}");
        answer
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Calls a tool that becomes a task and returns the task.
    pub async fn make(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.call(tool, arguments).await;
        assert_eq!(answer["result"]["resultType"], "task", "{answer}");
        answer["result"].clone()
    }

    /// Sends a request about a task and returns the whole response.
    pub async fn about(&self, method: &str, task: &Value) -> Value {
        self.request(method, json!({ "taskId": task["taskId"] })).await
    }

    /// Waits until a task has this status, and returns the task.
    pub async fn becomes(&self, task: &Value, status: &str) -> Value {
        eventually(&format!("{task} is {status}"), || async {
            let answer = self.about("tasks/get", task).await;
            assert_eq!(answer["result"]["taskId"], task["taskId"], "{answer}");
            assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
            (answer["result"]["status"] == status).then(|| answer["result"].clone())
        })
        .await
    }

    pub async fn open(&self, method: &str, params: Value) -> (Parts, Listener) {
        let message = self.message(method, params);
        self.client.open_with(&Visitor::headers(&message, None), message.to_string()).await
    }
}
