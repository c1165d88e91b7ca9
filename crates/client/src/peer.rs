//! The client's side of a pipe to a gateway: lines out, messages in. It answers pings; the rest is for whoever listens.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

use crate::bridge::LARGEST_MESSAGE;
use goblin_wire::dialect::Dialect;
use goblin_wire::error::Error;
use goblin_wire::framing::{Frame, Lines};
use goblin_wire::json::quote;
use goblin_wire::method::Method;
use goblin_wire::{Id, Message, Notification, Outcome, Request, Response};

pub struct Peer {
    reader: ReadHalf<DuplexStream>,
    writer: WriteHalf<DuplexStream>,
    lines: Lines,
    /// Goes out while we listen, so that neither side waits for the other.
    unsent: BytesMut,
    requests: u64,
}

pub enum Heard {
    Answer(Response),
    Told(Notification),
    /// It waits for [`Peer::answer`] or [`Peer::refuse`].
    Asked(Request),
}

impl Peer {
    pub fn new(pipe: DuplexStream) -> Peer {
        let (reader, writer) = tokio::io::split(pipe);
        Peer { reader, writer, lines: Lines::new(LARGEST_MESSAGE), unsent: BytesMut::new(), requests: 0 }
    }

    /// The handshake, as a client of this name with these capabilities. Gives the answer; nothing at the end.
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

    /// Sends a request; tells the number by which its answer is known.
    pub fn request(&mut self, method: &Method, params: &str) -> u64 {
        self.requests += 1;
        self.send(&goblin_wire::request(&Id::from(self.requests), method, params));
        self.requests
    }

    pub fn notify(&mut self, method: &Method, params: Option<&str>) {
        self.send(&goblin_wire::notification(method, params));
    }

    pub fn answer(&mut self, ask: &Request, result: String) {
        self.send(&goblin_wire::reply(&ask.id, result).concat());
    }

    /// Says that we cannot do what we are asked for.
    pub fn refuse(&mut self, ask: &Request) {
        let error = Error::MethodNotFound(ask.method.to_string()).to_json();
        self.send(&goblin_wire::error_reply(Some(&ask.id), &error).concat());
    }

    fn send(&mut self, message: &Bytes) {
        self.unsent.extend_from_slice(message);
        self.unsent.extend_from_slice(b"\n");
    }

    /// The answer to a request, where nothing else is of interest; nothing at the end.
    pub async fn answer_to(&mut self, number: u64) -> Option<Response> {
        loop {
            match self.next().await? {
                Heard::Answer(answer) if answer.id.as_ref().and_then(Id::as_u64) == Some(number) => {
                    return Some(answer);
                }
                Heard::Asked(ask) => self.refuse(&ask),
                Heard::Answer(_) | Heard::Told(_) => {}
            }
        }
    }

    /// The next message; nothing at the end. May be dropped at any time.
    pub async fn next(&mut self) -> Option<Heard> {
        loop {
            while let Some(frame) = self.lines.take() {
                if let Frame::Whole(line) = frame
                    && let Some(heard) = self.hear(line)
                {
                    return Some(heard);
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

    /// Sends what was not sent yet, without listening.
    pub async fn flush(&mut self) {
        // Where nobody takes it, nobody is there to be told.
        let _ = self.writer.write_all_buf(&mut self.unsent).await;
    }

    fn hear(&mut self, line: Bytes) -> Option<Heard> {
        match Message::parse(line).ok()? {
            Message::Response(answer) => Some(Heard::Answer(answer)),
            Message::Notification(told) => Some(Heard::Told(told)),
            Message::Request(ask) if ask.method == Method::Ping => {
                self.answer(&ask, "{}".to_owned());
                None
            }
            Message::Request(ask) => Some(Heard::Asked(ask)),
        }
    }
}
