//! The properties that each fuzz target asserts.
//!
//! A target is a function from bytes to nothing that panics if a property fails. The fuzzers in `fuzz_targets` call
//! these functions, and so does `tests/it/fuzz_seeds.rs` with the committed seeds and corpus.

#![allow(dead_code)]

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use goblin_config::consent;
use goblin_config::edit::Draft;
use goblin_config::file::ConfigOrigin;
use goblin_config::import::merge::merge;
use goblin_config::import::{ClientApp, ClientFile, SearchBase, translate};
use goblin_config::secret::Secret;
use goblin_engine::front::body;
use goblin_oauth::{CallbackFault, LoginTarget, fuzz as oauth};
use goblin_subscriptions::glob as subscription;
use goblin_vault::entry::{EntryCipher, EntryFault, FORMAT};
use goblin_vault::key::Key;
use goblin_vault::{EntryAddress, EntryKind, EntryName, MAX_VALUE_BYTES};
use goblin_wire::canonical::{MAX_SEPARATORS, canonical, is_plain, readings};
use goblin_wire::framing::{Frame, LineDecoder, MAX_HEAD_BYTES, SseDecoder, SseEvent};
use goblin_wire::json::{self, Pieces, Span, Splice};
use goblin_wire::template::{MAX_URI_BYTES, MatchBudget, Template};
use goblin_wire::{Id, Message, Response};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A function that feeds bytes to a parser and panics if a property does not hold.
type Target = fn(&[u8]);

/// Every target by name. Each has a binary in `fuzz/Cargo.toml` and a directory in `fuzz/seeds`.
pub const TARGETS: [(&str, Target); 13] = [
    ("envelope", envelope),
    ("json", json_spans),
    ("events", events),
    ("lines", lines),
    ("template", template),
    ("glob", glob),
    ("configuration", configuration),
    ("import", import),
    ("canonical", canonical_uris),
    ("challenge", challenge),
    ("oauth_metadata", oauth_metadata),
    ("callback", callback),
    ("entry", vault_entry),
];

/// Parses a JSON-RPC message. A message that is rewritten with another id differs only in its id.
pub fn envelope(data: &[u8]) {
    let raw = Bytes::copy_from_slice(data);
    if let Some(Ok(messages)) = Message::split_batch(&raw) {
        for message in messages {
            assert!(serde_json::from_slice::<&RawValue>(&message).is_ok(), "a message of a batch is JSON");
            let _ = Message::parse(message);
        }
    }
    match Message::parse(raw.clone()) {
        Ok(Message::Request(request)) => {
            let again = request.rekeyed(&Id::from(7), Splice::new());
            assert_only_id_differs(data, &again);
            let Ok(Message::Request(again)) = Message::parse(again) else { panic!("{request:?}") };
            assert_eq!((again.id, &again.method), (Id::from(7), &request.method));
            let back = again.raw.as_str().len() + request.id_as_written().token().len() - 1;
            assert_eq!(back, data.len(), "only the id changes its length");
            if let Some(meta) = request.params.meta {
                assert!(json::members(request.raw.as_str(), meta).count() <= data.len());
            }
        }
        Ok(Message::Response(response)) => {
            let again = response.rekeyed(&Id::from(7), Splice::new()).concat();
            assert_only_id_differs(data, &again);
            let Ok(Message::Response(again)) = Message::parse(again) else { panic!("{response:?}") };
            assert_eq!(again.id, Some(Id::from(7)));
            let payload = |response: &Response| response.raw.get(response.outcome.span()).to_owned();
            assert_eq!(payload(&response), payload(&again));
        }
        Ok(Message::Notification(_)) => assert!(serde_json::from_slice::<&RawValue>(data).is_ok()),
        Err(_) => {}
    }
}

fn assert_only_id_differs(before: &[u8], after: &[u8]) {
    let (Ok(mut before), Ok(after)) = (serde_json::from_slice::<Value>(before), serde_json::from_slice::<Value>(after))
    else {
        return;
    };
    before["id"] = Value::from(7);
    assert_eq!(before, after);
}

