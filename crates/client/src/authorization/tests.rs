use http::{Method, Uri};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::connect::ProxyEnvironment;

/// A login whose token `old` is replaced by `new` when the server rejects it.
#[derive(Default)]
struct OneRefresh {
    rejections: Mutex<Vec<Option<HeaderValue>>>,
}

impl Authorization for OneRefresh {
    fn header(&self) -> Option<HeaderValue> {
        Some(HeaderValue::from_static("Bearer old"))
    }

    fn rejected(
        &self,
        sent: Option<HeaderValue>,
        _: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> BoxFuture<'_, Result<Option<HeaderValue>, String>> {
        assert!(peer.is_some_and(|address| address.is_loopback()), "{peer:?}");
        self.rejections.lock().push(sent);
        Box::pin(async { Ok(Some(HeaderValue::from_static("Bearer new"))) })
    }

    fn rejected_again(&self, sent: &HeaderValue, _: &HeaderMap) {
        self.rejections.lock().push(Some(sent.clone()));
    }

    fn scope_missing(&self, response: &HeaderMap) -> bool {
        response.contains_key("www-authenticate")
    }
}

/// Serves 401 with `body` unless a request has the token `accepted`. Returns the URL and the tokens that arrive.
async fn server(accepted: &'static str, body: &'static str) -> (Uri, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let record = Arc::clone(&seen);
    goblin_telemetry::worker::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let record = Arc::clone(&record);
            goblin_telemetry::worker::spawn(async move {
                let mut read = vec![0; 8192];
                while let Ok(length @ 1..) = stream.read(&mut read).await {
                    let request = String::from_utf8_lossy(&read[..length]).into_owned();
                    let token = request.split("Bearer ").nth(1).and_then(|rest| rest.split("\r\n").next());
                    record.lock().push(token.unwrap_or("none").to_owned());
                    let (status, body) = match token == Some(accepted) {
                        true => ("200 OK", "fine"),
                        false => ("401 Unauthorized", body),
                    };
                    let response = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                    if stream.write_all(response.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url.parse().expect("a URL"), seen)
}

fn build(url: &Uri) -> Request<Full<Bytes>> {
    let request = Request::builder().method(Method::POST).uri(url.clone());
    request.body(Full::new(Bytes::from_static(b"{}"))).expect("a request")
}

fn client(url: &Uri, authorization: Option<Arc<dyn Authorization>>) -> AuthorizedClient {
    let client = HttpClient::new(url, None, &ProxyEnvironment::default()).expect("a client");
    AuthorizedClient::new(client, authorization)
}

#[tokio::test]
async fn oauth1_a_rejected_request_is_repeated_once_with_the_new_token() {
    for (accepted, status) in [("new", StatusCode::OK), ("other", StatusCode::UNAUTHORIZED)] {
        let (url, seen) = server(accepted, "rejected").await;
        let login = Arc::new(OneRefresh::default());
        let client = client(&url, Some(Arc::clone(&login) as Arc<dyn Authorization>));
        let response = client.send(|| build(&url)).await.expect("a response");
        assert_eq!(response.status(), status);
        assert_eq!(*seen.lock(), ["old", "new"]);
        let expected = if accepted == "new" { vec!["Bearer old"] } else { vec!["Bearer old", "Bearer new"] };
        let rejections = login.rejections.lock().iter().flatten().cloned().collect::<Vec<_>>();
        assert_eq!(rejections, expected);
    }
}

/// A login whose token has expired. The refresh succeeds or fails.
struct Stale {
    outcome: Result<(), String>,
    is_renewed: Mutex<bool>,
}

impl Authorization for Stale {
    fn header(&self) -> Option<HeaderValue> {
        Some(HeaderValue::from_static(if *self.is_renewed.lock() { "Bearer new" } else { "Bearer old" }))
    }

    fn is_stale(&self) -> bool {
        !*self.is_renewed.lock()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), String>> {
        *self.is_renewed.lock() = self.outcome.is_ok();
        Box::pin(async { self.outcome.clone() })
    }

    fn rejected(
        &self,
        _: Option<HeaderValue>,
        _: &HeaderMap,
        _: Option<IpAddr>,
    ) -> BoxFuture<'_, Result<Option<HeaderValue>, String>> {
        Box::pin(async { Ok(None) })
    }

    fn rejected_again(&self, _: &HeaderValue, _: &HeaderMap) {}

    fn scope_missing(&self, _: &HeaderMap) -> bool {
        false
    }
}

#[tokio::test]
async fn oauth3_an_expired_token_is_never_sent() {
    for outcome in [Ok(()), Err("no network".to_owned())] {
        let (url, seen) = server("new", "rejected").await;
        let login = Stale { outcome: outcome.clone(), is_renewed: Mutex::new(false) };
        let client = client(&url, Some(Arc::new(login)));
        let response = client.send(|| build(&url)).await;
        match outcome {
            Ok(()) => assert_eq!(response.expect("a response").status(), StatusCode::OK),
            Err(cause) => {
                let error = response.err().expect("no token");
                assert!(error.is_safe_to_retry() && error.to_string().contains(&cause), "{error}");
            }
        }
        assert!(!seen.lock().contains(&"old".to_owned()), "{:?}", seen.lock());
    }
}

#[tokio::test]
async fn oauth1_without_a_login_a_401_is_the_servers_answer() {
    let (url, seen) = server("new", "rejected").await;
    let client = client(&url, None);
    let mut response = client.send(|| build(&url)).await.expect("a response");
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert!(!client.lacks_scope(&response));
    assert_eq!(response.body_mut().whole(100).await.expect("a body"), "rejected");
    assert_eq!(*seen.lock(), ["none"]);
}
