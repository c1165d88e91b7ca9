//! Helpers for the tests of subscriptions: subscribing, receiving updates, and querying the fixture.
//!
//! A fence resource proves that an update will not arrive any more, so no test waits for a timeout.

use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::client::inbox::Received;
use crate::harness::{Deadline, eventually};
use crate::transport_pairs::Stage;

pub const UPDATED: &str = "notifications/resources/updated";
pub const DELETED: &str = "notifications/resources/deleted";
pub const ACTIVE: &str = "mcp_resource_subscriptions_active";
/// A resource that is touched last. An update that did not arrive before it will not arrive.
const FENCE: &str = "note:///fence";

/// Returns the params of an update that the fixture sends for `uri`, as clients receive them.
pub fn touched(uri: &str, version: u64) -> String {
    format!(r#"{{"uri":"{uri}","version":{version},"x-extra":{{"odd":1.0}},"_meta":{{"dev.fixture/touched":1e0}}}}"#)
}

/// Returns the URIs and versions of updates in a short form.
pub fn short(updates: &[Value]) -> Vec<String> {
    let version = |params: &Value| params["version"].as_u64().map_or(String::new(), |version| format!(" {version}"));
    updates.iter().map(|params| format!("{}{}", params["uri"].as_str().expect("a URI"), version(params))).collect()
}

/// Asserts that a response is a subscription. Returns its `_meta`.
pub fn meta(answer: &Value) -> Value {
    let meta = &answer["result"]["_meta"];
    let id = meta["dev.goblin/subscriptionId"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(id.starts_with("urn:uuid:"), "{answer}");
    meta.clone()
}

/// Returns the params of a subscribe request that asks for the names of the subscription and changes nothing else.
pub fn named(uri: &str) -> Value {
    subscribe_params(uri, &json!({}))
}

/// Returns the params of a subscribe request with these options. The option names have no prefix. Without an option,
/// the request has one at its default value, so that the result has the names of the subscription.
pub fn subscribe_params(uri: &str, options: &Value) -> Value {
    let options = options.as_object().expect("an object").iter();
    let mut options: serde_json::Map<_, _> =
        options.map(|(name, value)| (format!("dev.goblin/{name}"), value.clone())).collect();
    if options.is_empty() {
        options.insert("dev.goblin/priority".to_owned(), json!(0));
    }
    json!({ "uri": uri, "_meta": options })
}

impl Client {
    /// Subscribes with an option that only requests the names of the subscription.
    pub async fn subscribe(&self, uri: &str) -> Value {
        meta(&self.request("resources/subscribe", named(uri)).await)
    }

    /// Subscribes with these options. The option names have no prefix.
    pub async fn subscribe_with(&self, uri: &str, options: Value) -> Value {
        meta(&self.request("resources/subscribe", subscribe_params(uri, &options)).await)
    }

    pub async fn unsubscribe(&self, uri: &str) {
        let answer = self.request("resources/unsubscribe", json!({ "uri": uri })).await;
        assert_eq!(answer["result"], json!({}), "{uri}: {answer}");
    }

    pub async fn touch(&self, uri: &str, count: u64) {
        self.call_text("a_touch", &json!({"uri": uri, "count": count}).to_string()).await;
    }

    /// Makes the server send an update with these params.
    pub async fn send_update(&self, params: &str) {
        self.call_text("a_notify", &format!(r#"{{"method":"{UPDATED}","params":{params}}}"#)).await;
    }

    /// Changes the resources of the fixture.
    pub async fn change(&self, change: Value) {
        self.call_text("a_change_resources", &change.to_string()).await;
    }

    /// Lists these resources from now on, and waits until the gateway lists them.
    pub async fn define(&self, natives: &[&str]) {
        for native in natives {
            self.change(json!({ "define": native })).await;
        }
        for native in natives {
            self.lists(&format!("a+{native}"), true).await;
        }
    }

    /// Waits until the gateway lists this resource, or no longer lists it.
    pub async fn lists(&self, uri: &str, is_listed: bool) {
        let deadline = Deadline::new();
        loop {
            let answer = self.request("resources/list", json!({})).await;
            let resources = answer["result"]["resources"].as_array().unwrap_or_else(|| panic!("{answer}"));
            if resources.iter().any(|resource| resource["uri"] == uri) == is_listed {
                return;
            }
            deadline.pause(&format!("{}: {uri} is listed: {is_listed}", self.name)).await;
        }
    }

    /// Returns the next update.
    pub async fn updated(&self) -> Received {
        self.notification(UPDATED).await
    }

    /// Returns all updates up to one that is made now.
    pub async fn updates(&self) -> Vec<Value> {
        let fence = format!("a+{FENCE}");
        self.subscribe(&fence).await;
        self.touch(FENCE, 1).await;
        let mut updates = Vec::new();
        loop {
            let params = self.updated().await.json()["params"].clone();
            if params["uri"] == fence {
                self.unsubscribe(&fence).await;
                return updates;
            }
            updates.push(params);
        }
    }

    /// Returns the subscribe and unsubscribe requests that the server received, as `+` and `-` with the URI. The fences
    /// are excluded.
    pub async fn upstream_requests(&self) -> Vec<String> {
        without_fences(&self.call_text("a_subscribed", "{}").await)
    }

    /// Waits until the server has received exactly these requests.
    pub async fn await_upstream(&self, expected: &[&str]) {
        self.await_upstream_in(expected, |requests| requests).await;
    }

    /// Waits until the server has received exactly these requests, in any order.
    pub async fn await_upstream_unordered(&self, expected: &[&str]) {
        let sorted = |mut requests: Vec<String>| {
            requests.sort();
            requests
        };
        self.await_upstream_in(expected, sorted).await;
    }

    async fn await_upstream_in(&self, expected: &[&str], order: fn(Vec<String>) -> Vec<String>) {
        let expected = order(expected.iter().map(|entry| (*entry).to_owned()).collect());
        let deadline = Deadline::new();
        loop {
            let requests = order(self.upstream_requests().await);
            if requests == expected {
                return;
            }
            deadline.pause(&format!("{}: the server receives {expected:?}, not {requests:?}", self.name)).await;
        }
    }
}

pub fn without_fences(text: &str) -> Vec<String> {
    let requests: Vec<String> = serde_json::from_str(text).expect("a list");
    requests.into_iter().filter(|entry| !entry.ends_with(FENCE)).collect()
}

/// Waits until the server has received exactly these requests, for a client without a stream.
pub async fn await_upstream(client: &Client, expected: &[&str]) {
    eventually(&format!("the server received {expected:?}"), || async {
        let requests = without_fences(&client.call_text("a_subscribed", json!({})).await);
        (requests == expected).then_some(())
    })
    .await;
}

pub async fn subscribe(client: &Client, uri: &str, options: Value) -> Value {
    meta(&client.request("resources/subscribe", subscribe_params(uri, &options)).await)
}

pub async fn touch(client: &Client, uri: &str, count: u64) {
    client.call("a_touch", json!({"uri": uri, "count": count})).await;
}

/// Waits until the server has exactly these subscriptions.
pub async fn subscribed_upstream(client: &Client, expected: &str) {
    eventually(&format!("{expected} is subscribed to"), || async {
        (client.call_text("a_subscriptions", json!({})).await == expected).then_some(())
    })
    .await;
}

impl Stage {
    /// Waits until there are this many subscriptions.
    pub async fn has_subscriptions(&self, count: u64) {
        self.metric_becomes(ACTIVE, count).await;
    }
}

/// Returns all subscriptions in the operators' view: the URI and the state.
pub async fn states(address: std::net::SocketAddr) -> Vec<(String, String)> {
    let answer = get_admin(&Client::new(address), "/api/subscriptions").await;
    let list: Value = serde_json::from_str(&answer.body).expect("JSON");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let subscriptions = list["subscriptions"].as_array().expect("an array").iter();
    subscriptions.map(|subscription| (text(&subscription["uri"]), text(&subscription["state"]))).collect()
}

/// Waits until the subscriptions have these states.
pub async fn states_become(address: std::net::SocketAddr, expected: &[(&str, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(uri, state)| ((*uri).to_owned(), (*state).to_owned())).collect();
    eventually(&format!("the subscriptions are {expected:?}"), || async {
        (states(address).await == expected).then_some(())
    })
    .await;
}
