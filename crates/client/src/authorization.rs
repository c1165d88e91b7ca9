//! The `Authorization` header of the requests to one server.
//!
//! A login implements [`Authorization`]. [`AuthorizedClient`] adds the header to each request. After a 401 it asks the
//! login for another header and repeats the request once: the server did not handle the first one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, Either, ready};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::timeout;

use crate::connect::{HttpClient, RequestError, ResponseBody};

/// The longest body of a 401 that is read so that its connection can carry the repeated request.
const MAX_REJECTION: usize = 64 << 10;
/// The time to read that body.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// Supplies the `Authorization` header of the requests to one server.
pub trait Authorization: Send + Sync {
    /// Returns the header to send now. Must be cheap: an atomic load.
    fn header(&self) -> Option<HeaderValue>;

    /// Reports whether the tokens have expired and can be refreshed. An authorization server may end the login of a client
    /// that sends an expired token. Must be cheap.
    fn is_stale(&self) -> bool {
        false
    }

    /// Refreshes expired tokens. Returns an error with the reason if a later attempt may succeed.
    fn renew(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }

    /// Handles a response with status 401 to a request that was sent with `sent`. Returns a header to repeat the
    /// request with, or `None` if a login is needed. Returns an error with the reason if there is no new header for
    /// now: another request may succeed later. `peer` is the address of the connection.
    fn rejected(
        &self,
        sent: Option<HeaderValue>,
        response: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> BoxFuture<'_, Result<Option<HeaderValue>, String>>;

    /// Handles a response with status 401 to a request that was repeated with `sent`.
    fn rejected_again(&self, sent: &HeaderValue, response: &HeaderMap);

    /// Notes a response with status 403 and `error="insufficient_scope"`: the next login asks for the union of scopes.
    /// Returns whether the response was one.
    fn scope_missing(&self, response: &HeaderMap) -> bool;
}

/// An HTTP client of one server that adds its `Authorization` header and repeats a request once after a 401.
#[derive(Clone)]
pub struct AuthorizedClient {
    client: HttpClient,
    authorization: Option<Arc<dyn Authorization>>,
}

impl AuthorizedClient {
    pub fn new(client: HttpClient, authorization: Option<Arc<dyn Authorization>>) -> AuthorizedClient {
        AuthorizedClient { client, authorization }
    }

    /// Returns the client without the header.
    pub fn plain(&self) -> &HttpClient {
        &self.client
    }

    /// Sends the request that `build` returns, which must be the same at each call. A response with status 401 is
    /// returned if a login is needed, or if the server rejects the repeated request too.
    pub fn send(
        &self,
        build: impl Fn() -> Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, RequestError>> {
        match self.authorization.as_deref() {
            None => Either::Left(self.client.request(build())),
            Some(authorization) => Either::Right(self.send_authorized(authorization, build)),
        }
    }

    /// Reports whether the server rejected a request because it needs a login.
    pub fn needs_login(&self, response: &Response<ResponseBody>) -> bool {
        response.status() == StatusCode::UNAUTHORIZED && self.authorization.is_some()
    }

    /// Reports whether the server rejected a request because its token lacks a scope, and notes that for the next login.
    pub fn lacks_scope(&self, response: &Response<ResponseBody>) -> bool {
        response.status() == StatusCode::FORBIDDEN
            && self.authorization.as_deref().is_some_and(|it| it.scope_missing(response.headers()))
    }

    async fn send_authorized(
        &self,
        authorization: &dyn Authorization,
        build: impl Fn() -> Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, RequestError> {
        if authorization.is_stale() {
            authorization.renew().await.map_err(|cause| self.client.unauthorized(cause))?;
        }
        let sent = authorization.header();
        let response = self.client.request(with_header(build(), sent.as_ref())).await?;
        match response.status() {
            StatusCode::UNAUTHORIZED => Box::pin(self.repeat(authorization, sent, response, build)).await,
            _ => Ok(response),
        }
    }

    /// Repeats a request after a 401, unless a login is needed. Returns the 401 otherwise.
    async fn repeat(
        &self,
        authorization: &dyn Authorization,
        sent: Option<HeaderValue>,
        response: Response<ResponseBody>,
        build: impl Fn() -> Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, RequestError> {
        let rejected = authorization.rejected(sent, response.headers(), self.client.last_peer());
        let next = match rejected.await {
            Ok(Some(next)) => next,
            Ok(None) => return Ok(response),
            Err(cause) => return Err(self.client.unauthorized(cause)),
        };
        // Without its whole body the connection cannot be reused, and the client opens another one.
        let mut body = response.into_body();
        let _ = timeout(REJECTION_TIMEOUT, body.whole(MAX_REJECTION)).await;
        drop(body);
        let response = self.client.request(with_header(build(), Some(&next))).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            authorization.rejected_again(&next, response.headers());
        }
        Ok(response)
    }
}

fn with_header(mut request: Request<Full<Bytes>>, header: Option<&HeaderValue>) -> Request<Full<Bytes>> {
    if let Some(header) = header {
        request.headers_mut().insert(AUTHORIZATION, header.clone());
    }
    request
}

#[cfg(test)]
mod tests;
