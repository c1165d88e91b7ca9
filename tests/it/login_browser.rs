//! A browser without a screen: it follows redirects, keeps cookies and submits each form that it gets.

use std::collections::BTreeMap;

use http::header::{LOCATION, SET_COOKIE};
use http::{Method, StatusCode};

use crate::client::Client;
use crate::client::http::Answer;
use crate::login_server::address_of;

/// The limit of pages in one visit.
const MAX_PAGES: usize = 20;

/// A browser with the cookies of one person.
#[derive(Default)]
pub struct Browser {
    cookies: BTreeMap<String, String>,
}

/// The page on which a visit ends.
#[derive(Debug)]
pub struct Page {
    pub url: String,
    pub status: StatusCode,
    pub body: String,
}

impl Browser {
    /// Opens a URL and follows it to the last page.
    pub async fn visit(&mut self, url: &str) -> Page {
        self.follow(url, |_| false).await
    }

    /// Opens a URL and returns the address of the callback that the authorization server sends the browser to. The
    /// browser does not open it.
    pub async fn callback_of(&mut self, url: &str) -> String {
        let origin = address_of(url);
        self.follow(url, |next| address_of(next) != origin).await.url
    }

    /// Opens pages until the last one, or until one satisfies `is_end`, which is not opened.
    async fn follow(&mut self, url: &str, is_end: impl Fn(&str) -> bool) -> Page {
        let (mut url, mut form) = (url.to_owned(), None);
        for _ in 0..MAX_PAGES {
            if is_end(&url) {
                return Page { url, status: StatusCode::OK, body: String::new() };
            }
            let answer = self.load(&url, form.take()).await;
            if let Some(location) = answer.headers.get(LOCATION) {
                url = joined(&url, location.to_str().expect("text"));
                continue;
            }
            match form_of(&answer.body) {
                Some((action, fields)) => (url, form) = (joined(&url, &action), Some(fields)),
                None => return Page { url, status: answer.status, body: answer.body },
            }
        }
        panic!("the browser opened {MAX_PAGES} pages, the last at {url}");
    }

    async fn load(&mut self, url: &str, form: Option<String>) -> Answer {
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        let (path, _fragment) = path.split_once('#').unwrap_or((path, ""));
        let cookies: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let cookies = cookies.join("; ");
        let host = url.split('/').nth(2).expect("a URL has a host");
        let mut headers = vec![("host", host), ("cookie", cookies.as_str())];
        let method = match form {
            Some(_) => Method::POST,
            None => Method::GET,
        };
        if form.is_some() {
            headers.push(("content-type", "application/x-www-form-urlencoded"));
        }
        let client = Client::new(address_of(url));
        let answer = client.send(method, &format!("/{path}"), &headers, form.unwrap_or_default()).await;
        for cookie in answer.headers.get_all(SET_COOKIE) {
            let cookie = cookie.to_str().expect("text").split(';').next().unwrap_or_default();
            let (name, value) = cookie.split_once('=').expect("a cookie has a value");
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        answer
    }
}

/// Returns the absolute form of an address on a page.
fn joined(page: &str, address: &str) -> String {
    match address.starts_with('/') {
        true => format!("{}{address}", page.splitn(4, '/').take(3).collect::<Vec<_>>().join("/")),
        false => address.to_owned(),
    }
}

/// Returns the action and the encoded fields of the first form in a page.
fn form_of(page: &str) -> Option<(String, String)> {
    let form = &page[page.find("<form")?..];
    let attribute = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!(" {name}=\""))?;
        rest.split('"').next().map(str::to_owned)
    };
    let fields = form.split("<input").skip(1).filter_map(|input| {
        let input = input.split('>').next()?;
        Some(format!("{}={}", attribute(input, "name")?, attribute(input, "value")?))
    });
    Some((attribute(form, "action")?, fields.collect::<Vec<_>>().join("&")))
}

/// A test of the harness.
#[test]
fn a_browser_reads_addresses_and_forms() {
    assert_eq!(joined("http://127.0.0.1:1/a/b?c", "/d?e"), "http://127.0.0.1:1/d?e");
    assert_eq!(joined("http://127.0.0.1:1/a", "http://127.0.0.1:2/"), "http://127.0.0.1:2/");
    let page = r#"<p>x</p><form method="post" action="/device"><input type="hidden" name="a" value="1"/>
                  <input type="hidden" name="b" value="2-3"/></form>"#;
    assert_eq!(form_of(page), Some(("/device".to_owned(), "a=1&b=2-3".to_owned())));
    assert_eq!(form_of("<p>done</p>"), None);
}
