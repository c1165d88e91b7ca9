//! The client's side of a pipe to a gateway: lines out, lines in, and the manners of a client that can do nothing but listen.

use anyhow::{Result, anyhow};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

use crate::caller::SUBSCRIPTIONS;
use crate::cli::bridge::{LARGEST_MESSAGE, message};
use crate::protocol::dialect::Dialect;
use crate::protocol::error::Error;
use crate::protocol::framing::{Frame, Lines};
use crate::protocol::method::Method;
use crate::protocol::{self, Id, Message, Notification, Request, Response};

pub struct Peer {
    reader: ReadHalf<DuplexStream>,
    writer: WriteHalf<DuplexStream>,
    lines: Lines,
    /// Goes out while we listen, so that neither side waits for the other.
    unsent: BytesMut,
    requests: u64,
}

/// What concerns us.
pub enum Heard {
    Answer(Response),
    Updated(Notification),
}

fn is_update(method: &Method) -> bool {
    matches!(method, Method::ResourceUpdated | Method::ResourceDeleted)
}

impl Peer {
    pub fn new(pipe: DuplexStream) -> Peer {
        let (reader, writer) = tokio::io::split(pipe);
        Peer { reader, writer, lines: Lines::new(LARGEST_MESSAGE), unsent: BytesMut::new(), requests: 0 }
    }

    /// The handshake. We declare nothing but that we know what a deletion is: nobody is here to be asked.
    pub async fn begin(&mut self) -> Result<()> {
        let (version, own) = (Dialect::NEWEST_WITH_HANDSHAKE.as_str(), env!("CARGO_PKG_VERSION"));
        let about = format!(r#"{{"name":"goblin watch","version":"{own}"}}"#);
        let abilities = format!(r#"{{"experimental":{{"{SUBSCRIPTIONS}":{{}}}}}}"#);
        let params = format!(r#"{{"protocolVersion":"{version}","capabilities":{abilities},"clientInfo":{about}}}"#);
        let number = self.request(&Method::Initialize, &params);
        let answer = self.answer_to(number).await.ok_or_else(|| anyhow!("the gateway ended before it answered"))?;
        if let Some(complaint) = message::complaint(answer.raw.bytes()) {
            return Err(anyhow!(complaint));
        }
        self.send(&protocol::notification(&Method::Initialized, None));
        Ok(())
    }

    /// Sends a request; tells the number by which its answer is known.
    pub fn request(&mut self, method: &Method, params: &str) -> u64 {
        self.requests += 1;
        self.send(&protocol::request(&Id::from(self.requests), method, params));
        self.requests
    }

    fn send(&mut self, message: &Bytes) {
        self.unsent.extend_from_slice(message);
        self.unsent.extend_from_slice(b"\n");
    }

    /// The answer to a request before anything is subscribed to; nothing at the end.
    pub async fn answer_to(&mut self, number: u64) -> Option<Response> {
        loop {
            match self.next().await? {
                Heard::Answer(answer) if answer.id.as_ref().and_then(Id::as_u64) == Some(number) => {
                    return Some(answer);
                }
                Heard::Answer(_) | Heard::Updated(_) => {}
            }
        }
    }

    /// The next that concerns us; nothing at the end. May be dropped at any time.
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

    fn hear(&mut self, line: Bytes) -> Option<Heard> {
        match Message::parse(line) {
            Ok(Message::Response(answer)) => Some(Heard::Answer(answer)),
            Ok(Message::Notification(told)) if is_update(&told.method) => Some(Heard::Updated(told)),
            Ok(Message::Request(ask)) => {
                self.answer(&ask);
                None
            }
            Ok(Message::Notification(_)) | Err(_) => None,
        }
    }

    fn answer(&mut self, ask: &Request) {
        let answer = match ask.method {
            Method::Ping => protocol::reply(&ask.id, "{}"),
            _ => protocol::error_reply(Some(&ask.id), &Error::MethodNotFound(ask.method.to_string()).to_json()),
        };
        self.send(&answer.concat());
    }
}