/// Walks and splices JSON. The first two bytes choose a member. A walk finds the same values as a parser. A splice
/// produces the same document as an edit of the parsed value.
pub fn json_spans(data: &[u8]) {
    let Some(([salt, index], rest)) = data.split_first_chunk::<2>() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let quoted = json::quote(text);
    assert_eq!(serde_json::from_str::<String>(&quoted).ok().as_deref(), Some(text));
    assert_eq!(json::string(&quoted, json::whole(&quoted)).as_deref(), Some(text));
    if serde_json::from_str::<&RawValue>(text).is_err() {
        return;
    }
    let line = json::single_line(Bytes::copy_from_slice(text.as_bytes()));
    assert!(!line.contains(&b'\n') && !line.contains(&b'\r') && line.len() == text.len());
    let Ok(value) = serde_json::from_str::<Value>(text) else { return };
    assert_eq!(serde_json::from_slice::<Value>(&line).ok(), Some(value.clone()), "a line break in JSON is a blank");
    assert_eq!(walk(text, json::whole(text)), value);
    if let Value::Object(members) = value {
        splices(text, &members, *salt, usize::from(*index));
    }
}

fn walk(text: &str, span: Span) -> Value {
    match text.as_bytes()[span.start as usize] {
        b'{' => {
            let (mut passing, mut inside) = (json::members(text, span), 0);
            while passing.next_key().is_some() {
                let seen = passing.next_object(|_| inside += 1);
                assert!(seen.is_some(), "each key has a value");
            }
            let members = json::members(text, span);
            let nested: usize = members.map(|member| json::members(text, member.value).count()).sum();
            assert_eq!(inside, nested, "a value is seen in passing as it is seen alone");
            let read = |member: json::Member| (member.key(text).into_owned(), walk(text, member.value));
            Value::Object(json::members(text, span).map(read).collect())
        }
        b'[' => Value::Array(json::elements(text, span).map(|element| walk(text, element)).collect()),
        b'"' => Value::from(json::string(text, span).expect("a string").into_owned()),
        _ => serde_json::from_str(span.get(text)).expect("a span is a whole token"),
    }
}

/// Checks splices against edits of the parsed value. `members` may have fewer keys than the text, because only the last
/// of several equal keys counts.
fn splices(text: &str, members: &Map<String, Value>, salt: u8, index: usize) {
    let (span, raw) = (json::whole(text), Bytes::copy_from_slice(text.as_bytes()));
    let is_cut = |key: &str| key.bytes().fold(salt, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte)) & 1 == 1;
    let mut edits = Splice::new();
    let kept = json::cut_members(text, span, is_cut, &mut edits);
    let expected: Map<_, _> = members.clone().into_iter().filter(|(key, _)| !is_cut(key)).collect();
    let walked = json::members(text, span).filter(|member| !is_cut(&member.key(text))).count();
    assert_eq!(kept, walked, "the number of members that are left");
    assert_eq!(parsed(edits, &raw), Value::Object(expected));

    let mut edits = Splice::new();
    json::prepend(text, span, "\"\\u0000 new\":[1]", &mut edits);
    let mut expected = members.clone();
    expected.entry("\0 new").or_insert_with(|| serde_json::json!([1]));
    assert_eq!(parsed(edits, &raw), Value::Object(expected));

    let count = json::members(text, span).count();
    let Some(member) = json::members(text, span).nth(index % count.max(1)) else { return };
    let key = member.key(text).into_owned();
    if json::members(text, span).filter(|other| other.key(text) == key).count() > 1 {
        return;
    }
    assert_eq!(json::member(text, span, &key), Some(member.value));
    let mut edits = Splice::new();
    assert_eq!(json::cut_members(text, span, |name| name == key, &mut edits), count - 1);
    let mut expected = members.clone();
    expected.remove(&key);
    assert_eq!(parsed(edits, &raw), Value::Object(expected.clone()));

    // Two splices of parts combine into one of the whole: one replaces the value, the other inserts a member in front.
    let (mut edits, mut inner) = (Splice::new(), Splice::new());
    inner.replace(member.value, r#"{"s":null}"#);
    json::prepend(text, span, "\"\\u0000 new\":[1]", &mut edits);
    edits.append(inner);
    expected.insert(key.clone(), serde_json::json!({ "s": null }));
    expected.entry("\0 new").or_insert_with(|| serde_json::json!([1]));
    assert_eq!(parsed(edits, &raw), Value::Object(expected));
}

