//! `goblin stdio --url` to an endpoint that needs a login: it opens the browser and waits.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::json;
use tokio::process::Command;

use crate::client::{Client, text_of};
use crate::harness::{eventually, write_file};
use crate::home::Home;
use crate::login_browser::Browser;
use crate::login_server::LoginServer;
use crate::login_support::scopes_of;

/// Programs in a directory that record the URLs they are started with, under the names of all openers.
pub struct FakeOpener {
    directory: PathBuf,
}

impl FakeOpener {
    pub fn new(home: &Home) -> FakeOpener {
        let directory = home.scratch.path().join("openers");
        for name in [
            "xdg-open",
            "open",
            "gio",
            "gnome-open",
            "kde-open",
            "sensible-browser",
            "wslview",
            "x-www-browser",
            "firefox",
        ] {
            let path = directory.join(name);
            write_file(
                &path,
                "#!/bin/sh\nfor word in \"$@\"; do printf '%s\\n' \"$word\" >> \"${0%/*}/opened\"; done\n",
            );
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("the test owns the file");
        }
        FakeOpener { directory }
    }

    /// Lets a command find these programs first, on what looks like a desktop.
    pub fn apply(&self, command: &mut Command) {
        let path = format!("{}:{}", self.directory.display(), std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("DISPLAY", ":0").env("BROWSER", self.directory.join("firefox"));
    }

    /// Returns everything that was passed to a program.
    pub fn opened(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.directory.join("opened")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until a URL was opened.
    pub async fn url(&self) -> String {
        eventually("the browser is opened", || async { self.opened().into_iter().find(|it| it.starts_with("http")) })
            .await
    }
}

fn bridge(home: &Home, server: &LoginServer, opener: &FakeOpener) -> Client {
    let mut command = home.goblin(&["stdio", "--url", &server.url]);
    opener.apply(&mut command);
    command.stderr(Stdio::null());
    Client::run(command)
}

#[tokio::test]
async fn oauth1_a_bridge_to_a_url_opens_the_browser_and_continues() {
    let server = LoginServer::start().await;
    let home = Home::new(&json!({}));
    let opener = FakeOpener::new(&home);
    let client = bridge(&home, &server, &opener);
    let (client, page) =
        tokio::join!(client.connected("2025-11-25"), async { Browser::default().visit(&opener.url().await).await });
    assert!(page.status.is_success(), "{page:?}");
    client.await_tool("whoami").await;
    assert_eq!(scopes_of(&client.try_call("whoami", json!({})).await), ["read"]);
    // A refresh needs no person.
    server.expire_tokens().await;
    assert_eq!(scopes_of(&client.try_call("whoami", json!({})).await), ["read"]);
    assert_eq!(server.count("refreshes").await, 1);
    assert_eq!(opener.opened().len(), 1, "{:?}", opener.opened());
    assert!(client.close().await.success());
    // The next bridge uses the same login.
    let next = bridge(&home, &server, &opener).connected("2025-11-25").await;
    next.await_tool("whoami").await;
    assert_eq!((server.count("authorizations").await, opener.opened().len()), (1, 1));
}

#[tokio::test]
async fn oauth1_several_bridges_open_one_browser() {
    let server = LoginServer::start().await;
    let home = Home::new(&json!({}));
    let opener = FakeOpener::new(&home);
    let clients: Vec<_> = (0..3).map(|_| bridge(&home, &server, &opener)).collect();
    let connected = futures_util::future::join_all(clients.into_iter().map(|client| client.connected("2025-11-25")));
    let (clients, page) = tokio::join!(connected, async { Browser::default().visit(&opener.url().await).await });
    assert!(page.status.is_success(), "{page:?}");
    for client in clients {
        client.await_tool("whoami").await;
        assert!(!text_of(&client.try_call("whoami", json!({})).await).is_empty());
    }
    assert_eq!(opener.opened().len(), 1, "{:?}", opener.opened());
    assert_eq!(server.count("reusedTokens").await, 0);
}

#[tokio::test]
async fn oauth2_a_bridge_whose_token_is_rejected_opens_the_browser_again() {
    let server = LoginServer::start().await;
    let home = Home::new(&json!({}));
    let opener = FakeOpener::new(&home);
    let client = bridge(&home, &server, &opener);
    let (client, _) =
        tokio::join!(client.connected("2025-11-25"), async { Browser::default().visit(&opener.url().await).await });
    client.await_tool("whoami").await;
    server.set(json!({ "rejectAll": true })).await;
    // This call finds that new tokens are rejected too.
    let answer = client.try_call("whoami", json!({})).await;
    assert!(!answer["error"].is_null(), "{answer}");
    let (answer, page) = tokio::join!(client.try_call("whoami", json!({})), async {
        let second = || async { opener.opened().into_iter().filter(|it| it.starts_with("http")).nth(1) };
        let url = eventually("the browser is opened again", second).await;
        server.set(json!({ "rejectAll": false })).await;
        Browser::default().visit(&url).await
    });
    assert!(page.status.is_success(), "{page:?}");
    assert_eq!(scopes_of(&answer), ["read"]);
}
