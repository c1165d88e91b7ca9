//! Field selections: decides whether an update changes one of the selected fields.
//!
//! A [`Selection`] has the fields that a client selected. A [`FieldState`] has the last seen state of these fields for one
//! URI, as hashes. A field is looked up in the update first, then in the definition that the backend lists. The known
//! definition is older than the update, so a field found only there is judged after the next listing. In doubt the
//! update is delivered, because the client can ignore an extra update but cannot recover a missing one.

use std::hash::{DefaultHasher, Hasher};

use goblin_wire::json::{self, Span};

const MAX_FIELDS: usize = 16;
/// The maximum length of a field, in bytes.
const MAX_FIELD: usize = 256;

/// The paths of the selected fields, such as `annotations.lastModified`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Box<[Box<str>]>);

/// The last seen state of the fields of a selection. The default is empty: nothing was seen yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldState {
    /// A hash per field, or [`ABSENT`].
    marks: Box<[u64]>,
    /// One bit for each field that was last seen in an update. A listing without this field does not mean that it is
    /// gone.
    told: u16,
}

const ABSENT: u64 = 0;

/// A decision about an update. The greatest decision of all fields counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpdateDecision {
    Suppress,
    /// The decision needs the next listing of the definition.
    AskListing,
    Deliver,
}

impl Selection {
    /// Reads a selection from the JSON value at `span`.
    pub fn parse(text: &str, span: Span) -> Result<Selection, String> {
        let fields = json::elements(text, span).map(|field| json::string(text, field));
        let fields = fields.take(MAX_FIELDS + 1).collect::<Option<Vec<_>>>().unwrap_or_default();
        if fields.is_empty() || fields.len() > MAX_FIELDS {
            return Err(format!("must be an array of 1 to {MAX_FIELDS} strings"));
        }
        for (index, field) in fields.iter().enumerate() {
            if field.split('.').any(str::is_empty) {
                return Err(format!("has the path {field:?} with an empty part"));
            }
            if field.len() > MAX_FIELD {
                return Err(format!("has a path of {} bytes, longer than {MAX_FIELD}", field.len()));
            }
            if fields[..index].contains(field) {
                return Err(format!("has {field:?} twice"));
            }
        }
        Ok(Selection(fields.into_iter().map(Box::from).collect()))
    }

    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|field| &**field)
    }

    /// Returns the state of the fields before the first update.
    pub fn look(&self, definition: Option<&str>) -> FieldState {
        let mark = |field| listed(definition, field).unwrap_or(ABSENT);
        FieldState { marks: self.fields().map(mark).collect(), told: 0 }
    }

    /// Judges an update or, if there is none, a new definition from a listing. An update is its text and the span of
    /// its `params`. Records the new state of the fields in `seen`.
    pub fn judge(
        &self,
        seen: &mut FieldState,
        update: Option<(&str, Span)>,
        definition: Option<&str>,
    ) -> UpdateDecision {
        let is_first = seen.marks.len() != self.0.len();
        if is_first {
            *seen = self.look(definition);
        }
        let judge = |(index, field)| match update {
            Some((text, params)) => seen.judge_update(index, told(text, params, field), listed(definition, field)),
            None => seen.judge_listing(index, listed(definition, field)),
        };
        let verdict = self.fields().enumerate().map(judge).max().unwrap_or(UpdateDecision::Deliver);
        match (is_first, update) {
            (false, _) => verdict,
            (true, Some(_)) => UpdateDecision::Deliver,
            // The initial state is not a change.
            (true, None) => UpdateDecision::Suppress,
        }
    }
}

impl FieldState {
    fn judge_update(&mut self, index: usize, told: Option<u64>, listed: Option<u64>) -> UpdateDecision {
        if told.is_none() && listed.is_some() {
            return UpdateDecision::AskListing;
        }
        self.told |= 1 << index;
        let mark = told.unwrap_or(ABSENT);
        let last = std::mem::replace(&mut self.marks[index], mark);
        if mark != ABSENT && mark == last { UpdateDecision::Suppress } else { UpdateDecision::Deliver }
    }

