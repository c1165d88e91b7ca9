//! Decoders that cut byte streams into messages: lines (stdio) and server-sent events (HTTP).
//!
//! A decoder owns its buffer and gives the same messages for any chunking of the input. Memory is bounded. A decoder
//! drops a message that is too long up to its end, reports it once, and continues with the next message.

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2};

/// The number of bytes kept from the start of an over-long message. The caller searches them for the id.
pub const MAX_HEAD_BYTES: usize = 4096;

/// A decoded message, or the report of a dropped one.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<T> {
    Whole(T),
    /// The decoder dropped a message beyond the limit. `head` is its beginning.
    TooLong {
        head: Bytes,
    },
}

/// A decoder for messages separated by line feeds.
pub struct LineDecoder {
    buffer: BytesMut,
    /// The number of bytes at the front of the buffer that are known to contain no line feed.
    scanned: usize,
    limit: usize,
    /// True while the rest of an over-long line is discarded.
    dropping: bool,
}

impl LineDecoder {
    pub fn new(limit: usize) -> LineDecoder {
        LineDecoder { buffer: BytesMut::new(), scanned: 0, limit, dropping: false }
    }

    /// Returns the buffer to read the next bytes into.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.buffer.reserve(8 * 1024);
        &mut self.buffer
    }

    /// Returns the next line without its line ending. Skips blank lines.
    pub fn take(&mut self) -> Option<Frame<Bytes>> {
        loop {
            let Some(offset) = memchr(b'\n', &self.buffer[self.scanned..]) else { return self.keep_within_limit() };
            let mut line = self.buffer.split_to(self.scanned + offset + 1);
            self.scanned = 0;
            if std::mem::take(&mut self.dropping) {
                continue;
            }
            line.truncate(line.len() - 1);
            if line.last() == Some(&b'\r') {
                line.truncate(line.len() - 1);
            }
            if line.len() > self.limit {
                return Some(too_long(&line));
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(Frame::Whole(line.freeze()));
            }
        }
    }

    /// Returns the last line of a stream that ended without a line feed.
    pub fn finish(&mut self) -> Option<Frame<Bytes>> {
        self.buffer.extend_from_slice(b"\n");
        self.take()
    }

    /// Drops the unfinished line if it is already too long.
    fn keep_within_limit(&mut self) -> Option<Frame<Bytes>> {
        self.scanned = self.buffer.len();
        if self.dropping {
            self.buffer.clear();
            self.scanned = 0;
            return None;
        }
        // The extra byte may be the carriage return of the line ending.
        if self.buffer.len() <= self.limit + 1 {
            return None;
        }
        let frame = too_long(&self.buffer);
        // Clearing the buffer instead would keep the memory of the over-long line.
        self.buffer = BytesMut::new();
        self.scanned = 0;
        self.dropping = true;
        Some(frame)
    }
}

fn too_long<T>(message: &[u8]) -> Frame<T> {
    Frame::TooLong { head: Bytes::copy_from_slice(&message[..message.len().min(MAX_HEAD_BYTES)]) }
}

/// A server-sent event. A priming event has an id and no data.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    pub id: Option<String>,
    pub name: Option<String>,
    pub data: Bytes,
    pub retry: Option<u64>,
}

/// A decoder for `text/event-stream`.
pub struct SseDecoder {
    buffer: BytesMut,
    scanned: usize,
    limit: usize,
    data: BytesMut,
    event: SseEvent,
    /// True if the current event exceeds the limit.
    dropping: bool,
    /// True if the buffer holds only the beginning of an over-long line.
    is_truncated: bool,
    /// True if the last line ended in CR. An LF directly after it belongs to the same line ending.
    after_carriage_return: bool,
    /// True until the first line, which may begin with a byte order mark.
    at_start: bool,
}

