//! `goblin subscriptions`: lists the subscriptions at a running gateway (SUB-15).

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use goblin_admin::api::{SubscriptionInfo, SubscriptionList};
use goblin_telemetry::clean;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::admin_client::{self, GatewayArgs};
use crate::cli::CliError;
use crate::style::{is_colourful, plural, print, width};
use crate::table::{Column, Table};

const ROUTE: &str = "/api/subscriptions";
/// The characters of a query that need no percent-encoding.
const QUERY: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b':');

#[derive(Debug, Args)]
pub(crate) struct Subscriptions {
    /// Only subscriptions that an update of this resource reaches
    pub uri: Option<String>,
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Print the response of the admin API unchanged
    #[arg(long)]
    pub json: bool,
}

pub(crate) async fn run(arguments: Subscriptions) -> Result<ExitCode> {
    print(&text(&arguments).await?).context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

async fn text(arguments: &Subscriptions) -> Result<String, CliError> {
    let query = arguments.uri.as_ref().map(|uri| format!("?uri={}", utf8_percent_encode(uri, QUERY)));
    let client = admin_client::find(&arguments.gateway).await?;
    let body = client.get(&format!("{ROUTE}{}", query.unwrap_or_default())).await.map_err(CliError::Unavailable)?;
    if arguments.json {
        return Ok(String::from_utf8_lossy(&body).into_owned() + "\n");
    }
    let list: SubscriptionList = serde_json::from_slice(&body).map_err(|error| {
        CliError::Unavailable(format!(
            "{} sent a response that is not a list of subscriptions: {error}",
            client.place()
        ))
    })?;
    let stdout = std::io::stdout();
    Ok(render(&list, width(&stdout), is_colourful(&stdout)))
}

fn render(list: &SubscriptionList, width: Option<usize>, colourful: bool) -> String {
    let clients = plural(list.clients.len(), "client");
    let mut text = format!("{} of {clients}\n", plural(list.total, "subscription"));
    if list.total > 0 {
        let [uri, server, client, since] = ["URI", "SERVER", "CLIENT", "SINCE"].map(Column::text);
        let [delivered, coalesced] = ["DELIVERED", "COALESCED"].map(Column::number);
        let mut table = Table::new(&[uri, server, client, Column::state("STATE"), delivered, coalesced, since]);
        list.subscriptions.iter().for_each(|subscription| table.push(row(subscription)));
        text.push('\n');
        text.push_str(&table.render(width, colourful));
    }
    if list.omitted > 0 {
        text.push_str(&format!("and {} more\n", list.omitted));
    }
    text
}

fn row(subscription: &SubscriptionInfo) -> Vec<String> {
    let client = &subscription.client;
    let name = if client.name.is_empty() { client.id.clone() } else { format!("{} {}", client.name, client.id) };
    vec![
        clean(&subscription.uri),
        subscription.server.clone(),
        clean(&name),
        subscription.state.to_string(),
        subscription.delivered.to_string(),
        subscription.coalesced.to_string(),
        subscription.created.clone(),
    ]
}