    fn judge_listing(&mut self, index: usize, listed: Option<u64>) -> UpdateDecision {
        let bit = 1 << index;
        if listed.is_none() && self.told & bit != 0 {
            return UpdateDecision::Suppress;
        }
        self.told &= !bit;
        let mark = listed.unwrap_or(ABSENT);
        let last = std::mem::replace(&mut self.marks[index], mark);
        if mark == last { UpdateDecision::Suppress } else { UpdateDecision::Deliver }
    }
}

/// Returns the hash of a field in an update, either in `params` or in its `_meta`.
fn told(text: &str, params: Span, field: &str) -> Option<u64> {
    let in_meta = || find(text, json::member(text, params, "_meta")?, field);
    find(text, params, field).or_else(in_meta).map(|value| hash(value.get(text)))
}

/// Returns the hash of a field in a definition.
fn listed(definition: Option<&str>, field: &str) -> Option<u64> {
    let text = definition?;
    find(text, json::whole(text), field).map(|value| hash(value.get(text)))
}

fn find(text: &str, span: Span, field: &str) -> Option<Span> {
    field.split('.').try_fold(span, |span, key| json::member(text, span, key))
}

/// Hashes a JSON value without the whitespace between its tokens. Numbers count as spelled.
fn hash(value: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let (mut is_string, mut is_escaped) = (false, false);
    for byte in value.bytes() {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' if !is_string => continue,
            b'"' if !is_escaped => is_string = !is_string,
            _ => {}
        }
        is_escaped = byte == b'\\' && !is_escaped;
        hasher.write_u8(byte);
    }
    hasher.finish().max(ABSENT + 1)
}

#[cfg(test)]
mod tests {
    use super::UpdateDecision::{AskListing, Deliver, Suppress};
    use super::*;

    fn selection(fields: &str) -> Selection {
        Selection::parse(fields, json::whole(fields)).expect(fields)
    }

