//! The built-in server of a directory. A build without the feature `files` has a stand-in that cannot be opened.

#[cfg(feature = "files")]
pub(crate) use goblin_files::{FilesServer, Host};

#[cfg(not(feature = "files"))]
pub(crate) use absent::{FilesServer, Host};

#[cfg(not(feature = "files"))]
mod absent {
    use std::sync::Arc;

    use bytes::Bytes;
    use goblin_config::Files;
    use goblin_telemetry::Event;
    use goblin_wire::{Notification, Response};

    #[expect(dead_code, reason = "the server that calls it is not built")]
    pub(crate) trait Host: Send + Sync {
        fn server(&self) -> &str;
        fn emit(&self, event: &Event<'_>);
        fn resources_changed(&self);
        fn updated(&self, notification: &Notification);
        fn ended(&self, uri: &str);
    }

    pub enum FilesServer {}

    impl FilesServer {
        pub(crate) fn open(_files: &Files, _host: Arc<dyn Host>) -> Result<FilesServer, &'static str> {
            Err("this goblin was built without the feature `files`")
        }

        pub(crate) async fn request(&self, _body: Bytes) -> Result<Response, &'static str> {
            match *self {}
        }

        pub(crate) fn close(&self) {
            match *self {}
        }
    }
}
