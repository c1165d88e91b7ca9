//! Sites that want the gateway to connect elsewhere, to wait, or to fill its memory.

use std::sync::Arc;

use goblin_client::connect::Reach;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

use super::{Canary, Received, Reply, Site, fetcher, metadata, target};
use crate::error::{LoginError, Refusal, UrlFault};
use crate::protocol::challenge::Challenge;
use crate::protocol::discovery::discover;
use crate::protocol::fetch::{FETCH_TIMEOUT, Fetcher, Payload};

/// Fetches a page of a site and returns the error.
async fn failure(fetcher: &Fetcher, url: &str) -> LoginError {
    let url = fetcher.check("URL of the metadata", url).expect("a plain URL");
    match fetcher.document(&url).await {
        Ok(document) => panic!("{} is usable: {}", url.as_str(), document.is_some()),
        Err(error) => error,
    }
}

#[tokio::test]
async fn oauth1_a_redirect_stays_on_its_site() {
    let canary = Canary::start().await;
    let elsewhere = format!("{}/x", canary.origin);
    let site = Site::start(|origin| {
        move |request: &Received| match request.path.as_str() {
            "/three" => Reply::redirect("/two"),
            "/two" => Reply::redirect(&format!("{origin}/one?x=y")),
            "/one?x=y" => Reply::redirect("/end"),
            "/end" => Reply::json(200, &json!({"issuer": "here"})),
            "/four" => Reply::redirect("/three"),
            "/loop" => Reply::redirect("/loop"),
            "/elsewhere" => Reply::redirect(&elsewhere),
            "/user" => Reply::redirect(&format!("http://x@{}", origin.trim_start_matches("http://"))),
            "/scheme" => Reply::redirect("file:///etc/passwd"),
            "/network" => Reply::redirect("//evil.example/"),
            "/number" => Reply::redirect("http://2130706433/"),
            "/nowhere" => Reply::status(302),
            _ => Reply::status(404),
        }
    })
    .await;
    let fetcher = fetcher(&site.origin);
    let url = fetcher.check("URL", &format!("{}/three", site.origin)).expect("a URL");
    let document = fetcher.document(&url).await.expect("three redirects").expect("a page");
    assert_eq!(document.text("issuer").expect("a text").as_deref(), Some("here"));
    for path in ["/four", "/loop", "/elsewhere", "/user", "/scheme", "/network", "/number"] {
        let before = site.paths().len();
        let error = failure(&fetcher, &format!("{}{path}", site.origin)).await;
        assert!(
            matches!(error, LoginError::Refusal(Refusal::Redirect { .. } | Refusal::Url { .. })),
            "{path}: {error}"
        );
        assert!(site.paths().len() - before <= 4, "{path}: {:?}", site.paths());
    }
    let error = failure(&fetcher, &format!("{}/nowhere", site.origin)).await;
    assert!(matches!(error, LoginError::Fetch(_)), "{error}");
    let sent = fetcher.post(&url, Payload::Form("a=b".into(), None), FETCH_TIMEOUT).await;
    assert_eq!(sent.map(|_| ()).expect_err("no redirect").reason, "it redirects a POST request");
    assert_eq!(site.last().path, "/three");
    assert!(!canary.is_touched());
}

#[tokio::test]
async fn oauth1_no_url_leads_to_a_more_private_address() {
    let canary = Canary::start().await;
    let port = canary.port();
    let hosts = [
        "127.0.0.1",
        "127.0.0.2",
        "127.1",
        "127.0.1",
        "0177.0.0.1",
        "0177.0.0.01",
        "0x7f.0.0.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0",
        "0.0.0.0",
        "00.0.0.0",
        "0x0",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fe80::1]",
        "[fd00::1]",
        "[fd00:ec2::254]",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "224.0.0.1",
        "255.255.255.255",
        "127.0.0.1.",
        "a@127.0.0.1",
    ];
    assert_eq!(hosts.len(), 40);
    let plain = fetcher("https://mcp.example/mcp");
    // A server on this machine may name other ones over http. Its rule must hold without the help of TLS too.
    let local = fetcher("http://127.0.0.1:1/mcp").with_reach(Reach::Public);
    for host in hosts {
        for (fetcher, scheme) in [(&plain, "https"), (&plain, "http"), (&local, "https"), (&local, "http")] {
            let url = format!("{scheme}://{host}:{port}/.well-known/openid-configuration");
            let error = match fetcher.check("issuer", &url) {
                Ok(url) => fetcher.document(&url).await.map(|_| ()).expect_err(host),
                Err(refusal) => refusal.into(),
            };
            assert!(!matches!(&error, LoginError::Fetch(error) if error.is_sent), "{url}: {error}");
        }
    }
    assert!(!canary.is_touched());
    let open = fetcher(&canary.origin);
    let url = open.check("issuer", &format!("http://localhost:{port}/")).expect("a server on this machine");
    let fetch = open.document(&url);
    tokio::select! {
        _ = fetch => panic!("the canary answers nothing"),
        reached = canary.socket.accept() => drop(reached.expect("a connection")),
    }
}