fn parsed(edits: Splice, raw: &Bytes) -> Value {
    let pieces = edits.clone().pieces(raw).concat();
    let whole = edits.apply(raw);
    assert_eq!(pieces, whole);
    let message = || format!("{:?} from {raw:?}", String::from_utf8_lossy(&whole));
    serde_json::from_slice(&whole).unwrap_or_else(|error| panic!("{error}: {}", message()))
}

/// The limit of the decoders under test.
const LIMIT: usize = 64;

/// Returns the rest of the input and two positions to cut it at, chosen by its first two bytes. A byte 0xff expands to
/// a long run, so that short inputs reach the limits.
fn chunks(data: &[u8], run: usize) -> Option<(Vec<u8>, [usize; 2])> {
    let ([first, second], rest) = data.split_first_chunk::<2>()?;
    let mut long = Vec::new();
    for byte in rest {
        match byte {
            0xff => long.resize(long.len() + run, b'x'),
            byte => long.push(*byte),
        }
    }
    let place = |byte: &u8| usize::from(*byte) * long.len() / 255;
    let (one, two) = (place(first), place(second));
    Some((long, [one.min(two), one.max(two)]))
}

/// Decodes an event stream. Any chunking yields the same events, each within its limit. Each event that the gateway
/// encodes decodes to itself.
pub fn events(data: &[u8]) {
    let decode = |chunks: &[&[u8]]| {
        let mut events = SseDecoder::new(LIMIT);
        let mut frames = Vec::new();
        for chunk in chunks {
            events.feed(chunk);
            frames.extend(std::iter::from_fn(|| events.take()).map(|frame| match frame {
                Frame::Whole(event) => Some(event),
                Frame::TooLong { .. } => None,
            }));
        }
        frames
    };
    let Some((bytes, [one, two])) = chunks(data, LIMIT + MAX_HEAD_BYTES) else { return };
    let whole = decode(&[&bytes]);
    assert_eq!(whole, decode(&[&bytes[..one], &bytes[one..two], &bytes[two..]]));
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    if bytes.len() < 4096 {
        assert_eq!(whole, decode(&single));
    }
    assert!(whole.iter().flatten().all(|event| event.data.len() <= LIMIT));
    let Ok(text) = std::str::from_utf8(&bytes) else { return };
    if text.len() <= LIMIT && !text.is_empty() {
        let written = body::event(Pieces::from(text.to_owned()));
        let data = Bytes::from(text.replace(['\n', '\r'], " "));
        let expected = SseEvent { name: Some("message".to_owned()), data, ..SseEvent::default() };
        assert_eq!(decode(&[&written]), [Some(expected)]);
    }
}

/// Decodes lines. Any chunking yields the same lines as a split at line feeds.
pub fn lines(data: &[u8]) {
    let decode = |chunks: &[&[u8]]| {
        let mut lines = LineDecoder::new(LIMIT);
        let mut frames = Vec::new();
        for chunk in chunks {
            lines.buffer().extend_from_slice(chunk);
            frames.extend(std::iter::from_fn(|| lines.take()));
        }
        frames.extend(lines.finish());
        let line = |frame| match frame {
            Frame::Whole(line) => Some(line),
            Frame::TooLong { .. } => None,
        };
        frames.into_iter().map(line).collect::<Vec<_>>()
    };
    let Some((bytes, [one, two])) = chunks(data, LIMIT) else { return };
    let split = bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let expected: Vec<_> = split
        .filter(|line| line.len() > LIMIT || !line.iter().all(u8::is_ascii_whitespace))
        .map(|line| (line.len() <= LIMIT).then(|| Bytes::copy_from_slice(line)))
        .collect();
    assert_eq!(decode(&[&bytes]), expected);
    assert_eq!(decode(&[&bytes[..one], &bytes[one..two], &bytes[two..]]), expected);
}

