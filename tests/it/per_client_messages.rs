//! Other messages between a client and its own server: server requests, notifications, capabilities, log lines.
//!
//! The connection identifies the client, so no message is ambiguous.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::http::Listener;
use crate::fixture_http::HttpFixture;
use crate::harness::{Frozen, Gateway, Scratch, eventually};
use crate::per_client::{each_transport, own_process, per_client};
use crate::scrape::metric;
use crate::support::{await_arrivals, path_text, scripted_server};

/// Returns a client with these capabilities, after the tool of this name is listed.
async fn client_with(gateway: &Gateway, capabilities: Value, tool: &str) -> Client {
    let mut client = Client::new(gateway.address);
    client.initialize_with("2025-11-25", capabilities).await;
    client.await_tool(tool).await;
    client
}

async fn gateway_of(server: Value) -> Gateway {
    Gateway::with_servers(json!({ "a": server })).await
}

/// Starts a call that sends other messages before its result. Returns the stream.
async fn begin(client: &Client, tool: &str, arguments: Value) -> Listener {
    let params = json!({"name": tool, "arguments": arguments});
    let body = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params});
    client.open(body.to_string()).await.1
}

async fn answer(client: &Client, server_request: &Value, result: Value) {
    let response =
        client.post(json!({"jsonrpc": "2.0", "id": server_request["id"], "result": result}).to_string()).await;
    assert_eq!(response.status, 202, "{response:?}");
}

