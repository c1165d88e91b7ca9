//! The client's end of a pipe to a gateway: writes lines and reads messages. It answers pings itself; all other
//! messages go to the caller.

use bytes::{Bytes, BytesMut};
use goblin_wire::framing::{Frame, LineDecoder};
use goblin_wire::json::quote;
use goblin_wire::{Dialect, Error, Id, Message, Method, Notification, Outcome, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

use crate::bridge::MAX_MESSAGE;

pub struct Peer {
    reader: ReadHalf<DuplexStream>,
    writer: WriteHalf<DuplexStream>,
    lines: LineDecoder,
    /// The bytes to write. [`Peer::next`] writes them while it reads, so that neither side waits for the other.
    unsent: BytesMut,
    requests: u64,
}

pub enum PeerMessage {
    Answer(Response),
    Notification(Notification),
    /// A request that waits for [`Peer::answer`] or [`Peer::refuse`].
    Request(Request),
}

impl Peer {
    pub fn new(pipe: DuplexStream) -> Peer {
        let (reader, writer) = tokio::io::split(pipe);
        Peer { reader, writer, lines: LineDecoder::new(MAX_MESSAGE), unsent: BytesMut::new(), requests: 0 }
    }

    /// Performs the handshake with this client name and these capabilities. Returns the response, or `None` if the
    /// gateway closed the pipe.
    pub async fn begin(&mut self, name: &str, capabilities: &str) -> Option<Response> {
        let (version, own) = (Dialect::NEWEST_WITH_HANDSHAKE.as_str(), env!("CARGO_PKG_VERSION"));
        let about = format!(r#"{{"name":{},"version":"{own}"}}"#, quote(name));
        let params = format!(r#"{{"protocolVersion":"{version}","capabilities":{capabilities},"clientInfo":{about}}}"#);
        let number = self.request(&Method::Initialize, &params);
        let answer = self.answer_to(number).await?;
        if let Outcome::Result(_) = answer.outcome {
            self.notify(&Method::Initialized, None);
        }
        Some(answer)
    }

    /// Queues a request. Returns its id, which is also the id of its response.
    pub fn request(&mut self, method: &Method, params: &str) -> u64 {
        self.requests += 1;
        self.send(&goblin_wire::request(&Id::from(self.requests), method, params));
        self.requests
    }

    pub fn notify(&mut self, method: &Method, params: Option<&str>) {
        self.send(&goblin_wire::notification(method, params));
    }

    pub fn answer(&mut self, request: &Request, result: String) {
        self.send(&goblin_wire::reply(&request.id, result).concat());
    }

    /// Rejects a request with "method not found".
    pub fn reject(&mut self, request: &Request) {
        let error = Error::MethodNotFound(request.method.to_string()).to_json();
        self.send(&goblin_wire::error_reply(Some(&request.id), &error).concat());
    }

    fn send(&mut self, message: &Bytes) {
        self.unsent.extend_from_slice(message);
        self.unsent.extend_from_slice(b"\n");
    }

    /// Returns the response to a request, and ignores everything else. Returns `None` if the gateway closed the pipe.
    pub async fn answer_to(&mut self, number: u64) -> Option<Response> {
        loop {
            match self.next().await? {
                PeerMessage::Answer(answer) if answer.id.as_ref().and_then(Id::as_u64) == Some(number) => {
                    return Some(answer);
                }
                PeerMessage::Request(request) => self.reject(&request),
                PeerMessage::Answer(_) | PeerMessage::Notification(_) => {}
            }
        }
    }

    /// Returns the next message, or `None` if the gateway closed the pipe. Cancel safe.
    pub async fn next(&mut self) -> Option<PeerMessage> {
        loop {
            while let Some(frame) = self.lines.take() {
                if let Frame::Whole(line) = frame
                    && let Some(message) = self.parse(line)
                {
                    return Some(message);
                }
            }
            let is_open = tokio::select! {
                read = self.reader.read_buf(self.lines.buffer()) => matches!(read, Ok(1..)),
                written = self.writer.write_buf(&mut self.unsent), if !self.unsent.is_empty() => written.is_ok(),
            };
            if !is_open {
                return None;
            }
        }
    }

    /// Writes all queued bytes without reading.
    pub async fn flush(&mut self) {
        // An error means that the gateway is gone, so there is no receiver.
        let _ = self.writer.write_all_buf(&mut self.unsent).await;
    }

    fn parse(&mut self, line: Bytes) -> Option<PeerMessage> {
        match Message::parse(line).ok()? {
            Message::Response(answer) => Some(PeerMessage::Answer(answer)),
            Message::Notification(notification) => Some(PeerMessage::Notification(notification)),
            Message::Request(request) if request.method == Method::Ping => {
                self.answer(&request, "{}".to_owned());
                None
            }
            Message::Request(request) => Some(PeerMessage::Request(request)),
        }
    }
}
