//! The steps of the client in each scenario, and the results it must receive.
//!
//! A failed step ends the client with an error, which the suite counts as a failure.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::client::Part;
use crate::client::mirror::some_arguments;
use crate::client::peer::Peer;

/// The error code for an unknown method.
const METHOD_NOT_FOUND: i64 = -32601;

pub async fn play(part: &Part, peer: &Peer) -> Result<()> {
    match part.scenario.as_str() {
        "initialize" | "request-metadata" => peer.request("tools/list", json!({})).await.map(drop),
        "json-schema-ref-no-deref" => peer.tools().await.map(drop),
        "tools_call" => expect(peer, "add_numbers", json!({"a": 5, "b": 3}), "The sum of 5 and 3 is 8").await,
        "sse-retry" => expect(peer, "test_reconnection", json!({}), "Reconnection test completed successfully").await,
        "elicitation-sep1034-client-defaults" => {
            peer.tools().await?;
            let text = peer.call("test_client_elicitation_defaults", json!({})).await?;
            ensure!(text.contains("95.5"), "the answers did not arrive: {text}");
            Ok(())
        }
        "http-standard-headers" => everything(peer).await,
        "http-custom-headers" => calls_of(&part.context, peer).await,
        "http-invalid-tool-headers" => every_tool(peer).await,
        "sep-2322-client-request-state" => rounds(peer).await,
        "json-schema-2020-12-preservation" => echo(peer).await,
        "sep-2640-client-no-prefetch" => skills(peer).await.map(drop),
        "sep-2640-client-verify-digest" | "sep-2640-client-verify-size" | "sep-2640-client-verify-frontmatter" => {
            first_file(peer).await
        }
        other => bail!("no part is written for the scenario {other}"),
    }
}

async fn expect(peer: &Peer, tool: &str, arguments: Value, expected: &str) -> Result<()> {
    peer.tools().await?;
    let text = peer.call(tool, arguments).await?;
    ensure!(text == expected, "{tool} returned {text:?} instead of {expected:?}");
    Ok(())
}

/// Uses every tool, resource and prompt of the server.
async fn everything(peer: &Peer) -> Result<()> {
    every_tool(peer).await?;
    for (list, member, method, key) in
        [("resources/list", "resources", "resources/read", "uri"), ("prompts/list", "prompts", "prompts/get", "name")]
    {
        let result = peer.request(list, json!({})).await?;
        let entries = result[member].as_array().filter(|entries| !entries.is_empty());
        for entry in entries.with_context(|| format!("nothing is listed: {result}"))? {
            peer.request(method, json!({ key: entry[key] })).await?;
        }
    }
    Ok(())
}

async fn every_tool(peer: &Peer) -> Result<()> {
    for tool in peer.tools().await? {
        let name = tool["name"].as_str().with_context(|| format!("a tool without a name: {tool}"))?;
        peer.call(name, some_arguments(&tool["inputSchema"])).await?;
    }
    Ok(())
}

async fn calls_of(context: &Value, peer: &Peer) -> Result<()> {
    peer.tools().await?;
    for call in context["toolCalls"].as_array().context("the scenario names no calls")? {
        peer.call(call["name"].as_str().context("a call names its tool")?, call["arguments"].clone()).await?;
    }
    Ok(())
}

/// Makes calls that request input, and one call beside them that must not carry their state.
async fn rounds(peer: &Peer) -> Result<()> {
    peer.tools().await?;
    tokio::try_join!(
        expect(peer, "test_mrtr_echo_state", json!({}), "echo-state-ok"),
        expect(peer, "test_mrtr_no_state", json!({}), "no-state-ok"),
        expect(peer, "test_mrtr_unrelated", json!({}), "unrelated-ok"),
    )?;
    expect(peer, "test_mrtr_no_result_type", json!({}), "no-result-type-test-ok").await
}

/// Sends a schema back as it was listed.
async fn echo(peer: &Peer) -> Result<()> {
    let tools = peer.tools().await?.iter();
    let tool = tools.clone().find(|tool| tool["name"] == "json_schema_2020_12_tool");
    let schema = &tool.context("the tool is not listed")?["inputSchema"];
    expect(peer, "json_schema_echo", json!({ "schema": schema }), "echoed").await
}

/// Lists the skills. Returns `None` if the method is unknown, because a gateway need not support skills.
async fn skills(peer: &Peer) -> Result<Option<Value>> {
    let answer = peer.send_request("skills/list", json!({})).await?;
    if answer["error"]["code"] == METHOD_NOT_FOUND {
        return Ok(None);
    }
    Ok(Some(answer["result"]["skills"].clone()))
}

/// Reads the first file of the skill. Its content does not match the list, so the other files are not read.
async fn first_file(peer: &Peer) -> Result<()> {
    let Some(skills) = skills(peer).await? else { return Ok(()) };
    peer.request("resources/read", json!({"uri": skills[0]["uri"]})).await.map(drop)
}
