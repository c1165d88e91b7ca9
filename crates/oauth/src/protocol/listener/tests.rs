use std::io::{Read, Write};
use std::net::TcpStream as Client;

use tokio::task::spawn_blocking;

use super::*;

async fn listener(host: CallbackHost) -> (CallbackListener, String) {
    let listener = CallbackListener::bind(Callback { host, port: None }).await.expect("a listener");
    let uri = listener.redirect_uri().to_owned();
    let authority = uri.strip_prefix("http://").and_then(|rest| rest.strip_suffix(PATH)).expect("a URL").to_owned();
    (listener, authority)
}

/// Sends bytes and returns the whole response.
async fn exchange(authority: &str, request: String) -> String {
    let authority = authority.to_owned();
    let exchange = move || {
        let mut client = Client::connect(&authority).expect("a connection");
        let mut response = String::new();
        // The listener closes a connection on which it will not read everything.
        let _ = client.write_all(request.as_bytes()).and_then(|()| client.read_to_string(&mut response));
        response
    };
    spawn_blocking(exchange).await.expect("a response")
}

async fn get(authority: &str, path: &str) -> String {
    exchange(authority, format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await
}

#[tokio::test]
async fn oauth1_the_listener_hands_over_the_address_of_a_callback() {
    let (listener, authority) = listener(CallbackHost::Address).await;
    assert!(authority.starts_with("127.0.0.1:"), "{authority}");
    let response = get(&authority, "/callback?code=c%2F1&state=%3Cscript%3Es3cret&iss=x").await;
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with(DONE), "{response}");
    let headers = response.to_ascii_lowercase();
    for header in
        ["content-security-policy: default-src 'none'", "referrer-policy: no-referrer", "cache-control: no-store"]
    {
        assert!(headers.contains(header), "{response}");
    }
    assert!(!response.contains("s3cret") && !headers.contains("<script"), "{response}");
    assert_eq!(listener.next().await, format!("http://{authority}/callback?code=c%2F1&state=%3Cscript%3Es3cret&iss=x"));
    get(&authority, "/callback?error=access_denied&state=s").await;
    assert_eq!(listener.next().await, format!("http://{authority}/callback?error=access_denied&state=s"));
}

#[tokio::test]
async fn oauth1_the_listener_ignores_other_pages() {
    let (listener, authority) = listener(CallbackHost::Address).await;
    let request = |method: &str, path: &str, host: &str| format!("{method} {path} HTTP/1.1\r\n{host}\r\n");
    let own = format!("Host: {authority}\r\n");
    let port = authority.rsplit_once(':').expect("a port").1;
    let cases = [
        ("GET", "/", own.clone(), "404"),
        ("GET", "/favicon.ico", own.clone(), "404"),
        ("GET", "/callback/?code=c", own.clone(), "404"),
        ("GET", "/callback", own.clone(), "400"),
        ("GET", "/callback?state=s", own.clone(), "400"),
        ("GET", "/callback?xcode=c&y=code=", own.clone(), "400"),
        ("POST", "/callback?code=c", format!("{own}Content-Length: 0\r\n"), "405"),
        ("HEAD", "/callback?code=c", own.clone(), "405"),
        ("OPTIONS", "/callback?code=c", own.clone(), "405"),
        ("GET", "/callback?code=c", "Host: evil.example\r\n".to_owned(), "400"),
        ("GET", "/callback?code=c", format!("Host: localhost:{port}\r\n"), "400"),
        ("GET", "/callback?code=c", "Host: 127.0.0.1\r\n".to_owned(), "400"),
        ("GET", "/callback?code=c", format!("{own}{own}"), "400"),
        ("GET", "/callback?code=c", String::new(), "400"),
        ("GET", &format!("/callback?code={}", "c".repeat(MAX_CALLBACK)), own.clone(), "503"),
    ];
    for (method, path, host, status) in cases {
        let response = exchange(&authority, request(method, path, &host)).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path:.60} {host:.60}: {response}");
    }
    let long = format!("{own}X: {}\r\n", "x".repeat(4 * MAX_HEAD));
    let response = exchange(&authority, request("GET", "/callback?code=c", &long)).await;
    assert!(!response.contains(" 200 "), "{response}");
    assert!(listener.queue.waiting.lock().is_empty());
}

#[tokio::test]
async fn oauth1_the_listener_keeps_a_bounded_number_of_callbacks() {
    let (listener, authority) = listener(CallbackHost::Address).await;
    for index in 0..MAX_WAITING + 1 {
        let response = get(&authority, &format!("/callback?code={index}")).await;
        let status = if index < MAX_WAITING { "HTTP/1.1 200 " } else { "HTTP/1.1 503 " };
        assert!(response.starts_with(status), "{index}: {response}");
    }
    for index in 0..MAX_WAITING {
        assert_eq!(listener.next().await, format!("http://{authority}/callback?code={index}"));
    }
    assert!(timeout(Duration::ZERO, listener.next()).await.is_err());
}

#[tokio::test]
async fn oauth1_the_listener_listens_on_localhost_and_on_a_fixed_port() {
    let (listener, authority) = listener(CallbackHost::Localhost).await;
    let port: u16 = authority.strip_prefix("localhost:").and_then(|port| port.parse().ok()).expect("a port");
    for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        if address.starts_with('[') && listener.tasks.len() == 1 {
            continue;
        }
        let request = format!("GET /callback?code=c HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        assert!(exchange(&address, request).await.starts_with("HTTP/1.1 200 "));
        assert_eq!(listener.next().await, format!("http://localhost:{port}/callback?code=c"));
    }
    for host in [CallbackHost::Address, CallbackHost::Localhost] {
        let taken = CallbackListener::bind(Callback { host, port: Some(port) }).await.map(|_| ()).expect_err("taken");
        let name = if host == CallbackHost::Address { "127.0.0.1" } else { "localhost" };
        let LoginError::Listener { address, .. } = taken else { panic!("{taken}") };
        assert_eq!(address, format!("{name}:{port}"));
    }
    drop(listener);
    // The aborted tasks close their sockets at the next poll.
    let free = Callback { host: CallbackHost::Localhost, port: Some(port) };
    let again = async {
        loop {
            match CallbackListener::bind(free).await {
                Ok(listener) => return listener,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let again = timeout(Duration::from_secs(10), again).await.expect("the port is free again");
    assert_eq!(again.redirect_uri(), format!("http://localhost:{port}/callback"));
}

#[tokio::test]
async fn oauth1_an_idle_connection_does_not_keep_the_listener_busy() {
    let (listener, authority) = listener(CallbackHost::Address).await;
    let idle: Vec<TcpStream> = {
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            idle.push(TcpStream::connect(&authority).await.expect("a connection"));
        }
        idle
    };
    let mut waiting = TcpStream::connect(&authority).await.expect("a connection");
    let request = format!("GET /callback?code=c HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    tokio::io::AsyncWriteExt::write_all(&mut waiting, request.as_bytes()).await.expect("a request");
    tokio::time::pause();
    let begin = tokio::time::Instant::now();
    assert_eq!(listener.next().await, format!("http://{authority}/callback?code=c"));
    assert!(begin.elapsed() < CONNECTION_TIMEOUT + Duration::from_secs(1));
    drop(idle);
}
