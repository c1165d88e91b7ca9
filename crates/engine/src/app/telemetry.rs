//! Exports spans to a collector with OTLP over HTTP.
//!
//! It uses JSON and the HTTP client of the backends, so it needs no further crate. If the collector is unreachable, the
//! spans are dropped. The log reports that once until it works again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use goblin_client::connect::{HttpClient, ProxyEnvironment};
use goblin_config::Telemetry;
use goblin_telemetry::spans::{CallSpan, Spans, encode};
use goblin_telemetry::{Event, Observe, worker};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Uri};
use http_body_util::Full;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::upstream::supervisor::stopped;

/// The path of traces, relative to the collector's URL.
const TRACES: &str = "/v1/traces";
/// The largest number of spans in one request, and the time that the first one waits for others.
const MAX_BATCH_SPANS: usize = 512;
const BATCH_TIME: Duration = Duration::from_secs(1);
/// The timeout of a request to the collector.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the export if a collector is configured. Returns the queue of spans and the task.
pub(crate) fn start(
    telemetry: &Telemetry,
    proxies: &ProxyEnvironment,
    observe: &Arc<Observe>,
    stop: &watch::Sender<bool>,
) -> Option<(Spans, JoinHandle<()>)> {
    match Exporter::new(telemetry.otlp.as_deref()?, proxies, Arc::clone(observe)) {
        Ok(exporter) => {
            let (spans, taken) = Spans::new(Arc::clone(observe));
            Some((spans, worker::spawn(exporter.run(taken, stop.subscribe()))))
        }
        Err(error) => {
            observe.emit(&Event::SpansFailed { reason: &error.to_string(), repeated: false });
            None
        }
    }
}

/// Waits for the last spans to be sent, at most [`SHUTDOWN_TIMEOUT`].
pub(crate) async fn finish(exporter: JoinHandle<()>) {
    // Spans that take longer are lost.
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, exporter).await;
}

struct Exporter {
    client: HttpClient,
    url: Uri,
    observe: Arc<Observe>,
    /// The last request failed.
    is_failing: bool,
}

impl Exporter {
    /// Creates an exporter for the collector at `base`, a URL that the configuration has checked.
    fn new(base: &str, proxies: &ProxyEnvironment, observe: Arc<Observe>) -> Result<Exporter> {
        let url = traces_of(base)?;
        let client = HttpClient::new(&url, None, proxies)?;
        Ok(Exporter { client, url, observe, is_failing: false })
    }

    /// Sends spans in batches until `stop` is set, then sends the rest.
    async fn run(mut self, mut spans: mpsc::Receiver<CallSpan>, mut stop: watch::Receiver<bool>) {
        let mut batch = Vec::new();
        loop {
            let is_over = tokio::select! {
                biased;
                () = stopped(&mut stop) => true,
                has_spans = gather(&mut spans, &mut batch) => !has_spans,
            };
            if is_over {
                break;
            }
            let sent = self.send(&batch, EXPORT_TIMEOUT).await;
            self.report(sent);
            batch.clear();
        }
        while batch.len() < MAX_BATCH_SPANS
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        if !batch.is_empty() {
            let sent = self.send(&batch, SHUTDOWN_TIMEOUT).await;
            self.report(sent);
        }
    }

    async fn send(&self, batch: &[CallSpan], timeout: Duration) -> Result<()> {
        let mut request = Request::new(Full::new(encode(batch)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match tokio::time::timeout(timeout, self.client.request(request)).await {
            Ok(Ok(response)) if response.status().is_success() => Ok(()),
            Ok(Ok(response)) => bail!("the collector answered {}", response.status()),
            Ok(Err(error)) => bail!(error),
            Err(_) => bail!("the collector did not answer in {}", goblin_wire::units::duration(timeout)),
        }
    }

    fn report(&mut self, sent: Result<()>) {
        let repeated = std::mem::replace(&mut self.is_failing, sent.is_err());
        if let Err(error) = sent {
            self.observe.emit(&Event::SpansFailed { reason: &error.to_string(), repeated });
        }
    }
}

/// Waits for the first span and up to [`BATCH_TIME`] for more. Returns `false` if all senders are dropped. If it is
/// cancelled, `batch` keeps the spans.
async fn gather(spans: &mut mpsc::Receiver<CallSpan>, batch: &mut Vec<CallSpan>) -> bool {
    if spans.recv_many(batch, MAX_BATCH_SPANS).await == 0 {
        return false;
    }
    let more = async {
        while batch.len() < MAX_BATCH_SPANS && spans.recv_many(batch, MAX_BATCH_SPANS - batch.len()).await > 0 {}
    };
    // A timeout sends an incomplete batch.
    let _ = tokio::time::timeout(BATCH_TIME, more).await;
    true
}

fn traces_of(base: &str) -> Result<Uri> {
    let uri: Uri = base.parse()?;
    let path = uri.path().trim_end_matches('/');
    let path = path.strip_suffix(TRACES).unwrap_or(path);
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{path}{TRACES}{query}").try_into()?);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_traces_path_is_added_to_the_otlp_url() {
        let check = |base: &str, expected: &str| {
            assert_eq!(traces_of(base).expect("a URL").to_string(), expected);
        };
        check("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces");
        check("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces");
        check("https://host/otlp?key=a", "https://host/otlp/v1/traces?key=a");
        check("https://host/v1/traces", "https://host/v1/traces");
    }
}
