//! A client of the gateway's own tools, over either era and over stdio. All of them must receive the same results.

use serde_json::{Value, json};

use crate::harness::{Client, Gateway, StdioClient, servers_only};
use crate::modern_client::ModernClient;

/// The plain names of all tools, in the order of the list.
pub const NAMES: [&str; 12] = [
    "search_tools",
    "describe_tool",
    "call_tool",
    "catalog_tools",
    "search_resources",
    "describe_resource",
    "catalog_resources",
    "catalog_resource_templates",
    "search_prompts",
    "describe_prompt",
    "catalog_prompts",
    "list_servers",
];

pub enum Asker {
    Session(Client),
    Visitor(ModernClient),
    Pipe(Box<StdioClient>),
}

impl Asker {
    /// Returns one client of each kind, after all servers of `config` are ready: those with these tools.
    pub async fn all(gateway: &Gateway, config: &Value, tools: &[&str]) -> Vec<Asker> {
        let session = gateway.client().await;
        let mut pipe = StdioClient::initialized(servers_only(config.clone()), "2025-11-25").await;
        for tool in tools {
            session.await_tool(tool).await;
            pipe.await_tool(tool).await;
        }
        let visitor = ModernClient::new(gateway.address);
        vec![Asker::Session(session), Asker::Visitor(visitor), Asker::Pipe(Box::new(pipe))]
    }

    pub fn name(&self) -> &'static str {
        match self {
            Asker::Session(_) => "session",
            Asker::Visitor(_) => "visitor",
            Asker::Pipe(_) => "pipe",
        }
    }

    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        match self {
            Asker::Session(client) => client.request(method, params).await,
            Asker::Visitor(client) => client.request(method, params).await,
            Asker::Pipe(client) => client.request(method, params).await,
        }
    }

    /// Calls a tool and returns its result, which may be a tool error.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert!(answer["error"].is_null(), "{} {tool}: {answer}", self.name());
        answer["result"].clone()
    }

    /// Calls a tool and returns its structured content. Asserts that there is a text too.
    pub async fn ask(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        assert!(result["isError"].is_null(), "{} {tool}: {result}", self.name());
        assert_eq!(result["content"].as_array().map(Vec::len), Some(1), "{result}");
        assert!(!text(&result).is_empty(), "{result}");
        result["structuredContent"].clone()
    }
}

/// Returns the text of a result.
pub fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {result}"))
}

/// Returns one member of all cards.
pub fn column<'a>(cards: &'a Value, key: &str) -> Vec<&'a str> {
    let cards = cards.as_array().unwrap_or_else(|| panic!("no cards: {cards}"));
    cards.iter().map(|card| card[key].as_str().unwrap_or_else(|| panic!("no {key} in {card}"))).collect()
}