    #[test]
    fn subx2_paths_are_read_and_others_refused_with_words() {
        let paths = selection(r#"[ "size" , "annotations.lastModified", "\u0061"]"#);
        assert!(paths.fields().eq(["size", "annotations.lastModified", "a"]));
        let sixteen: Vec<_> = (0..16).map(|number| format!("\"f{number}\"")).collect();
        assert_eq!(selection(&format!("[{}]", sixteen.join(","))).fields().count(), 16);
        let long = format!(r#"["{}"]"#, "a".repeat(257));
        for (wrong, words) in [
            ("\"size\"", "must be an array of 1 to 16 strings"),
            ("{}", "must be an array"),
            ("null", "must be an array"),
            ("[]", "must be an array"),
            (r#"["a",1]"#, "must be an array"),
            (&format!("[{},\"more\"]", sixteen.join(",")), "1 to 16"),
            (r#"[""]"#, r#"the path "" with an empty part"#),
            (r#"["a..b"]"#, r#"the path "a..b" with an empty part"#),
            (r#"[".a"]"#, "empty part"),
            (r#"["a."]"#, "empty part"),
            (r#"["a","b","a"]"#, r#"has "a" twice"#),
            (&long, "longer than 256"),
        ] {
            let error = Selection::parse(wrong, json::whole(wrong)).expect_err(wrong);
            assert!(error.contains(words), "{wrong}: {error}");
        }
    }

    /// An input of `judge`: an update with its `params`, or a listing. The last text is the definition listed at that
    /// time.
    enum SelectionInput {
        Update(&'static str, &'static str),
        Listing(&'static str),
    }
    use SelectionInput::{Listing, Update};

    fn check(fields: &str, subscribed: &str, words: &[(SelectionInput, UpdateDecision)]) {
        let definition = |text: &'static str| (!text.is_empty()).then_some(text);
        let selection = selection(fields);
        let mut seen = selection.look((!subscribed.is_empty()).then_some(subscribed));
        for (number, (word, expected)) in words.iter().enumerate() {
            let verdict = match word {
                Update(params, listed) => {
                    selection.judge(&mut seen, Some((params, json::whole(params))), definition(listed))
                }
                Listing(listed) => selection.judge(&mut seen, None, definition(listed)),
            };
            assert_eq!(verdict, *expected, "{fields} from {subscribed}, word {number}");
        }
    }

    #[test]
    fn subx2_what_an_update_says_is_compared_with_what_was_seen() {
        let told = |params| Update(params, "");
        check(
            r#"["version"]"#,
            "",
            &[
                (told(r#"{"version":1}"#), Deliver),
                (told(r#"{"version":1}"#), Suppress),
                (told(r#"{"version":1.0}"#), Deliver),
                (told(r#"{"version":{"a":[1,"x y"]}}"#), Deliver),
                (told(r#"{"version": { "a" : [ 1 , "x y" ] } }"#), Suppress),
                (told(r#"{"version":{"a":[1,"xy"]}}"#), Deliver),
                (told(r#"{"version":"\"  x"}"#), Deliver),
                (told(r#"{"version":"\" x"}"#), Deliver),
                (told(r#"{"version":"\\" }"#), Deliver),
                (told(r#"{"version":null}"#), Deliver),
                (told(r#"{"version":null}"#), Suppress),
                (told("{}"), Deliver),
                (told("{}"), Deliver),
                (told(r#"{"version":null}"#), Deliver),
            ],
        );
        check(
            r#"["a.b"]"#,
            r#"{"a":{"b":1}}"#,
            &[
                (told(r#"{"a":{"b":1}}"#), Suppress),
                (told(r#"{"_meta":{"a":{"b":1}}}"#), Suppress),
                (told(r#"{"_meta":{"a":{"b":2}}}"#), Deliver),
                (told(r#"{"a":{"b":3},"_meta":{"a":{"b":2}}}"#), Deliver),
                (told(r#"{"a":{"b":3}}"#), Suppress),
                (told(r#"{"a.b":3}"#), Deliver),
            ],
        );
    }

    #[test]
    fn subx2_what_is_only_listed_must_be_listed_anew() {
        check(
            r#"["size"]"#,
            r#"{"uri":"a:b","size":1}"#,
            &[
                (Update("{}", r#"{"size":1}"#), AskListing),
                (Listing(r#"{"size": 1}"#), Suppress),
                (Update("{}", r#"{"size":1}"#), AskListing),
                (Listing(r#"{"size":2}"#), Deliver),
                (Listing(r#"{"size":2}"#), Suppress),
                // The update is newer than the known listing.
                (Update(r#"{"size":3}"#, r#"{"size":2}"#), Deliver),
                (Update("{}", r#"{"size":2}"#), AskListing),
                (Listing(r#"{"size":3}"#), Suppress),
                (Listing("{}"), Deliver),
                (Listing(""), Suppress),
            ],
        );
        check(r#"["size"]"#, r#"{"size":1}"#, &[(Listing(""), Deliver), (Update("{}", ""), Deliver)]);
    }

    #[test]
    fn subx2_a_listing_is_silent_on_what_only_updates_tell() {
        check(
            r#"["version"]"#,
            "{}",
            &[
                (Update(r#"{"version":1}"#, "{}"), Deliver),
                (Listing("{}"), Suppress),
                (Update(r#"{"version":1}"#, "{}"), Suppress),
            ],
        );
    }

    #[test]
    fn subx2_of_several_fields_the_first_to_differ_decides() {
        let listed = r#"{"size":1}"#;
        check(
            r#"["size","version"]"#,
            listed,
            &[
                (Update(r#"{"version":1}"#, listed), Deliver),
                (Update(r#"{"version":1}"#, listed), AskListing),
                (Listing(listed), Suppress),
                (Update(r#"{"version":1,"size":1}"#, listed), Suppress),
                (Update("{}", listed), Deliver),
            ],
        );
    }

    #[test]
    fn subx2_the_first_update_of_what_was_never_seen_is_delivered() {
        let (one, two) = (selection(r#"["size"]"#), selection(r#"["size","version"]"#));
        let (params, definition) = (r#"{"size":1}"#, r#"{"size":1,"version":1}"#);
        let update = Some((params, json::whole(params)));
        let mut seen = FieldState::default();
        assert_eq!(one.judge(&mut seen, update, Some(definition)), Deliver);
        assert_eq!(one.judge(&mut seen, update, Some(definition)), Suppress);
        // The state of other fields has no effect.
        assert_eq!(two.judge(&mut seen, update, Some(definition)), Deliver);
        assert_eq!(two.judge(&mut seen, update, Some(definition)), AskListing);
    }
}