/// Matches a URI template. The first line is a template, the second a URI, the third holds values. A match has all
/// literal bytes, and an expansion matches.
pub fn template(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (source, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (uri, values) = rest.split_once('\n').unwrap_or((rest, ""));
    let Ok(template) = Template::parse(source) else { return };
    assert_eq!(template.as_str(), source);
    let is_widened = template.matches_widened(uri, &mut MatchBudget::new(usize::MAX));
    if template.matches(uri) || is_widened {
        assert!(uri.len() >= template.literal_bytes());
    }
    // Literals of other characters are encoded, which this expansion does not do.
    if source.is_ascii() && !source.contains('%') {
        let expanded = expand(source, values);
        assert!(expanded.len() > MAX_URI_BYTES || template.matches(&expanded), "{source} does not match {expanded:?}");
    }
}

/// Expands a valid template with plain values, which need no encoding. A variable without a value is undefined.
fn expand(template: &str, values: &str) -> String {
    let mut values =
        values.split(' ').map(|value| value.chars().filter(char::is_ascii_alphanumeric).collect::<String>());
    let mut parts = template.split('{');
    let mut uri = parts.next().unwrap_or_default().to_owned();
    for (expression, literal) in parts.filter_map(|part| part.split_once('}')) {
        let operator = expression.chars().next().filter(|first| "+#./;?&".contains(*first));
        let variables = expression.trim_start_matches(['+', '#', '.', '/', ';', '?', '&']);
        let (mut lead, separator) = match operator {
            None | Some('+') => (None, ','),
            Some('#') => (Some('#'), ','),
            Some('?') => (Some('?'), '&'),
            Some(other) => (Some(other), other),
        };
        for variable in variables.split(',') {
            let Some(value) = values.next() else { break };
            let (name, limit) = variable.split_once(':').unwrap_or((variable, "9999"));
            let value: String = value.chars().take(limit.parse().unwrap_or(usize::MAX)).collect();
            uri.extend(lead.replace(separator));
            if matches!(operator, Some(';' | '?' | '&')) {
                uri.push_str(name.trim_end_matches('*'));
                uri.push_str(if operator == Some(';') && value.is_empty() { "" } else { "=" });
            }
            uri.push_str(&value);
        }
        uri.push_str(literal);
    }
    uri
}

/// Matches globs of both languages. The first line is a pattern, the rest a text. Each matcher agrees with a simple
/// reference implementation.
pub fn glob(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (pattern, text) = text.split_once('\n').unwrap_or((text, ""));
    let (characters, subject): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let is_small = characters.len() <= 200 && subject.len() <= 200;
    if let Ok(glob) = goblin_config::glob::Glob::new(pattern) {
        let matches = glob.matches(text);
        assert!(glob.has_wildcard() || matches == (pattern == text));
        if is_small {
            assert_eq!(matches, matches_names(&characters, &subject), "{pattern:?} on {text:?}");
        }
    }
    if let Ok(glob) = subscription::UriGlob::parse(pattern) {
        let matches = glob.matches(text);
        assert!(!matches || text.starts_with(glob.literal()));
        if is_small {
            assert_eq!(matches, matches_uris(&characters, &subject), "{pattern:?} on {text:?}");
        }
    }
}

/// Reports whether a configuration pattern matches. This is the reference implementation: `row[place]` is true if the
/// pattern from the current character on matches the text from `place` on.
fn matches_names(pattern: &[char], text: &[char]) -> bool {
    let mut row: Vec<bool> = (0..=text.len()).map(|place| place == text.len()).collect();
    for wanted in pattern.iter().rev() {
        let after = row.clone();
        for place in (0..=text.len()).rev() {
            let one = |is_one: bool| place < text.len() && is_one && after[place + 1];
            row[place] = match wanted {
                '*' => after[place] || (place < text.len() && row[place + 1]),
                '?' => one(true),
                wanted => one(text.get(place) == Some(wanted)),
            };
        }
    }
    row[0]
}

/// Reports whether a subscription pattern matches. This is the reference implementation.
fn matches_uris(pattern: &[char], text: &[char]) -> bool {
    let mut places = vec![false; text.len() + 1];
    places[0] = true;
    let (mut rest, mut is_start) = (pattern, true);
    while let Some(first) = rest.first() {
        let mut next = vec![false; text.len() + 1];
        let stars = rest.iter().take_while(|character| **character == '*').count();
        let is_segments = stars >= 2 && is_start && rest.get(stars) == Some(&'/');
        let class = rest.iter().skip(2).position(|character| *character == ']').map(|offset| offset + 2);
        for place in (0..=text.len()).filter(|place| places[*place]) {
            let here = text.get(place).copied().filter(|character| *character != '/');
            match (first, class) {
                ('*', _) if is_segments => {
                    next[place] = true;
                    (place..text.len()).filter(|at| text[*at] == '/').for_each(|at| next[at + 1] = true);
                }
                ('*', _) if stars >= 2 => next[place..].fill(true),
                ('*', _) => {
                    let length = text[place..].iter().take_while(|character| **character != '/').count();
                    next[place..=place + length].fill(true);
                }
                ('?', _) if here.is_some() => next[place + 1] = true,
                ('[', Some(end)) if here.is_some_and(|here| is_in_class(&rest[1..end], here)) => next[place + 1] = true,
                ('?' | '[', _) => {}
                (literal, _) if text.get(place) == Some(literal) => next[place + 1] = true,
                _ => {}
            }
        }
        let length = match (first, class) {
            ('*', _) => stars + usize::from(is_segments),
            ('[', Some(end)) => end + 1,
            _ => 1,
        };
        is_start = is_segments || *first == '/';
        (places, rest) = (next, &rest[length..]);
    }
    places[text.len()]
}

fn is_in_class(class: &[char], character: char) -> bool {
    let (is_negated, mut ranges) = match class {
        ['!' | '^', ranges @ ..] => (true, ranges),
        ranges => (false, ranges),
    };
    let mut is_inside = false;
    while let Some((first, rest)) = ranges.split_first() {
        let (last, rest) = match rest {
            ['-', last, rest @ ..] => (last, rest),
            rest => (first, rest),
        };
        is_inside |= (*first..=*last).contains(&character);
        ranges = rest;
    }
    is_inside != is_negated
}

/// Loads a configuration. Every problem has a position in the text, and the same text yields the same configuration.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Values with `file:` read files of the machine, which are not part of the input.
    if text.contains("file:") {
        return;
    }
    let environment = |name: &str| (name == "SET").then(|| "value".to_owned());
    let parse = || goblin_config::parse(text, &ConfigOrigin::new("fuzz.json", "/nowhere"), &environment);
    let has_place = |problem: &goblin_config::problem::Problem| {
        // A lone carriage return ends a line. A carriage return before a line feed is a character of its line.
        let plain = text.replace("\r\n", " \n").replace('\r', "\n");
        let lines: Vec<&str> = plain.split('\n').collect();
        let (line, column) = (problem.line.unwrap_or_default(), problem.column.unwrap_or_default());
        let is_in_line = |line: &&str| column <= line.chars().count() + 1;
        assert!(line >= 1 && column >= 1, "{problem}");
        assert!(lines.get(line - 1).is_some_and(is_in_line), "{problem} has no place in {text:?}");
    };
    match (parse(), parse()) {
        (Ok(one), Ok(two)) => {
            one.warnings.iter().for_each(has_place);
            assert!(one.config == two.config, "the same text gives the same configuration");
            assert!(one.config.servers.len() <= text.len());
        }
        (Err(one), Err(two)) => {
            assert!(one.iter().count() > 0);
            one.iter().for_each(has_place);
            assert_eq!(one, two);
        }
        (one, two) => panic!("{one:?} is not {two:?}"),
    }
}

