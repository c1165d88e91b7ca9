//! A directory as an MCP server, in process: no child, no socket, the same link as any other backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::backend::inbox::Inbox;
use crate::backend::link::LinkError;
use crate::config::Files;
use crate::lane::Call;
use crate::protocol::Response;

pub struct FilesLink {
    next: AtomicU64,
}

/// Why the directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("the directory {} cannot be opened: {reason}", root.display())]
    Root { root: std::path::PathBuf, reason: std::io::Error },
}

impl FilesLink {
    pub fn open(_files: &Files, _inbox: Arc<Inbox>) -> Result<FilesLink, FilesError> {
        Ok(FilesLink { next: AtomicU64::new(1) })
    }

    pub fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub async fn request(&self, _id: u64, _body: Bytes, _call: Option<&Arc<Call>>) -> Result<Response, LinkError> {
        Err(LinkError::Protocol("not there yet".to_owned()))
    }

    pub async fn notify(&self, _body: Bytes) -> Result<(), LinkError> {
        Ok(())
    }

    /// A directory does not hang up; a root that vanished answers its calls with errors.
    pub async fn closed(&self) -> String {
        std::future::pending().await
    }

    pub async fn close(&self) {}
}
