//! What every fuzz target checks. The tests run the seeds through the same functions, so that whatever was found once
//! stays found.

#![allow(dead_code)]

use bytes::Bytes;
use goblin::config;
use goblin::config::file::Origin;
use goblin::protocol::framing::{Events, Frame, Lines};
use goblin::protocol::json::{self, Splice};
use goblin::protocol::template::Template;
use goblin::protocol::{Id, Message};

/// No bytes break the envelope, and what is read is written back without loss.
pub fn envelope(data: &[u8]) {
    let raw = Bytes::copy_from_slice(data);
    if let Some(Ok(messages)) = Message::split_batch(&raw) {
        for message in messages {
            let _ = Message::parse(message);
        }
    }
    match Message::parse(raw.clone()) {
        Ok(Message::Request(request)) => {
            let again = request.rekeyed(&request.id, Splice::new());
            assert!(matches!(Message::parse(again), Ok(Message::Request(_))), "{request:?}");
            if let Some(meta) = request.params.meta {
                assert!(json::members(request.raw.as_str(), meta).count() <= data.len());
            }
        }
        Ok(Message::Response(response)) => {
            let again = response.rekeyed(&Id::from(7), Splice::new()).concat();
            let Ok(Message::Response(again)) = Message::parse(again) else { panic!("{response:?}") };
            assert_eq!(again.id, Some(Id::from(7)));
            let payload = |response: &goblin::protocol::Response| response.raw.get(response.outcome.span()).to_owned();
            assert_eq!(payload(&response), payload(&again));
        }
        Ok(Message::Notification(_)) | Err(_) => {}
    }
}

/// The first byte cuts the rest in two; both ways of feeding give the same events, within bounds.
pub fn events(data: &[u8]) {
    const LIMIT: usize = 64;
    let decode = |chunks: &[&[u8]]| {
        let mut events = Events::new(LIMIT);
        let mut frames = Vec::new();
        for chunk in chunks {
            events.feed(chunk);
            frames.extend(std::iter::from_fn(|| events.take()));
        }
        frames
    };
    let Some((cut, rest)) = data.split_first() else { return };
    let (front, back) = rest.split_at(usize::from(*cut).min(rest.len()));
    let whole = decode(&[rest]);
    assert_eq!(whole.len(), decode(&[front, back]).len());
    for frame in whole {
        if let Frame::Whole(event) = frame {
            assert!(event.data.len() <= LIMIT);
        }
    }
}

/// The same for lines.
pub fn lines(data: &[u8]) {
    const LIMIT: usize = 64;
    let decode = |chunks: &[&[u8]]| {
        let mut lines = Lines::new(LIMIT);
        let mut frames = Vec::new();
        for chunk in chunks {
            lines.buffer().extend_from_slice(chunk);
            frames.extend(std::iter::from_fn(|| lines.take()));
        }
        frames
    };
    let Some((cut, rest)) = data.split_first() else { return };
    let (front, back) = rest.split_at(usize::from(*cut).min(rest.len()));
    let whole = decode(&[rest]);
    assert_eq!(whole.len(), decode(&[front, back]).len());
    for frame in whole {
        if let Frame::Whole(line) = frame {
            assert!(line.len() <= LIMIT && !line.contains(&b'\n'));
        }
    }
}

/// The first line is a template, the rest a URI: a match expands to exactly that URI.
pub fn template(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (template, uri) = text.split_once('\n').unwrap_or((text, ""));
    let Ok(template) = Template::parse(template) else { return };
    if let Some(bindings) = template.matches(uri) {
        assert_eq!(template.expand(&bindings), uri);
    }
    let _ = template.matches_lenient(uri);
}

/// No text breaks the loader, and every problem has a place.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let environment = |name: &str| (name == "SET").then(|| "value".to_owned());
    if let Err(problems) = config::parse(text, &Origin::new("fuzz.json", "/nowhere"), &environment) {
        assert!(problems.iter().count() > 0);
        for problem in problems.iter() {
            assert!(problem.line >= 1 && problem.column >= 1, "{problem}");
        }
    }
}