/// Imports the configuration of another client, chosen by the first byte. The loader accepts the file that the import
/// would write. The file has the entries that were shown, without control characters.
pub fn import(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let client = ClientApp::ALL[usize::from(*choice) % ClientApp::ALL.len()];
    let is_project = usize::from(*choice) / ClientApp::ALL.len() % 2 == 1;
    let project = is_project.then(|| PathBuf::from("/nowhere/project"));
    let source = ClientFile { client, path: PathBuf::from("/nowhere/project/file"), project };
    let search_base = SearchBase { home: PathBuf::from("/nowhere"), here: PathBuf::from("/nowhere/project/here") };
    let found = match translate(&source, text, &search_base) {
        Ok(found) => found,
        Err(sentence) => return assert_is_plain(&sentence),
    };
    let merged = merge(vec![found], &[], |_| None);
    merged.notes.iter().for_each(|note| assert_is_plain(&note.to_string()));
    let draft = Draft::open(Path::new("/nowhere/goblin.json")).expect("a new file");
    for candidate in &merged.servers {
        assert_is_plain(&consent::line(&candidate.entry));
        draft.put(&candidate.id, &candidate.entry);
    }
    let outside = draft.check(&|_| None).unwrap_or_else(|error| panic!("{error}: {}", draft.text()));
    assert!(outside.iter().all(|problem| problem.outside));
    let written = draft.servers();
    assert_eq!(written.len(), merged.servers.len(), "each server has a name of its own: {}", draft.text());
    for (candidate, (id, entry)) in merged.servers.iter().zip(&written) {
        assert_eq!((&candidate.id, &candidate.entry), (id, entry), "the file has what was shown");
    }
}

