//! Clients of the gateway's own tools, of either era and over stdio. All of them must receive the same results.

use serde_json::{Value, json};

use crate::client::{Client, NEWEST_LEGACY};
use crate::harness::{Gateway, servers_only};

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

/// Returns one client of each kind, after all servers of `config` are ready: those with these tools.
pub async fn clients_of_each_kind(gateway: &Gateway, config: &Value, tools: &[&str]) -> Vec<Client> {
    let mut session = gateway.client().await;
    let mut pipe = Client::stdio(servers_only(config.clone())).connected(NEWEST_LEGACY).await;
    for tool in tools {
        session.await_tool(tool).await;
        pipe.await_tool(tool).await;
    }
    let mut stateless = Client::modern(gateway.address, json!({}));
    for (client, name) in [(&mut session, "session"), (&mut stateless, "stateless"), (&mut pipe, "pipe")] {
        name.clone_into(&mut client.name);
    }
    vec![session, stateless, pipe]
}

impl Client {
    /// Calls a tool and returns its structured content. Asserts that there is a text too.
    pub async fn call_structured(&self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        assert!(result["isError"].is_null(), "{} {tool}: {result}", self.name);
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
