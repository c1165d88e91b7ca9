//! The URLs that a server names: which of them the gateway uses at all.
//!
//! The parser is strict. Another program, such as a browser or a proxy, may read an unusual URL differently.

use std::net::{IpAddr, Ipv6Addr};

use goblin_config::mask;
use goblin_telemetry::clean;
use http::Uri;

use crate::error::UrlFault;

/// The length limit of a URL that a server names.
pub(crate) const MAX_URL: usize = 2048;
/// The longest text of a remote server in an error.
const MAX_SHOWN: usize = 200;

/// A URL with scheme `https` (or `http`), a host, and no user name or fragment.
#[derive(Clone, Debug)]
pub(crate) struct CheckedUrl {
    text: String,
    uri: Uri,
}

/// Whether `http` is allowed for hosts on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainHttp {
    Refused,
    OnLoopback,
}

impl CheckedUrl {
    /// Reads an absolute URL. Keeps it as written.
    pub(crate) fn parse(text: &str, plain_http: PlainHttp) -> Result<CheckedUrl, UrlFault> {
        if text.len() > MAX_URL {
            return Err(UrlFault::Length);
        }
        if text.contains('#') {
            return Err(UrlFault::Fragment);
        }
        if !text.bytes().all(is_url_byte) {
            return Err(UrlFault::Characters);
        }
        let uri: Uri = text.parse().map_err(|_| UrlFault::Form)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(UrlFault::Form) };
        if authority.as_str().contains('@') {
            return Err(UrlFault::User);
        }
        check_host(authority.host())?;
        // `Uri` accepts a port that is empty or too large.
        if authority.as_str().len() > authority.host().len() && authority.port_u16().is_none() {
            return Err(UrlFault::Form);
        }
        match scheme {
            "https" => {}
            "http" if plain_http == PlainHttp::OnLoopback && is_loopback(authority.host()) => {}
            _ => return Err(UrlFault::Scheme),
        }
        Ok(CheckedUrl { text: text.to_owned(), uri })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(crate) fn host(&self) -> &str {
        self.uri.host().unwrap_or_default()
    }

    /// Returns the host as an address if it is one.
    pub(crate) fn literal(&self) -> Option<IpAddr> {
        unbracketed(self.host()).parse().ok()
    }
}

/// Returns a URL of a remote server for a message: masked, cleaned and cut.
pub(crate) fn shown_url(text: &str) -> String {
    shown(&mask::url(text))
}

/// Returns a text of a remote server for a message: cleaned and cut.
pub(crate) fn shown(text: &str) -> String {
    let mut text = clean(text);
    if let Some((end, _)) = text.char_indices().nth(MAX_SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Reports whether the host is this machine by its name or its address.
pub(crate) fn is_loopback(host: &str) -> bool {
    let name = unbracketed(host);
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => name.eq_ignore_ascii_case("localhost"),
    }
}

/// Reports whether a text can be an argument of a program that opens a browser, even if that program uses a shell.
pub(crate) fn is_safe_for_opener(url: &str) -> bool {
    let is_safe = |byte: u8| byte.is_ascii_graphic() && !b"\"'`$;|<>\\^{}".contains(&byte);
    url.bytes().all(is_safe)
}

/// Reports whether RFC 3986 allows the byte in a URL.
fn is_url_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:/?[]@!$&'()*+,;=%".contains(&byte)
}

fn check_host(host: &str) -> Result<(), UrlFault> {
    if let Some(inner) = host.strip_prefix('[') {
        let address = inner.strip_suffix(']').and_then(|inner| inner.parse::<Ipv6Addr>().ok());
        return address.map(|_| ()).ok_or(UrlFault::Host);
    }
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if host.is_empty() || !host.bytes().all(is_name_byte) {
        return Err(UrlFault::Form);
    }
    // Resolvers accept octal, hexadecimal and shortened addresses. The last label shows that a host is one.
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_hexadecimal = last.len() > 1 && last.as_bytes()[..2].eq_ignore_ascii_case(b"0x");
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || is_hexadecimal;
    if is_number && host.parse::<IpAddr>().is_err() {
        return Err(UrlFault::Host);
    }
    Ok(())
}