fn assert_is_plain(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?} has control characters");
}

/// Canonicalizes a URI. The canonical form is plain and stable. No encoding hides the plain form: each encoded spelling
/// has the same form, or is rejected as ambiguous.
pub fn canonical_uris(data: &[u8]) {
    let Some((salt, rest)) = data.split_first() else { return };
    let Ok(uri) = std::str::from_utf8(rest) else { return };
    let form = canonical(uri);
    if is_plain(uri) {
        assert_eq!(form.as_deref(), Ok(uri), "a plain URI is its own form");
    }
    let Ok(form) = form else {
        assert!(readings(uri).is_err(), "{uri:?} has no form but readings");
        return;
    };
    assert_eq!(canonical(&form).as_deref(), Ok(&*form), "the form of the form of {uri:?}");
    assert!(!form.chars().any(|letter| letter.is_ascii_control()), "{form:?}");
    assert!(!has_dots(&form), "{form:?} has a dot segment");
    if let Ok(readings) = readings(uri) {
        assert!(readings.all().any(|reading| reading == form), "{uri:?} is not among its readings");
        assert!(!readings.all().any(has_dots), "{readings:?} have a dot segment");
        let count = readings.all().count();
        assert!(count <= 16 * (MAX_SEPARATORS + 2), "{uri:?} has {count} readings");
    }
    for seed in [*salt, salt.wrapping_mul(31).wrapping_add(7)] {
        let spelling = encoded(uri, seed);
        if let Ok(other) = canonical(&spelling) {
            assert_eq!(other, form, "{spelling:?} is another resource than {uri:?}");
        }
    }
}

fn has_dots(uri: &str) -> bool {
    let path = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    path.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Returns the URI with some characters after its scheme percent-encoded, once or twice. The seed chooses the
/// characters.
fn encoded(uri: &str, seed: u8) -> String {
    let start = uri.find(':').map_or(0, |at| at + 1);
    let mut spelling = uri[..start].to_owned();
    let mut state = u32::from(seed) | 0x100;
    for byte in uri[start..].bytes() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match state >> 28 {
            0..=3 => spelling.push_str(&format!("%{byte:02X}")),
            4 => spelling.push_str(&format!("%25{byte:02x}")),
            _ if byte.is_ascii() => spelling.push(char::from(byte)),
            _ => spelling.push_str(&format!("%{byte:02X}")),
        }
    }
    spelling
}