/// Returns the text of the result at the end of a call's stream.
async fn text_of(stream: &mut Listener) -> String {
    let answer = stream.next().await.expect("the answer");
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Returns the messages that the client's own server received, without requests.
async fn drain_session_stream(client: &Client) -> Vec<Value> {
    serde_json::from_str(&client.call_text("a_received", json!({})).await).expect("an array")
}

#[tokio::test]
async fn sampling_of_a_per_client_server_reaches_its_own_client() {
    for (transport, server, _backend) in each_transport().await {
        let gateway = gateway_of(server).await;
        let (one, two) = (
            client_with(&gateway, json!({"sampling": {}}), "a_request").await,
            client_with(&gateway, json!({"sampling": {}}), "a_request").await,
        );
        // The request arrives on the server's session stream, so only the link identifies its client.
        let sampling = |name: &str| json!({"method": "sampling/createMessage", "params": {"name": name}, "via": "get"});
        let mut first = begin(&one, "a_request", sampling("one")).await;
        let mut second = begin(&two, "a_request", sampling("two")).await;
        let (of_one, of_two) =
            (first.next().await.expect("a server request"), second.next().await.expect("a server request"));
        assert_eq!(
            (&of_one["params"]["name"], &of_two["params"]["name"]),
            (&json!("one"), &json!("two")),
            "{transport}"
        );
        answer(&two, &of_two, json!({"by": "two"})).await;
        answer(&one, &of_one, json!({"by": "one"})).await;
        assert_eq!(text_of(&mut first).await, r#"{"result":{"by":"one"}}"#, "{transport}");
        assert_eq!(text_of(&mut second).await, r#"{"result":{"by":"two"}}"#, "{transport}");
    }
}

#[tokio::test]
async fn elicitation_without_a_call_reaches_the_client_on_its_session_stream() {
    for (transport, server, _backend) in each_transport().await {
        let gateway = gateway_of(server).await;
        let capabilities = json!({"elicitation": {}});
        let (one, two) = (
            client_with(&gateway, capabilities.clone(), "a_request").await,
            client_with(&gateway, capabilities, "a_request").await,
        );
        let (mut stream, _other) = (one.listen().await, two.listen().await);
        two.call("a_echo", json!({})).await;
        // Clients that share one process also share its call count.
        let before: u64 = one.call_text("a_call_count", json!({})).await.parse().expect("a number");
        let later =
            json!({"method": "elicitation/create", "params": {"message": "who?"}, "when": "cancelled", "id": "x"});
        let caller = one.clone();
        let call = tokio::spawn(async move {
            let params = json!({"name": "a_request", "arguments": later});
            caller
                .post(json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params}).to_string())
                .await
        });
        await_arrivals(&one, "a", before + 1).await;
        one.notify("notifications/cancelled", json!({"requestId": "c"})).await;
        let server_request = stream.await_method("elicitation/create").await;
        assert_eq!(server_request["params"]["message"], "who?", "{transport}");
        answer(&one, &server_request, json!({"action": "accept"})).await;
        eventually("the server has its answer", || async {
            let received = drain_session_stream(&one).await;
            received.into_iter().find(|message| message["id"] == "x" && message["result"]["action"] == "accept")
        })
        .await;
        call.await.expect("no panic");
    }
}

/// Each server process counts its own ids, so the ids are the same.
#[tokio::test]
async fn elicitation_complete_reaches_the_client_of_its_server() {
    const COMPLETE: &str = "notifications/elicitation/complete";
    for (transport, server, _backend) in each_transport().await {
        let gateway = gateway_of(server).await;
        let mut clients = Vec::new();
        for _ in 0..2 {
            let client = client_with(&gateway, json!({"elicitation": {"url": {}}}), "a_request").await;
            let stream = client.listen().await;
            let params = json!({"mode": "url", "message": "m", "url": "https://x.example/", "elicitationId": "1"});
            let mut call = begin(&client, "a_request", json!({"method": "elicitation/create", "params": params})).await;
            let server_request = call.next().await.expect("a server request");
            answer(&client, &server_request, json!({"action": "accept"})).await;
            text_of(&mut call).await;
            clients.push((client, stream));
        }
        for (number, (client, stream)) in clients.iter_mut().enumerate() {
            let params = json!({"elicitationId": "1", "of": number});
            let arguments = json!({"method": COMPLETE, "params": params, "via": "get", "then": "release"});
            let mut call = begin(client, "a_notify", arguments).await;
            let received = tokio::select! {
                received = call.await_method(COMPLETE) => received,
                received = stream.await_method(COMPLETE) => received,
            };
            assert_eq!(received["params"], params, "{transport}");
            client.call("a_release", json!({})).await;
            text_of(&mut call).await;
        }
    }
}

#[tokio::test]
async fn roots_and_client_notifications_pass_only_between_a_client_and_its_own_server() {
    for (transport, server, _backend) in each_transport().await {
        let gateway = gateway_of(server).await;
        let roots = json!({"roots": {"listChanged": true}});
        let (one, two) = (client_with(&gateway, roots, "a_request").await, gateway.client().await);
        let mut call = begin(&one, "a_request", json!({"method": "roots/list"})).await;
        let server_request = call.next().await.expect("a server request");
        assert_eq!(server_request["method"], "roots/list", "{transport}");
        answer(&one, &server_request, json!({"roots": [{"uri": "file:///of/one"}]})).await;
        assert_eq!(text_of(&mut call).await, r#"{"result":{"roots":[{"uri":"file:///of/one"}]}}"#);
        let rejected = two.call_text("a_request", json!({"method": "roots/list"})).await;
        assert!(rejected.contains("-32601"), "{transport}: {rejected}");

        one.notify("notifications/roots/list_changed", json!({"x-odd": 1.0})).await;
        one.notify("notifications/vendor/first", json!({"n": 1})).await;
        one.notify("notifications/vendor/second", json!({"n": 2})).await;
        let expected =
            ["notifications/roots/list_changed", "notifications/vendor/first", "notifications/vendor/second"];
        let vendor_messages = async |client: &Client| -> Vec<Value> {
            drain_session_stream(client)
                .await
                .into_iter()
                .filter(|message| expected.contains(&message["method"].as_str().unwrap_or("")))
                .collect()
        };
        let arrived = eventually("all notifications have arrived", || async {
            let received = vendor_messages(&one).await;
            (received.len() == expected.len()).then_some(received)
        })
        .await;
        let methods: Vec<_> = arrived.iter().map(|message| message["method"].as_str().expect("a method")).collect();
        assert_eq!(methods, expected, "{transport}: in order");
        assert_eq!(arrived[0]["params"], json!({"x-odd": 1.0}));
        assert!(vendor_messages(&two).await.is_empty(), "{transport}: messages of another client");
    }
}

#[tokio::test]
async fn a_per_client_server_receives_the_capabilities_of_its_client_limited_by_declare() {
    let capabilities = json!({"sampling": {"tools": {}}, "x-vendor": {"odd": 1.50}, "elicitation": {"url": {}}});
    for (declare, expected) in [
        (json!(["sampling", "elicitation"]), capabilities.clone()),
        (json!(["elicitation"]), json!({"x-vendor": {"odd": 1.50}, "elicitation": {"url": {}}})),
        (json!([]), json!({"x-vendor": {"odd": 1.50}})),
    ] {
        let mut server = own_process(&[]);
        server["declare"] = declare.clone();
        let gateway = gateway_of(server).await;
        let (one, plain) = (client_with(&gateway, capabilities.clone(), "a_hello").await, gateway.client().await);
        let hello = async |client: &Client| -> Value {
            serde_json::from_str(&client.call_text("a_hello", json!({})).await).expect("an object")
        };
        assert_eq!(hello(&one).await["capabilities"], expected, "{declare}");
        assert_eq!(hello(&plain).await["capabilities"], json!({}), "{declare}");
    }
}

#[tokio::test]
async fn p2_notifications_outside_of_calls_reach_the_client_of_their_server() {
    let scratch = Scratch::new();
    // Each process sends two notifications as soon as the test permits it.
    let script = concat!(
        r#"(while [ ! -e "$0.go" ]; do sleep 0.05; done; for what in message vendor/note; do "#,
        r#"printf '{"jsonrpc":"2.0","method":"notifications/%s","params":{"level":"info","data":%d}}\n' $what $$; done) & "#,
        r#"ME=$$ exec "$@""#
    );
    let mut server = per_client(scripted_server(script, &[]));
    server["args"][2] = json!(path_text(&scratch.path().join("send")));
    let gateway = gateway_of(server).await;
    let (one, two) = (gateway.client_seeing("a_env").await, gateway.client().await);
    let mut expected = Vec::new();
    for client in [&one, &two] {
        let pid: u64 = client.call_text("a_env", json!({"name": "ME"})).await.parse().expect("a process id");
        expected.push((client.listen().await, pid));
    }
    scratch.write("send.go", "");
    for (mut stream, pid) in expected {
        for method in ["notifications/message", "notifications/vendor/note"] {
            // List changes may precede the message.
            let message = stream.await_method(method).await;
            assert_eq!(message["params"]["data"], pid, "{message}");
        }
    }
}

#[tokio::test]
async fn reg3_list_changed_on_a_per_client_link_refreshes_the_list() {
    for (transport, server, backend) in each_transport().await {
        // Only over HTTP do the listing link and the client's own link reach the same server.
        if backend.is_none() {
            continue;
        }
        let gateway = gateway_of(server).await;
        let client = gateway.client_seeing("a_notify").await;
        client.call("a_toggle_quiet", json!({})).await;
        let before = client.tool_names().await.len();
        client.call("a_change_tools", json!({})).await;
        assert_eq!(client.tool_names().await.len(), before, "{transport}: no client was notified");
        client.call("a_notify", json!({"method": "notifications/tools/list_changed"})).await;
        eventually("the new tool is listed", || async {
            (client.tool_names().await.len() == before + 1).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn notifications_to_an_unresponsive_server_are_bounded_and_block_no_client() {
    const SENT: usize = 200;
    /// The value of the gateway's constant of the same name.
    const MAX_QUEUED: usize = 64;
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let backend = HttpFixture::start(&["--pid-file", path_text(&pid_file)]).await;
    let gateway = gateway_of(per_client(backend.server())).await;
    let client = gateway.client_seeing("a_received").await;
    client.call("a_echo", json!({})).await;
    let frozen = Frozen::new(&pid_file).await;
    for number in 0..SENT {
        client.notify("notifications/vendor/note", json!({ "n": number })).await;
    }
    let dropped = metric(&client, r#"goblin_events_total{kind="reply_dropped"}"#).await as usize;
    // One more message is in transit.
    assert!((SENT - MAX_QUEUED - 1..=SENT - MAX_QUEUED).contains(&dropped), "{dropped} were dropped");
    drop(frozen);
    eventually("the queued messages arrive", || async {
        let received = drain_session_stream(&client)
            .await
            .into_iter()
            .filter(|message| message["method"] == "notifications/vendor/note");
        (received.count() >= MAX_QUEUED).then_some(())
    })
    .await;
}