#[tokio::test]
async fn oauth1_metadata_does_not_lead_to_a_more_private_address() {
    let canary = Canary::start().await;
    let (port, origin) = (canary.port(), canary.origin.clone());
    let localhost = format!("http://localhost:{port}");
    let site = Site::start(|own| {
        move |request: &Received| match request.path.as_str() {
            "/resource" => Reply::json(200, &json!({"authorization_servers": [origin]})),
            "/name" => Reply::json(200, &json!({"authorization_servers": [localhost]})),
            "/endpoint" => Reply::json(200, &json!({"authorization_servers": [own]})),
            "/.well-known/oauth-authorization-server" => Reply::json(200, &metadata(&own, &origin)),
            "/redirect" => Reply::redirect(&format!("{origin}/x")),
            _ => Reply::status(404),
        }
    })
    .await;
    let url = format!("{}/mcp", site.origin);
    let fetcher = fetcher(&url).with_reach(Reach::Public);
    let challenge = |url: String| Challenge { resource_metadata: Some(url), ..Challenge::default() };
    for path in ["/resource", "/endpoint", "/redirect"] {
        let named = challenge(format!("{}{path}", site.origin));
        let error = discover(&fetcher, &target(&url), &named).await.map(|_| ()).expect_err(path);
        let is_private = matches!(error, LoginError::Refusal(Refusal::Url { fault: UrlFault::Private, .. }));
        assert!(is_private, "{path}: {error}");
    }
    let named = challenge(format!("{}/name", site.origin));
    let error = discover(&fetcher, &target(&url), &named).await.map(|_| ()).expect_err("a private name").to_string();
    assert!(error.contains("more private"), "{error}");
    let named = challenge(format!("{}/x", canary.origin));
    assert!(discover(&fetcher, &target(&url), &named).await.is_err());
    assert!(!canary.is_touched());
}

#[tokio::test]
async fn oauth1_what_is_no_json_object_is_named() {
    let cases = [
        (Reply::text("text/html; charset=utf-8", "<html>hello</html>"), "it sent HTML instead of a JSON object"),
        (Reply::text("application/json", "\n <!doctype html>"), "it sent HTML instead of a JSON object"),
        (Reply::text("application/json", "[{}]"), "it sent a JSON list instead of a JSON object"),
        (Reply::text("application/json", "\"x\""), "it sent a JSON value instead of a JSON object"),
        (Reply::text("application/json", ""), "it sent an empty body instead of a JSON object"),
        (Reply::text("application/json", "{\"a\":1} x"), "it sent text instead of a JSON object"),
        (Reply::text("application/json", &"{\"a\":".repeat(100_000)), "it sent text instead of a JSON object"),
        (Reply::text("application/json", &" ".repeat((1 << 20) + 1)), "it sent more than 1 MiB"),
        (Reply::Endless, "it sent more than 1 MiB"),
        (Reply::status(500), "it answered with HTTP status 500 (Internal Server Error)"),
        (Reply::status(429), "it answered with HTTP status 429 (Too Many Requests)"),
        (Reply::Nothing, "the connection broke: connection closed before message completed"),
    ];
    for (reply, expected) in cases {
        let reply = parking_lot::Mutex::new(Some(reply));
        let site = Site::start(|_| move |_: &Received| reply.lock().take().unwrap_or(Reply::Nothing)).await;
        let error = failure(&fetcher(&site.origin), &format!("{}/x?token=abc", site.origin)).await;
        assert_eq!(error.to_string(), format!("{}/x?***: {expected}", site.origin));
        let headers = site.last().headers.to_ascii_lowercase();
        assert!(headers.contains("accept: application/json\r\n") && headers.contains("accept-encoding: identity\r\n"));
    }
    for status in [400, 401, 403, 404, 410] {
        let site = Site::start(|_| move |_: &Received| Reply::status(status)).await;
        let fetcher = fetcher(&site.origin);
        let url = fetcher.check("URL", &site.origin).expect("a URL");
        assert!(fetcher.document(&url).await.expect("no page").is_none(), "{status}");
    }
}

#[tokio::test]
async fn oauth1_a_dripping_answer_ends_with_the_timeout() {
    let started = Arc::new(Notify::new());
    let drips = Arc::clone(&started);
    let site = Site::start(|_| move |_: &Received| Reply::Drip(Arc::clone(&drips))).await;
    let fetcher = fetcher(&site.origin);
    let url = format!("{}/x", site.origin);
    let fetch = failure(&fetcher, &url);
    tokio::pin!(fetch);
    tokio::select! {
        error = &mut fetch => panic!("{error}"),
        () = started.notified() => {}
    }
    tokio::time::pause();
    let begin = Instant::now();
    assert_eq!(fetch.await.to_string(), format!("{url}: it did not answer within 10 s"));
    let waited = begin.elapsed();
    assert!((Duration::from_secs(8)..Duration::from_secs(11)).contains(&waited), "{waited:?}");
}