/// Reads the challenges of a server. Each text is bounded, and scopes and errors have only the characters of the protocol.
pub fn challenge(data: &[u8]) {
    let (metadata, scopes, error) = oauth::challenge(data);
    assert!(metadata.is_none_or(|url| url.len() <= data.len()));
    assert!(scopes.len() <= 100, "{} scopes", scopes.len());
    for (index, scope) in scopes.iter().enumerate() {
        assert!(scope.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\'), "{scope:?}");
        assert!(!scope.is_empty() && !scopes[..index].contains(scope), "{scope:?}");
    }
    assert!(error.is_none_or(|error| error.len() <= 64 && error.bytes().all(|byte| byte.is_ascii_graphic())));
    // A challenge in front that is not understood changes nothing.
    if let Ok(line) = std::str::from_utf8(data)
        && !line.contains('\n')
    {
        let (alone, prefixed) = (oauth::challenge(data), oauth::challenge(format!("Basic abc==, {line}").as_bytes()));
        let is_scheme =
            line.trim_start_matches([' ', '\t', ',']).get(..6).is_some_and(|it| it.eq_ignore_ascii_case("bearer"));
        assert!(!is_scheme || data.len() > 8000 || alone == prefixed, "{line:?}");
    }
}

/// Reads the metadata of an authorization server. Its endpoints are https URLs that are safe to show and to open.
pub fn oauth_metadata(data: &[u8]) {
    let target = LoginTarget {
        name: String::new(),
        url: "https://mcp.example/mcp".parse().expect("a URL"),
        ca: None,
        proxies: Default::default(),
        options: Default::default(),
    };
    match oauth::metadata(data, &target) {
        None => {}
        Some(Ok(endpoints)) => {
            assert!(!endpoints.is_empty(), "the token endpoint is required");
            for url in endpoints {
                let is_safe = |byte: u8| byte.is_ascii_graphic() && !b"\"'`$;|<>\\#".contains(&byte);
                assert!(url.bytes().all(is_safe), "{url:?}");
                // A URI has a scheme in any case.
                let rest = url.get(8..).filter(|_| url[..8].eq_ignore_ascii_case("https://"));
                let authority = rest.and_then(|rest| rest.split(['/', '?']).next()).expect("https");
                assert!(!authority.is_empty() && !authority.contains('@'), "{url:?}");
                let host = authority.split(':').next().unwrap_or_default();
                let address = host.parse::<Ipv4Addr>().ok();
                assert!(!address.is_some_and(|it| it.is_loopback() || it.is_private()), "{url:?}");
            }
        }
        Some(Err(refusal)) => {
            let text = refusal.to_string();
            assert!(text.chars().count() <= 2000 && !text.chars().any(char::is_control), "{text:?}");
        }
    }
}

/// Reads the address to which a browser returned. Only one with the right state and issuer has a code or an error.
pub fn callback(data: &[u8]) {
    const STATE: &str = "s1";
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = |state, issuer| oauth::callback(text, state, issuer, true);
    match read(STATE, "https://as.example") {
        Ok(code) => {
            assert!(!code.is_empty() && code.len() <= data.len() && !code.chars().any(char::is_control), "{code:?}");
            assert_eq!(read("s2", "https://as.example"), Err(CallbackFault::State));
            assert_eq!(read(STATE, "https://as.example/"), Err(CallbackFault::Issuer));
        }
        Err(fault @ CallbackFault::Refused { .. }) => {
            assert!(!fault.to_string().chars().any(char::is_control), "{fault}");
            assert_eq!(read("s2", "https://as.example"), Err(CallbackFault::State));
            assert_eq!(read(STATE, "https://as.example/"), Err(CallbackFault::Issuer));
        }
        Err(CallbackFault::NotACallback | CallbackFault::State | CallbackFault::Issuer) => {}
    }
}

/// Opens a file of the vault, and seals an entry. The first two bytes choose a change, the rest is a file, a key file and
/// a text with a name and a value. A sealed entry opens to itself, and no changed file opens.
pub fn vault_entry(data: &[u8]) {
    let Some(([place, change], rest)) = data.split_first_chunk::<2>() else { return };
    let key = Key::parse(b"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f").expect("a key in hex");
    let cipher = EntryCipher::new(&key);
    let own = EntryName::new("own").expect("a short name");
    let address = EntryAddress::new(EntryKind::Secret, &own);
    // Nobody can write a valid entry without the key.
    match cipher.open(&address, rest) {
        Err(EntryFault::NewerFormat(format)) => assert!(format > FORMAT && rest.starts_with(b"GBLV")),
        other => assert_eq!(other, Err(EntryFault::Damaged)),
    }
    if let Ok(other) = Key::parse(rest) {
        assert_eq!(other, Key::parse(rest).expect("the same bytes"));
        assert!((32..=68).contains(&rest.trim_ascii_end().len()) || rest.len() == 32);
    }
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let (name, value) = text.split_once('\n').unwrap_or((text, ""));
    let Ok(name) = EntryName::new(name) else { return };
    if value.len() > MAX_VALUE_BYTES {
        return;
    }
    let (value, address) = (Secret::new(value), EntryAddress::new(EntryKind::Login, &name));
    let mut file = cipher.seal(&address, &name, &value);
    assert_eq!(cipher.open(&address, &file), Ok((name.clone(), value)));
    let elsewhere = EntryAddress::new(EntryKind::Secret, &name);
    assert_eq!(cipher.open(&elsewhere, &file), Err(EntryFault::Damaged));
    let at = usize::from(*place) * file.len() / 256;
    file[at] ^= change.max(&1);
    assert!(cipher.open(&address, &file).is_err(), "byte {at} of {} was changed", file.len());
    file.truncate(at);
    assert!(cipher.open(&address, &file).is_err());
}
