//! Attacks on the filters of resources: no spelling of a URI reaches a resource that the filters deny in its plain
//! form.
//!
//! The error must equal the one for an unknown resource, and no request may reach the backend. Legitimate encoded URIs
//! must still work.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::hostile::{Attack, HEALTHY};
use crate::raw_server::response;
use crate::scripted_backend::{Reply, Scripted, Seen};
use crate::subscriber::{UPDATED, await_upstream, subscribe};
use crate::support::{assert_error, http_server};

/// The memory limit of the gateway in MiB. These attacks are small.
const CEILING: u64 = 256;
/// The requests that can reach a backend.
const REACHING: [&str; 3] = ["resources/read", "resources/subscribe", "completion/complete"];

/// Spellings of `file:///secret`. At least one server treats each of them as that URI.
const SPELLINGS: [&str; 34] = [
    "file:///secret",
    "file:///s%65cret",
    "file:///%73%65%63%72%65%74",
    "file:///s%2565cret",
    "file:///s%252565cret",
    "file:///public/../secret",
    "file:///x/y/../../secret",
    "file:///../secret",
    "file:///public/%2e%2e/secret",
    "file:///public%2F..%2Fsecret",
    "file:///..%2fsecret",
    "file:///public%252F%252e%252e%252Fsecret",
    "file:///x%2Fy/../secret",
    "file:///public//../secret",
    "file:///public\\..\\secret",
    "file:///./secret",
    "file:////secret",
    "file:///secret/",
    "file:///secret/.",
    "FILE:///secret",
    "File://LOCALHOST/secret",
    "file:/secret",
    "file:secret",
    "file://localhost/secret",
    "file://127.0.0.1/secret",
    "file://elsewhere/secret",
    "%66ile:///secret",
    "file:///secret?x",
    "file:///secret%3Fx",
    "file:///secret#x",
    "file:///secret%23",
    "file:///secret;x",
    "file:///secret%00.txt",
    "file:///secret%20",
];

/// URIs that begin with `file:///public/` but resolve to a path outside of it.
const DETOURS: [&str; 7] = [
    "file:///public/../secret",
    "file:///public/%2e%2e/secret",
    "file:///public/..%2Fsecret",
    "file:///public/%252e%252e%252fsecret",
    "file:///public/..\\secret",
    "file:///public/x%2Fy/../../../secret",
    "file:///public/?/../../secret",
];

/// URIs with encoded characters that a filter admits.
const LEGITIMATE: [&str; 5] = [
    "file:///public/a%20b",
    "file:///public/caf%C3%A9",
    "file:///public/C%23.md",
    "file:///public/a%2Fb",
    "file:///public/100%25",
];

/// Starts a server, optionally with a template that covers every URI. Its list has the denied resource in two spellings.
async fn backend(has_template: bool) -> Scripted {
    let listed = |uri: &str| json!({ "uri": uri, "name": uri });
    Scripted::start(move |seen: &Seen, _| match seen.method() {
        "initialize" => seen.result(json!({
            "protocolVersion": "2025-06-18", "serverInfo": { "name": "s", "version": "0" },
            "capabilities": { "resources": { "subscribe": true }, "completions": {} },
        })),
        "resources/list" => seen.result(json!({ "resources": [
            listed("file:///public/a%20b"), listed("file:///secret"), listed("file:///public/../s%65cret"),
        ] })),
        "resources/templates/list" => {
            let template = has_template.then(|| json!({ "uriTemplate": "{+any}", "name": "any" }));
            seen.result(json!({ "resourceTemplates": template.as_slice() }))
        }
        "resources/read" => {
            let uri = &seen.message["params"]["uri"];
            seen.result(json!({ "contents": [{ "uri": uri, "text": "content" }] }))
        }
        "resources/subscribe" | "resources/unsubscribe" => seen.result(json!({})),
        "completion/complete" => seen.result(json!({ "completion": { "values": ["content"] } })),
        "notifications/initialized" => Reply::Bytes(response("202 Accepted", "", "")),
        _ => Reply::Bytes(response("405 Method Not Allowed", "", "")),
    })
    .await
}

struct Target {
    gateway: Gateway,
    backend: Scripted,
    client: Client,
}

impl Target {
    /// Starts a gateway with these filters for the server and for the client's profile.
    async fn start(server: Value, profile: Value) -> Target {
        Target::with(backend(true).await, server, profile, "reject").await
    }

    async fn with(backend: Scripted, server: Value, profile: Value, unlisted: &str) -> Target {
        let mut attacked = http_server(backend.address);
        attacked["unlisted"] = json!(unlisted);
        attacked["resources"] = server;
        let gateway = Gateway::start(json!({
            "profiles": { "p": { "servers": ["s"], "resources": profile }, "other": { "servers": [HEALTHY] } },
            "mcpServers": { "s": attacked, HEALTHY: fixture_server(&[]) },
        }))
        .await;
        let mut client = Client::new(gateway.address).at("/mcp/p/p");
        client.initialize("2025-11-25").await;
        eventually("the server is listed", || async {
            let resources = client.list("resources/list", "resources").await;
            (!resources.is_empty()).then_some(())
        })
        .await;
        Target { gateway, backend, client }
    }

