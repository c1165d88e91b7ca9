//! The headers that repeat parts of a request, in versions without a handshake. Proxies use them to route requests
//! without reading bodies.

use http::header::{HeaderName, HeaderValue};
use smallvec::SmallVec;

use crate::headers::{METHOD, NAME};
use crate::mirror::{Mirrors, encode};
use crate::{Method, Request};

/// The parts of a request that HTTP repeats in headers.
#[derive(Clone, Copy)]
pub struct HeaderSource<'a> {
    pub method: &'a Method,
    /// The tool, prompt or resource that the request names.
    pub name: Option<&'a str>,
    /// The arguments to repeat, and the request that contains them.
    pub mirrors: Option<(&'a Mirrors, &'a Request)>,
}

/// The headers of one request, before they are added to the link's headers.
pub type MirrorHeaders = SmallVec<[(HeaderName, HeaderValue); 2]>;

/// Returns the headers for a request.
pub fn headers(source: HeaderSource<'_>) -> MirrorHeaders {
    let mut headers = MirrorHeaders::new();
    let mut add = |name: HeaderName, value: &str| {
        // An encoded value is always valid in a header. A method that is not valid matches no known method.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.push((name, value));
        }
    };
    add(METHOD, source.method.as_str());
    if let Some(name) = source.name {
        add(NAME, &encode(name));
    }
    let mirrored = source
        .mirrors
        .into_iter()
        .flat_map(|(mirrors, request)| mirrors.headers(request.raw.as_str(), request.params.arguments));
    for (name, value) in mirrored {
        if let Ok(name) = HeaderName::try_from(name) {
            add(name, &value);
        }
    }
    headers
}