fn unbracketed(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oauth1_an_unusual_url_is_refused() {
        let long = format!("https://a.example/{}", "x".repeat(MAX_URL));
        let cases = [
            ("https://user@a.example/", UrlFault::User),
            ("https://a.example@127.0.0.1/", UrlFault::User),
            ("https://user:pass@a.example/", UrlFault::User),
            ("https://a.example/#x", UrlFault::Fragment),
            ("https://a.example/ x", UrlFault::Characters),
            ("https://a.example/\tx", UrlFault::Characters),
            ("https://a.example/\r\nHost: b", UrlFault::Characters),
            ("https://a.example/\u{7f}", UrlFault::Characters),
            ("https://a.example/\\..", UrlFault::Characters),
            ("https://a.example/`id`", UrlFault::Characters),
            ("https://ä.example/", UrlFault::Characters),
            ("https://a%2eb.example/", UrlFault::Form),
            ("https://a.example:99999/", UrlFault::Form),
            ("https://a.example:/", UrlFault::Form),
            ("https:///x", UrlFault::Form),
            ("/relative", UrlFault::Form),
            ("a.example", UrlFault::Form),
            ("", UrlFault::Form),
            ("http://a.example/", UrlFault::Scheme),
            ("http://127.0.0.1/", UrlFault::Scheme),
            ("file:///etc/passwd", UrlFault::Form),
            ("ftp://a.example/", UrlFault::Scheme),
            ("javascript://a.example/", UrlFault::Scheme),
            ("https://2130706433/", UrlFault::Host),
            ("https://0x7f000001/", UrlFault::Host),
            ("https://0X7f.1/", UrlFault::Host),
            ("https://0177.0.0.1/", UrlFault::Host),
            ("https://127.1/", UrlFault::Host),
            ("https://0/", UrlFault::Host),
            ("https://127.0.0.1./", UrlFault::Host),
            ("https://127.0.0.0x1/", UrlFault::Host),
            ("https://[fe80::1%25eth0]/", UrlFault::Host),
            (long.as_str(), UrlFault::Length),
        ];
        for (text, fault) in cases {
            assert_eq!(CheckedUrl::parse(text, PlainHttp::Refused).map(|it| it.text), Err(fault), "{text}");
        }
    }

    #[test]
    fn oauth1_plain_http_is_for_this_machine_only() {
        for text in ["http://127.0.0.1:8/a", "http://localhost/", "http://[::1]:8/", "https://a.example:8443/a?b=c"] {
            let url = CheckedUrl::parse(text, PlainHttp::OnLoopback).unwrap_or_else(|fault| panic!("{text}: {fault}"));
            assert_eq!(url.as_str(), text);
        }
        for text in ["http://a.example/", "http://10.0.0.1/", "http://localhost.a.example/", "http://8.8.8.8/"] {
            let fault = CheckedUrl::parse(text, PlainHttp::OnLoopback).map(|it| it.text);
            assert_eq!(fault, Err(UrlFault::Scheme), "{text}");
        }
        assert_eq!(
            CheckedUrl::parse("https://[::ffff:10.0.0.1]/", PlainHttp::Refused).expect("a URL").literal(),
            Some("::ffff:10.0.0.1".parse().expect("an address"))
        );
    }

    #[test]
    fn oauth1_a_text_of_a_server_is_cut_and_cleaned() {
        assert_eq!(shown("a\u{1b}[31mb\n"), "a[31mb ");
        assert_eq!(shown(&"é".repeat(300)).chars().count(), MAX_SHOWN + 1);
        assert_eq!(shown_url("https://user:pw@a.example/x?token=abc"), "https://***@a.example/x?***");
        for text in ["a b", "a\"", "a'", "a`", "a$", "a;", "a|", "a<", "a>", "a\\", "a\n", "a\u{0}", "ä"] {
            assert!(!is_safe_for_opener(text), "{text:?}");
        }
        assert!(is_safe_for_opener("https://a.example/x?y=z&w=%20~-._#"));
    }
}