    /// Returns the requests that reached the backend, besides its lists.
    fn reached(&self) -> Vec<Seen> {
        self.backend.seen().into_iter().filter(|seen| REACHING.contains(&seen.method())).collect()
    }

    async fn listed(&self) -> Vec<Value> {
        let listed = self.client.list("resources/list", "resources").await;
        listed.into_iter().map(|entry| entry["uri"].clone()).collect()
    }
}

fn requests(uri: &str) -> [(&'static str, Value); 3] {
    let reference = json!({ "type": "ref/resource", "uri": uri });
    [
        ("resources/read", json!({ "uri": uri })),
        ("resources/subscribe", json!({ "uri": uri })),
        ("completion/complete", json!({ "ref": reference, "argument": { "name": "any", "value": "" } })),
    ]
}

/// Returns the error with the client's URI replaced.
fn blank(answer: &Value, uri: &str) -> Value {
    let error = &answer["error"];
    let message = error["message"].as_str().unwrap_or_default().replace(uri, "URI");
    let is_same = error["data"]["uri"] == uri;
    json!([error["code"], message, error["data"]["code"], is_same, error["data"].as_object().map(|data| data.len())])
}

/// Asserts that every way to name these URIs returns the error for an unknown resource, and that no request reaches the
/// backend.
async fn assert_unreachable(target: &Target, spellings: &[&str]) {
    let mut other = Client::new(target.gateway.address).at("/mcp/p/other");
    other.initialize("2025-11-25").await;
    let unknown = "s+file:///unknown";
    let mut missing = Vec::new();
    for (method, params) in requests(unknown) {
        let answer = other.request(method, params).await;
        let code = if method == "resources/read" { -32002 } else { -32602 };
        assert_error(&answer, code, "RESOURCE_NOT_FOUND");
        missing.push(blank(&answer, unknown));
    }
    let described = other.call("describe_resource", json!({ "uri": unknown })).await;
    assert_eq!(described["isError"], true, "{described}");
    for spelling in spellings {
        for uri in [format!("s+{spelling}"), format!("s+:{spelling}"), (*spelling).to_owned()] {
            for ((method, params), missing) in requests(&uri).into_iter().zip(&missing) {
                let answer = target.client.request(method, params).await;
                assert_eq!(blank(&answer, &uri), *missing, "{method} {uri}: {answer}");
            }
            let described = target.client.call("describe_resource", json!({ "uri": uri })).await;
            assert_eq!(described["isError"], true, "{uri}: {described}");
            assert!(described.to_string().contains("no resource"), "{uri}: {described}");
        }
        // A glob without matches is still a subscription, because it covers future resources.
        let answer = subscribe(&target.client, &format!("s+{spelling}"), json!({ "pattern": "glob" })).await;
        assert!(answer["dev.goblin/state"].is_null(), "{spelling}: {answer}");
    }
    assert!(target.reached().is_empty(), "{:?}", target.reached());
}

/// Asserts that URIs with encoded characters reach the backend as the client spells them.
async fn assert_reachable(target: &Target) {
    for native in LEGITIMATE {
        for (method, params) in requests(&format!("s+{native}")) {
            let answer = target.client.request(method, params).await;
            assert!(answer["result"].is_object(), "{method} {native}: {answer}");
            let seen = target.backend.of(method).pop().expect("the request reached the backend");
            let params = &seen.message["params"];
            let uri = if params["uri"].is_null() { &params["ref"]["uri"] } else { &params["uri"] };
            assert_eq!(uri, native, "{method}");
        }
    }
}

/// Asserts that patterns subscribe to the only listed resource that the filters admit.
async fn assert_patterns_match_exposed_only(target: &Target) {
    for (uri, kind) in [("s+file:///**", "glob"), ("s+:{+any}", "template")] {
        subscribe(&target.client, uri, json!({ "pattern": kind })).await;
    }
    let subscribed: Vec<_> = target.reached().iter().map(|seen| seen.message["params"]["uri"].clone()).collect();
    assert_eq!(subscribed, ["file:///public/a%20b"]);
}

#[tokio::test]
async fn hard1_no_spelling_reaches_a_resource_that_a_server_filter_denies() {
    let deny = json!({ "deny": ["file:///secret", "file:///secret/*"] });
    let target = Target::start(deny, json!(["*"])).await;
    let attack = Attack::begin("filters: deny of a server", &target.gateway).await;
    assert_eq!(target.listed().await, ["s+file:///public/a%20b"]);
    assert_unreachable(&target, &SPELLINGS).await;
    assert_patterns_match_exposed_only(&target).await;
    assert_reachable(&target).await;
    attack.end(CEILING).await;
}

#[tokio::test]
async fn hard1_no_spelling_reaches_a_resource_that_a_profile_denies() {
    let deny = json!({ "deny": ["s+file:///secret", "s+file:///secret/*"] });
    let target = Target::start(json!({}), deny).await;
    let attack = Attack::begin("filters: deny of a profile", &target.gateway).await;
    assert_eq!(target.listed().await, ["s+file:///public/a%20b"]);
    assert_unreachable(&target, &SPELLINGS).await;
    assert_patterns_match_exposed_only(&target).await;
    assert_reachable(&target).await;
    attack.end(CEILING).await;
}

#[tokio::test]
async fn hard1_no_detour_escapes_an_allow_list() {
    let (native, exposed) = (json!(["file:///public/*", "{+any}"]), json!(["s+file:///public/*", "s+:{+any}"]));
    for (server, profile) in [(json!({ "allow": native }), json!(["*"])), (json!({}), exposed)] {
        let target = Target::start(server, profile).await;
        let attack = Attack::begin("filters: allow", &target.gateway).await;
        assert_eq!(target.listed().await, ["s+file:///public/a%20b"]);
        assert_unreachable(&target, &[&SPELLINGS[..], &DETOURS[..]].concat()).await;
        assert_reachable(&target).await;
        attack.end(CEILING).await;
    }
}

#[tokio::test]
async fn hard1_d13_no_spelling_of_a_hidden_resource_is_forwarded() {
    let deny =
        |prefix: &str| json!({ "deny": [format!("{prefix}file:///secret"), format!("{prefix}file:///secret/*")] });
    for (server, profile) in
        [(deny(""), json!(["*"])), (json!({}), deny("s+")), (json!({ "allow": ["file:///public/*"] }), json!(["*"]))]
    {
        let target = Target::with(backend(false).await, server, profile, "forward").await;
        assert_eq!(target.listed().await, ["s+file:///public/a%20b"]);
        assert_unreachable(&target, &SPELLINGS).await;
        for native in LEGITIMATE {
            for (method, params) in requests(&format!("s+{native}")).into_iter().take(2) {
                let answer = target.client.request(method, params).await;
                assert!(answer["result"].is_object(), "{method} {native}: {answer}");
                let seen = target.backend.of(method).pop().expect("the request reached the backend");
                assert_eq!(seen.message["params"]["uri"], native, "{method}");
            }
        }
    }
}

#[tokio::test]
async fn hard1_subx1_a_pattern_subscribes_to_no_resource_that_the_profile_hides() {
    let gateway = Gateway::start(json!({
        "profiles": { "narrow": { "resources": { "deny": ["a+note:///b*"] } } },
        "mcpServers": { "a": fixture_server(&[]) },
    }))
    .await;
    let whole = gateway.client_seeing("a_echo").await;
    let mut narrow = Client::new(gateway.address).at("/mcp/p/narrow");
    narrow.initialize("2025-11-25").await;
    let mut stream = narrow.listen().await;
    let pattern = "a+note:///*";
    subscribe(&narrow, pattern, json!({ "pattern": "glob" })).await;
    await_upstream(&whole, &["+note:///alpha"]).await;

    // Resources that are added later, the hidden one first.
    for native in ["note:///bravo", "note:///charlie"] {
        whole.call("a_change_resources", json!({ "define": native })).await;
    }
    let update = stream.await_method(UPDATED).await;
    assert_eq!(update["params"]["uri"], "a+note:///charlie");
    await_upstream(&whole, &["+note:///alpha", "+note:///charlie"]).await;

    // Another client without filters uses the same pattern.
    subscribe(&whole, pattern, json!({ "pattern": "glob" })).await;
    eventually("the hidden resources are subscribed for the other client", || async {
        let requests = whole.call_text("a_subscribed", json!({})).await;
        (requests.contains("+note:///beta") && requests.contains("+note:///bravo")).then_some(())
    })
    .await;
    for native in ["note:///bravo", "note:///alpha"] {
        whole.call("a_touch", json!({ "uri": native })).await;
    }
    let update = stream.await_method(UPDATED).await;
    assert_eq!(update["params"]["uri"], "a+note:///alpha", "the update of the hidden resource was sent");
    whole.request("resources/unsubscribe", json!({ "uri": pattern })).await;
    eventually("only the hidden resources are unsubscribed", || async {
        let requests = whole.call_text("a_subscribed", json!({})).await;
        let ended = requests.contains("-note:///beta") && requests.contains("-note:///bravo");
        assert!(!requests.contains("-note:///alpha") && !requests.contains("-note:///charlie"), "{requests}");
        ended.then_some(())
    })
    .await;
}