impl SseDecoder {
    pub fn new(limit: usize) -> SseDecoder {
        SseDecoder {
            buffer: BytesMut::new(),
            scanned: 0,
            limit,
            data: BytesMut::new(),
            event: SseEvent::default(),
            dropping: false,
            is_truncated: false,
            after_carriage_return: false,
            at_start: true,
        }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    pub fn take(&mut self) -> Option<Frame<SseEvent>> {
        while let Some(line) = self.next_line() {
            if !line.is_empty() {
                let is_truncated = std::mem::take(&mut self.is_truncated);
                self.field(&line, is_truncated);
                continue;
            }
            let data = self.data.split().freeze();
            let event = SseEvent { data, ..std::mem::take(&mut self.event) };
            if std::mem::take(&mut self.dropping) {
                return Some(too_long(&event.data));
            }
            if event != SseEvent::default() {
                return Some(Frame::Whole(event));
            }
        }
        None
    }

    fn next_line(&mut self) -> Option<Bytes> {
        if self.after_carriage_return && !self.buffer.is_empty() {
            self.after_carriage_return = false;
            if self.buffer[0] == b'\n' {
                self.buffer.advance(1);
                self.scanned = self.scanned.saturating_sub(1);
            }
        }
        let Some(offset) = memchr2(b'\n', b'\r', &self.buffer[self.scanned..]) else {
            self.scanned = self.buffer.len();
            if self.is_over_long(self.buffer.len()) {
                self.is_truncated = true;
                self.buffer = BytesMut::from(&self.buffer[..MAX_HEAD_BYTES]);
                self.scanned = MAX_HEAD_BYTES;
            }
            return None;
        };
        let mut line = self.buffer.split_to(self.scanned + offset + 1);
        self.scanned = 0;
        self.after_carriage_return = line.last() == Some(&b'\r');
        line.truncate(line.len() - 1);
        self.is_truncated |= self.is_over_long(line.len());
        if std::mem::take(&mut self.at_start) && line.starts_with(b"\xef\xbb\xbf") {
            line.advance(3);
        }
        Some(line.freeze())
    }

    /// Reports whether a line is longer than any valid field. Its first [`MAX_HEAD_BYTES`] bytes still show which field
    /// it is.
    fn is_over_long(&self, length: usize) -> bool {
        length > self.limit + MAX_HEAD_BYTES
    }

    /// Adds a line to the event. An over-long `data` line drops the event. Any other over-long line is ignored.
    fn field(&mut self, line: &[u8], is_over_long: bool) {
        let (name, value) = match memchr(b':', line) {
            Some(at) => (&line[..at], line[at + 1..].strip_prefix(b" ").unwrap_or(&line[at + 1..])),
            None => (line, &b""[..]),
        };
        let text = || String::from_utf8_lossy(value).into_owned();
        self.dropping |= is_over_long && name == b"data";
        match name {
            b"data" => self.add_data(value),
            _ if is_over_long => {}
            b"id" if memchr(0, value).is_none() => self.event.id = Some(text()),
            b"event" => self.event.name = Some(text()),
            b"retry" => self.event.retry = text().parse().ok(),
            // Comments and unknown fields are ignored.
            _ => {}
        }
    }

    /// Appends a `data` line. Keeps only [`MAX_HEAD_BYTES`] bytes once the event exceeds the limit.
    fn add_data(&mut self, value: &[u8]) {
        if !self.data.is_empty() {
            self.data.extend_from_slice(b"\n");
        }
        if self.data.len() + value.len() > self.limit {
            self.dropping = true;
        }
        let room = if self.dropping { MAX_HEAD_BYTES.saturating_sub(self.data.len()) } else { value.len() };
        self.data.extend_from_slice(&value[..room.min(value.len())]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]], limit: usize) -> Vec<Frame<Bytes>> {
        let mut decoder = LineDecoder::new(limit);
        let mut frames = Vec::new();
        for chunk in chunks {
            decoder.buffer().extend_from_slice(chunk);
            frames.extend(std::iter::from_fn(|| decoder.take()));
        }
        frames
    }

    fn events(chunks: &[&[u8]], limit: usize) -> Vec<Frame<SseEvent>> {
        let mut decoder = SseDecoder::new(limit);
        let mut frames = Vec::new();
        for chunk in chunks {
            decoder.feed(chunk);
            frames.extend(std::iter::from_fn(|| decoder.take()));
        }
        frames
    }

    fn data(text: &str) -> Frame<SseEvent> {
        Frame::Whole(SseEvent { data: Bytes::copy_from_slice(text.as_bytes()), ..SseEvent::default() })
    }

    #[test]
    fn a_line_over_the_limit_is_dropped_and_the_next_one_is_read() {
        let long = [b'x'; 10_000];
        let seen = lines(&[b"a\n", &long, &long, b"yy\n\r\nb\r\n"], 9000);
        assert_eq!(
            seen,
            [
                Frame::Whole("a".into()),
                Frame::TooLong { head: Bytes::copy_from_slice(&long[..MAX_HEAD_BYTES]) },
                Frame::Whole("b".into()),
            ]
        );
    }

