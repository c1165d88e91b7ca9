//! Subscriptions to selected fields: an update is sent if one of them changed, or if that is unknown.
//!
//! No change of a selected field may be lost, even if the list of the server fails.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::Deadline;
use crate::subscriber::short;
use crate::transport_pairs::{Back, Front, Stage, pairs};

/// A listed resource that no template matches.
const DATA: &str = "file:///data";
const EXPOSED: &str = "a+file:///data";

/// Returns a client that subscribed to fields of this resource with these options.
async fn scene(stage: &Stage, members: Value, options: Value) -> Client {
    let peer = stage.peer(json!({})).await;
    peer.change(json!({"define": DATA, "members": members})).await;
    peer.lists(EXPOSED, true).await;
    peer.subscribe_with(EXPOSED, options).await;
    peer
}

#[tokio::test]
async fn subx2_an_update_is_sent_only_if_a_selected_field_changed_over_every_pair_of_transports() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = scene(&stage, json!({}), json!({"fields": ["size", "annotations.lastModified"]})).await;
        for (number, (options, is_notified)) in [
            (r#""size":1"#, true),
            (r#""size":1"#, true),
            (r#""size":1,"annotations":{"lastModified":"x"}"#, true),
            (r#""size":1,"annotations":{"lastModified":"x","priority":1}"#, false),
            (r#""annotations":{"lastModified":"x"},"size":1,"title":"y""#, false),
            (r#""size":2,"annotations":{"lastModified":"x"}"#, true),
            (r#""size":2,"annotations":{"lastModified":"z"}"#, true),
            (r#""size":2,"annotations":{"lastModified":"z"}"#, false),
            // A field in the metadata counts too.
            (r#""_meta":{"size":3},"annotations":{"lastModified":"z"}"#, true),
            (r#""_meta":{"size":3},"annotations":{"lastModified":"z"}"#, false),
            // The field is neither in the update nor in the list, so a change is unknown.
            (r#""title":"z""#, true),
            (r#""title":"z""#, true),
        ]
        .into_iter()
        .enumerate()
        {
            peer.send_update(&format!(r#"{{"uri":"{DATA}",{options}}}"#)).await;
            let received = peer.updates().await.len();
            assert_eq!(received, usize::from(is_notified), "{front:?} {back:?} {number}: {options}");
        }
    }
}

#[tokio::test]
async fn subx2_a_field_that_only_the_list_has_is_compared_in_the_next_list() {
    for back in [Back::Stdio, Back::Get] {
        let stage = Stage::start(Front::Http, back).await;
        let peer = scene(&stage, json!({"size": 1}), json!({"fields": ["size"]})).await;
        let all = stage.peer(json!({})).await;
        all.subscribe(EXPOSED).await;

        // The size has not changed.
        peer.touch(DATA, 1).await;
        assert_eq!(
            short(&all.updates().await),
            [format!("{EXPOSED} 1")],
            "{back:?}: a subscription without fields receives all updates"
        );
        // The size changes in a list, without a notification of the server.
        peer.call_text("a_toggle_quiet", "{}").await;
        peer.change(json!({"define": DATA, "members": {"size": 2}})).await;
        peer.call_text("a_toggle_quiet", "{}").await;
        peer.touch(DATA, 1).await;
        let params = peer.updated().await.json()["params"].clone();
        assert_eq!(
            (&params["uri"], &params["version"]),
            (&json!(EXPOSED), &json!(2)),
            "{back:?}: with the server's params"
        );
        assert_eq!(short(&all.updates().await), [format!("{EXPOSED} 2")], "{back:?}");

        // A notified list change alone is an update for clients that selected the field.
        peer.change(json!({"define": DATA, "members": {"size": 3}})).await;
        assert_eq!(
            peer.updated().await.json()["params"],
            json!({ "uri": EXPOSED }),
            "{back:?}: the gateway's own update"
        );
        peer.change(json!({"define": DATA, "members": {"size": 3, "title": "other"}})).await;
        let listed = async |peer: &Client| peer.request("resources/list", json!({})).await.to_string();
        let deadline = Deadline::new();
        while !listed(&peer).await.contains("other") {
            deadline.pause("the list has the title").await;
        }
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "{back:?}: the size is the same");
        assert_eq!(all.updates().await, Vec::<Value>::new(), "{back:?}: a list is no update");
    }
}

#[tokio::test]
async fn subx2_no_update_is_lost_when_the_list_fails() {
    for back in [Back::Stdio, Back::Sse] {
        let stage = Stage::start(Front::Http, back).await;
        let peer = scene(&stage, json!({"size": 1}), json!({"fields": ["size"]})).await;
        peer.change(json!({"broken": true})).await;
        for version in [1, 2] {
            peer.touch(DATA, 1).await;
            let params = peer.updated().await.json()["params"].clone();
            assert_eq!((&params["uri"], &params["version"]), (&json!(EXPOSED), &json!(version)), "{back:?}");
        }
        peer.change(json!({"broken": false})).await;
        peer.define(&["file:///other"]).await;
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "{back:?}: the size is the same");
    }
}

#[tokio::test]
async fn subx2_fields_apply_to_each_resource_of_a_pattern() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let peer = stage.peer(json!({})).await;
    peer.define(&["file:///d/1", "file:///d/2"]).await;
    peer.subscribe_with("a+file:///d/*", json!({"pattern": "glob", "fields": ["size"], "priority": 1})).await;
    // Each resource is compared with its own earlier values.
    for (options, expected) in [
        (r#""uri":"file:///d/1","size":1"#, vec!["a+file:///d/1"]),
        (r#""uri":"file:///d/2","size":2"#, vec!["a+file:///d/2"]),
        (r#""uri":"file:///d/1","size":1"#, vec![]),
        (r#""uri":"file:///d/1","size":2"#, vec!["a+file:///d/1"]),
        (r#""uri":"file:///d/2","size":2"#, vec![]),
        // The resource is not listed, so no values are stored.
        (r#""uri":"file:///d/9","size":2"#, vec!["a+file:///d/9"]),
        (r#""uri":"file:///d/9","size":2"#, vec!["a+file:///d/9"]),
    ] {
        peer.send_update(&format!("{{{options}}}")).await;
        assert_eq!(short(&peer.updates().await), expected, "{options}");
    }
    // A new resource is notified as such, and later by its fields.
    peer.change(json!({"define": "file:///d/3", "members": {"size": 5}})).await;
    assert_eq!(short(&[peer.updated().await.json()["params"].clone()]), ["a+file:///d/3"]);
    peer.send_update(r#"{"uri":"file:///d/3","size":5}"#).await;
    assert_eq!(peer.updates().await, Vec::<Value>::new());
    // A new subscription with other fields replaces the selection.
    peer.subscribe_with("a+file:///d/*", json!({"pattern": "glob", "fields": ["title"]})).await;
    peer.send_update(r#"{"uri":"file:///d/3","size":5}"#).await;
    assert_eq!(short(&peer.updates().await), ["a+file:///d/3"], "its title is unknown");
}
