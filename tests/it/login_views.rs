//! The state of a server that needs a login in `check`, `status` and `add`, and the login in the dashboard.

use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::harness::Gateway;
use crate::login_browser::Browser;
use crate::login_support::{LoginHome, await_state};
use crate::screen::Screen;

const ENTER: &str = "\r";

/// Starts the dashboard and selects the server that needs a login.
async fn top(home: &LoginHome) -> Screen {
    let mut command = home.home.goblin(&["top", "--config", home.home.config()]);
    command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    let screen = Screen::run(command, 120, 40);
    screen.shows("press i, or run goblin login p").await;
    screen
}

/// Begins a login with the dashboard. Returns the URL that the gateway reports.
async fn begin(screen: &mut Screen, gateway: &Gateway) -> String {
    screen.press("i");
    let shown = screen.shows("waiting for the browser").await;
    let login = get_admin(&Client::new(gateway.address), "/api/servers/p/login").await.json();
    let url = login["attempt"]["url"].as_str().expect("a URL").to_owned();
    let lines = shown.lines().skip_while(|line| !line.starts_with("http")).take_while(|line| !line.trim().is_empty());
    assert_eq!(lines.map(str::trim_end).collect::<String>(), url, "all of it, without a border");
    url
}

#[tokio::test]
async fn oauth2_check_status_and_add_report_a_needed_login() {
    let home = LoginHome::new().await;
    let config = home.home.config();
    let check = home.home.run(&["check", "--connect", "--config", config]).await;
    assert!(check.code == Some(1) && check.text().contains("p       login needed"), "{check:?}");
    let check = home.home.run(&["check", "--connect", "--json", "--config", config]).await;
    let report: Value = serde_json::from_slice(&check.stdout).expect("a report");
    assert_eq!((&report["ok"], &report["servers"][0]["state"]), (&json!(false), &json!("login_needed")), "{report}");
    let gateway = home.gateway().await;
    await_state(&gateway, "login_needed").await;
    let status = home.home.run(&["status", "--config", config]).await;
    assert!(status.code == Some(1) && status.text().contains("0 of 1 ready, 1 login needed"), "{status:?}");
    let added = home.home.run(&["add", "q", &home.server.url, "--config", config]).await;
    assert!(added.text().ends_with("q needs a login: goblin login q\n"), "{added:?}");
}

#[tokio::test]
async fn oauth2_the_dashboard_logs_in_with_a_browser_and_out_again() {
    let home = LoginHome::new().await;
    let gateway = home.gateway().await;
    await_state(&gateway, "login_needed").await;
    let mut screen = top(&home).await;
    let url = begin(&mut screen, &gateway).await;
    Browser::default().visit(&url).await;
    screen.shows("● done").await;
    screen.press(ENTER);
    screen.shows("● ready").await;
    screen.press("o");
    screen.shows("Log out of p?").await;
    screen.press("y");
    screen.shows("○ login needed").await;
    await_state(&gateway, "login_needed").await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn oauth2_an_address_that_is_pasted_into_the_dashboard_finishes_the_login() {
    let home = LoginHome::new().await;
    let gateway = home.gateway().await;
    await_state(&gateway, "login_needed").await;
    let mut screen = top(&home).await;
    let url = begin(&mut screen, &gateway).await;
    screen.press(&format!("http://127.0.0.1/nothing{ENTER}"));
    screen.shows("✗ this is not the address of the last page of a login").await;
    let callback = Browser::default().callback_of(&url).await;
    screen.press(&format!("{callback}{ENTER}"));
    screen.shows("● done").await;
    await_state(&gateway, "ready").await;
}
