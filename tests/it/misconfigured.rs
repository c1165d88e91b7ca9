//! An unset variable in one server's entry disables that server alone (D16).

use http::Method;
use serde_json::{Value, json};

use crate::admin_client::{bearer, get_admin};
use crate::client::Client;
use crate::harness::{Scratch, eventually, fixture_server};
use crate::home::Home;
use crate::scrape::scraped;
use crate::served::{Served, text};
use crate::support::{await_log, path_text, pid_in};

const VARIABLE: &str = "GOBLIN_NO_SUCH_VARIABLE";

/// Returns an entry that needs an unset variable.
fn bad_server() -> Value {
    let mut server = fixture_server(&[]);
    server["env"] = json!({ "API_TOKEN": format!("${{{VARIABLE}}}") });
    server
}

fn server<'a>(status: &'a Value, id: &str) -> &'a Value {
    let servers = status["servers"].as_array().expect("a list");
    servers.iter().find(|server| server["id"] == id).unwrap_or_else(|| panic!("no server {id}: {status}"))
}

#[tokio::test]
async fn d16_an_unset_variable_disables_one_server() {
    let served = Served::start(json!({ "bad": bad_server(), "good": fixture_server(&[]) })).await;
    let client = served.gateway.client_seeing("good_echo").await;
    assert_eq!(client.call_text("good_nonce", json!({"nonce": "served"})).await, "served");
    let status = served.status().await;
    let bad = server(&status, "bad");
    assert_eq!(bad["state"], "misconfigured", "{status}");
    assert_eq!(status["servers"][0]["id"], "bad", "the order of the file");
    let reason = bad["reason"].as_str().expect("a reason");
    for part in ["goblin.json:1:", VARIABLE, " is not set (", "set it or write"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert!(!reason.contains(":-"), "a secret has no default: {reason}");
    assert_eq!(status["serverCounts"], json!({ "total": 2, "ready": 1, "starting": 0, "failed": 1, "loginNeeded": 0 }));
    scraped(&client, r#"goblin_backend_state{server_id="bad",state="misconfigured"} 1"#).await;
    scraped(&client, r#"goblin_backend_up{server_id="bad"} 0"#).await;
    await_log(&served.gateway, &["misconfigured", "server=\"bad\"", VARIABLE]).await;
    let listed = client.call("list_servers", json!({})).await["structuredContent"].clone();
    let card = listed["servers"].as_array().expect("a list").iter().find(|card| card["serverId"] == "bad");
    let card = card.expect("the server is listed");
    assert_eq!((&card["state"], &card["tools"]), (&json!("misconfigured"), &json!(0)));
    assert_eq!(card["reason"], format!("variable {VARIABLE} is not set"), "without paths of the machine");
    let answer = client.try_call("bad_echo", json!({})).await;
    assert_eq!(answer["error"]["data"]["code"], "TOOL_NOT_FOUND", "{answer}");
}

#[tokio::test]
async fn d16_check_and_doctor_report_a_misconfigured_server() {
    let home = Home::new(&json!({
        "gateway": { "port": 0 },
        "mcpServers": { "bad": bad_server(), "good": fixture_server(&[]), "line": { "command": "npx -y x@1.0.0" } },
    }));
    let ran = home.run(&["check", "--config", home.config()]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("2 of 3 servers misconfigured"), "{ran:?}");
    assert!(ran.text().contains(&format!("misconfigured: bad: variable {VARIABLE} is not set (")), "{ran:?}");
    assert!(ran.text().contains(r#"write "command": "npx", "args": ["-y", "x@1.0.0"]"#), "{ran:?}");
    let ran = home.run(&["check", "--connect", "--json", "--config", home.config()]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report: Value = serde_json::from_slice(&ran.stdout).expect("one document");
    let states: Vec<_> = report["servers"].as_array().expect("a list").iter().map(|server| &server["state"]).collect();
    assert_eq!(states, ["misconfigured", "ready", "misconfigured"], "{report}");
    let problem = &report["servers"][0]["problems"][0];
    assert_eq!(problem["path"], "mcpServers.bad.env.API_TOKEN", "{report}");
    assert!(problem["line"].is_u64() && problem["column"].is_u64(), "{report}");
    let ran = home.run(&["doctor", "--no-connect", "--json", "--config", home.config()]).await;
    let findings = serde_json::from_slice::<Value>(&ran.stdout).expect("one document")["findings"].clone();
    let about_bad = findings.as_array().expect("a list").iter().find(|finding| finding["about"] == "server bad");
    let about_bad = about_bad.unwrap_or_else(|| panic!("{findings}"));
    assert_eq!((&about_bad["verdict"], ran.code), (&json!("problem"), Some(1)), "{findings}");
    assert!(about_bad["cure"].as_str().is_some_and(|cure| cure.starts_with("set it")), "{findings}");
}

#[tokio::test]
async fn d16_a_reload_keeps_a_running_server_whose_variable_is_gone() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let good = || fixture_server(&["--pid-file", path_text(&pid_file)]);
    let served = Served::start(json!({ "a": good() })).await;
    let client = served.gateway.client_seeing("a_echo").await;
    let pid = pid_in(&pid_file).await;
    let mut bad = good();
    bad["env"] = json!({ "API_TOKEN": format!("${{{VARIABLE}}}") });
    served.put(&text(json!({ "a": bad, "b": fixture_server(&[]), "new": bad_server() })));
    served.hang_up();
    served.reloads(1).await;
    client.await_tool("b_echo").await;
    assert_eq!(client.call_text("a_nonce", json!({"nonce": "kept"})).await, "kept");
    let status = served.status().await;
    assert_eq!((&server(&status, "a")["state"], pid_in(&pid_file).await), (&json!("ready"), pid), "{status}");
    let lacking = server(&status, "a")["lacking"].to_string();
    assert!(lacking.contains("its new configuration is not in force") && lacking.contains(VARIABLE), "{lacking}");
    assert_eq!(server(&status, "new")["state"], "misconfigured");
    await_log(&served.gateway, &["runs with its previous entry", "server=\"a\"", VARIABLE]).await;
    let admin = Client::new(served.gateway.address);
    let bearer = bearer(served.gateway.address).await;
    let refused = admin.send(Method::POST, "/api/servers/new/restart", &[("authorization", &bearer)], "{}").await;
    assert_eq!(refused.status.as_u16(), 409, "{refused:?}");
    assert!(refused.json()["error"]["message"].as_str().is_some_and(|it| it.contains(VARIABLE)), "{refused:?}");
    // The variable is no longer needed, so the server is as it was.
    served.put(&text(json!({ "a": good(), "b": fixture_server(&[]) })));
    served.hang_up();
    served.reloads(2).await;
    let status = get_admin(&Client::new(served.gateway.address), "/api/status").await.json();
    assert_eq!(server(&status, "a").get("lacking"), None, "{status}");
    assert_eq!(pid_in(&pid_file).await, pid);
    // A disabled server stops, and then has no earlier entry to run with.
    let mut off = good();
    off["enabled"] = json!(false);
    served.put(&text(json!({ "a": off })));
    served.hang_up();
    eventually("the server is disabled", || async {
        (served.status().await["servers"][0]["state"] == "disabled").then_some(())
    })
    .await;
}