    #[test]
    fn a_message_of_exactly_the_limit_fits() {
        assert_eq!(lines(&[b"12345\n"], 5), [Frame::Whole("12345".into())]);
        assert_eq!(lines(&[b"123456\n"], 5), [Frame::TooLong { head: "123456".into() }]);
        assert_eq!(events(&[b"data: 12345\n\n"], 5), [data("12345")]);
        assert_eq!(events(&[b"data: 123456\n\n"], 5), [Frame::TooLong { head: "123456".into() }]);
    }

    #[test]
    fn memory_stays_bounded_while_an_endless_message_is_dropped() {
        let mut decoder = SseDecoder::new(10_000);
        decoder.feed(b"data: ");
        for _ in 0..1000 {
            decoder.feed(&[b'x'; 10_000]);
            assert_eq!(decoder.take(), None);
            assert!(decoder.buffer.len() + decoder.data.len() < 20_000 + MAX_HEAD_BYTES);
        }
        decoder.feed(b"\n\ndata: next\n\n");
        assert!(matches!(decoder.take(), Some(Frame::TooLong { .. })));
        assert_eq!(decoder.take(), Some(data("next")));
    }

    #[test]
    fn an_overlong_line_without_data_drops_no_event_at_any_chunking() {
        let long = [b'x'; MAX_HEAD_BYTES + 100];
        for field in [": ", "id: ", "event: ", "other: "] {
            let whole = [field.as_bytes(), &long, b"\ndata: next\n\n"].concat();
            assert_eq!(events(&[&whole], 50), [data("next")], "{field}");
            let (one, two) = whole.split_at(MAX_HEAD_BYTES + 80);
            assert_eq!(events(&[one, two], 50), [data("next")], "{field}");
        }
        let whole = [b"data: ".as_slice(), &long, b"\n\ndata: next\n\n"].concat();
        let (one, two) = whole.split_at(MAX_HEAD_BYTES + 80);
        for chunks in [vec![whole.as_slice()], vec![one, two]] {
            let [Frame::TooLong { .. }, next] = &events(&chunks, 50)[..] else { panic!("the event is dropped") };
            assert_eq!(*next, data("next"));
        }
    }

    #[test]
    fn events_with_all_line_ends_and_fields_are_decoded() {
        let seen = events(
            &[b"\xef\xbb\xbf: hello\r\n\r\nid: 0\ndata: \nretry: 3000\n\nevent: message\rdata:{\"a\":\rdata: 1}\r\ndata\n\n\n"],
            100,
        );
        assert_eq!(
            seen,
            [
                Frame::Whole(SseEvent { id: Some("0".into()), retry: Some(3000), ..SseEvent::default() }),
                Frame::Whole(SseEvent {
                    name: Some("message".into()),
                    data: "{\"a\":\n1}\n".into(),
                    ..SseEvent::default()
                }),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_lines(text in "[ab\r\n]{0,60}", cuts in proptest::collection::vec(0_usize..60, 0..6), limit in 1_usize..8) {
            let whole: Vec<_> = lines(&[text.as_bytes()], limit).into_iter().map(kind).collect();
            let cut: Vec<_> = lines(&split(&text, cuts), limit).into_iter().map(kind).collect();
            prop_assert_eq!(whole, cut);
        }

        #[test]
        fn any_chunking_gives_the_same_events(text in "(data|id|event|: |[a-c]|\r|\n){0,30}", cuts in proptest::collection::vec(0_usize..90, 0..6)) {
            prop_assert_eq!(events(&[text.as_bytes()], 50), events(&split(&text, cuts), 50));
        }
    }

    /// Maps dropped lines to `None`. The head of a dropped line depends on the chunking.
    fn kind(frame: Frame<Bytes>) -> Option<Bytes> {
        match frame {
            Frame::Whole(line) => Some(line),
            Frame::TooLong { .. } => None,
        }
    }

    fn split(text: &str, mut cuts: Vec<usize>) -> Vec<&[u8]> {
        cuts.push(0);
        cuts.push(text.len());
        cuts.retain(|cut| *cut <= text.len());
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect()
    }
}
