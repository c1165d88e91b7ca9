//! The metrics of a gateway.

use http::{Method, StatusCode};

use crate::client::Client;
use crate::harness::eventually;

/// Returns the lines of a scrape. Asserts its format.
pub async fn scrape(client: &Client) -> Vec<String> {
    let answer = client.send(Method::GET, "/metrics", &[], "").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(answer.body.ends_with("# EOF\n"), "{}", answer.body);
    answer.body.lines().map(str::to_owned).collect()
}

/// Waits until a scrape has this line. A response reaches its client a moment before it is counted.
pub async fn scraped(client: &Client, line: &str) {
    eventually(&format!("a scrape has {line}"), || async {
        scrape(client).await.iter().any(|entry| entry == line).then_some(())
    })
    .await;
}

/// Returns the value of one series, which is a name with its labels. Returns `None` if it is absent.
pub async fn find_metric(client: &Client, series: &str) -> Option<u64> {
    let lines = scrape(client).await;
    let value = lines.iter().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().unwrap_or_else(|error| panic!("{series} {value}: {error}")))
}

/// Returns the value of one series.
pub async fn metric(client: &Client, series: &str) -> u64 {
    find_metric(client, series).await.unwrap_or_else(|| panic!("there is no {series}"))
}

/// Waits until a series has this value.
pub async fn metric_becomes(client: &Client, series: &str, value: u64) {
    eventually(&format!("{series} is {value}"), || async {
        (find_metric(client, series).await == Some(value)).then_some(())
    })
    .await;
}

/// Returns the sum of all series of a family.
pub async fn gauge(client: &Client, family: &str) -> usize {
    let lines = scrape(client).await;
    let series = lines.iter().filter(|line| line.strip_prefix(family).is_some_and(|rest| rest.starts_with(['{', ' '])));
    let values: Vec<usize> =
        series.map(|line| line.rsplit(' ').next().and_then(|it| it.parse().ok()).expect("a count")).collect();
    assert!(!values.is_empty(), "there is no {family} in {lines:?}");
    values.into_iter().sum()
}

/// Waits until the sum of all series of a family has this value.
pub async fn gauge_becomes(client: &Client, family: &str, value: usize) {
    eventually(&format!("{family} is {value}"), || async { (gauge(client, family).await == value).then_some(()) })
        .await;
}
