//! Reads the `WWW-Authenticate` headers of a server.
use http::HeaderMap;

/// What a server says when it rejects a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub resource_metadata: Option<String>,
    pub scopes: Vec<String>,
    pub error: Option<String>,
}

impl Challenge {
    /// Reads the first Bearer challenge. Returns an empty one if there is none.
    pub(crate) fn read(_headers: &HeaderMap) -> Challenge {
        todo!()
    }
    pub(crate) fn lacks_scope(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }
}
