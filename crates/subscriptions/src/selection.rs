//! Field selections: decides whether an update changes one of the selected fields.
//!
//! A [`Selection`] has the fields that a client selected. A [`FieldState`] has the last seen state of these fields for
//! one URI, as hashes. A field is looked up in the update first, then in the definition that the backend lists. The
//! known definition is older than the update, so a field found only there is decided after the next listing. In doubt
//! the update is delivered, because the client can ignore an extra update but cannot recover a missing one.

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
    hashes: Box<[u64]>,
    /// One bit for each field that was last seen in an update. A listing without this field does not mean that it is
    /// gone.
    from_update: u16,
}

const ABSENT: u64 = 0;

/// A decision about an update. The greatest decision of all fields counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpdateDecision {
    Suppress,
    /// The decision needs the next listing of the definition.
    AwaitListing,
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
    pub fn initial_state(&self, definition: Option<&str>) -> FieldState {
        let hash = |field| listed_hash(definition, field).unwrap_or(ABSENT);
        FieldState { hashes: self.fields().map(hash).collect(), from_update: 0 }
    }

    /// Decides about an update or, if there is none, a new definition from a listing. An update is its text and the
    /// span of its `params`. Records the new state of the fields in `seen`.
    pub fn decide(
        &self,
        seen: &mut FieldState,
        update: Option<(&str, Span)>,
        definition: Option<&str>,
    ) -> UpdateDecision {
        let is_first = seen.hashes.len() != self.0.len();
        if is_first {
            *seen = self.initial_state(definition);
        }
        let decide = |(index, field)| match update {
            Some((text, params)) => {
                seen.decide_by_update(index, update_hash(text, params, field), listed_hash(definition, field))
            }
            None => seen.decide_by_listing(index, listed_hash(definition, field)),
        };
        let decision = self.fields().enumerate().map(decide).max().unwrap_or(UpdateDecision::Deliver);
        match (is_first, update) {
            (false, _) => decision,
            (true, Some(_)) => UpdateDecision::Deliver,
            // The initial state is not a change.
            (true, None) => UpdateDecision::Suppress,
        }
    }
}

impl FieldState {
    fn decide_by_update(&mut self, index: usize, updated: Option<u64>, listed: Option<u64>) -> UpdateDecision {
        if updated.is_none() && listed.is_some() {
            return UpdateDecision::AwaitListing;
        }
        self.from_update |= 1 << index;
        let hash = updated.unwrap_or(ABSENT);
        let last = std::mem::replace(&mut self.hashes[index], hash);
        if hash != ABSENT && hash == last { UpdateDecision::Suppress } else { UpdateDecision::Deliver }
    }

    fn decide_by_listing(&mut self, index: usize, listed: Option<u64>) -> UpdateDecision {
        let bit = 1 << index;
        if listed.is_none() && self.from_update & bit != 0 {
            return UpdateDecision::Suppress;
        }
        self.from_update &= !bit;
        let hash = listed.unwrap_or(ABSENT);
        let last = std::mem::replace(&mut self.hashes[index], hash);
        if hash == last { UpdateDecision::Suppress } else { UpdateDecision::Deliver }
    }
}

/// Returns the hash of a field in an update, either in `params` or in its `_meta`.
fn update_hash(text: &str, params: Span, field: &str) -> Option<u64> {
    let in_meta = || find(text, json::member(text, params, "_meta")?, field);
    find(text, params, field).or_else(in_meta).map(|value| hash(value.get(text)))
}

/// Returns the hash of a field in a definition.
fn listed_hash(definition: Option<&str>, field: &str) -> Option<u64> {
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
    use super::UpdateDecision::{AwaitListing, Deliver, Suppress};
    use super::*;

    fn selection(fields: &str) -> Selection {
        Selection::parse(fields, json::whole(fields)).expect(fields)
    }

    #[test]
    fn subx2_field_paths_are_read_and_invalid_ones_are_rejected_with_a_cause() {
        let paths = selection(r#"[ "size" , "annotations.lastModified", "\u0061"]"#);
        assert!(paths.fields().eq(["size", "annotations.lastModified", "a"]));
        let sixteen: Vec<_> = (0..16).map(|number| format!("\"f{number}\"")).collect();
        assert_eq!(selection(&format!("[{}]", sixteen.join(","))).fields().count(), 16);
        let long = format!(r#"["{}"]"#, "a".repeat(257));
        for (wrong, expected) in [
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
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }

    /// An input of `decide`: an update with its `params`, or a listing. The last text is the definition listed at that
    /// time.
    enum SelectionInput {
        Update(&'static str, &'static str),
        Listing(&'static str),
    }
    use SelectionInput::{Listing, Update};

    fn check(fields: &str, subscribed: &str, inputs: &[(SelectionInput, UpdateDecision)]) {
        let definition = |text: &'static str| (!text.is_empty()).then_some(text);
        let selection = selection(fields);
        let mut seen = selection.initial_state((!subscribed.is_empty()).then_some(subscribed));
        for (number, (input, expected)) in inputs.iter().enumerate() {
            let decision = match input {
                Update(params, listed) => {
                    selection.decide(&mut seen, Some((params, json::whole(params))), definition(listed))
                }
                Listing(listed) => selection.decide(&mut seen, None, definition(listed)),
            };
            assert_eq!(decision, *expected, "{fields} from {subscribed}, input {number}");
        }
    }

    #[test]
    fn subx2_fields_of_an_update_are_compared_with_the_last_seen_values() {
        let update = |params| Update(params, "");
        check(
            r#"["version"]"#,
            "",
            &[
                (update(r#"{"version":1}"#), Deliver),
                (update(r#"{"version":1}"#), Suppress),
                (update(r#"{"version":1.0}"#), Deliver),
                (update(r#"{"version":{"a":[1,"x y"]}}"#), Deliver),
                (update(r#"{"version": { "a" : [ 1 , "x y" ] } }"#), Suppress),
                (update(r#"{"version":{"a":[1,"xy"]}}"#), Deliver),
                (update(r#"{"version":"\"  x"}"#), Deliver),
                (update(r#"{"version":"\" x"}"#), Deliver),
                (update(r#"{"version":"\\" }"#), Deliver),
                (update(r#"{"version":null}"#), Deliver),
                (update(r#"{"version":null}"#), Suppress),
                (update("{}"), Deliver),
                (update("{}"), Deliver),
                (update(r#"{"version":null}"#), Deliver),
            ],
        );
        check(
            r#"["a.b"]"#,
            r#"{"a":{"b":1}}"#,
            &[
                (update(r#"{"a":{"b":1}}"#), Suppress),
                (update(r#"{"_meta":{"a":{"b":1}}}"#), Suppress),
                (update(r#"{"_meta":{"a":{"b":2}}}"#), Deliver),
                (update(r#"{"a":{"b":3},"_meta":{"a":{"b":2}}}"#), Deliver),
                (update(r#"{"a":{"b":3}}"#), Suppress),
                (update(r#"{"a.b":3}"#), Deliver),
            ],
        );
    }

    #[test]
    fn subx2_a_field_found_only_in_the_listing_needs_a_new_listing() {
        check(
            r#"["size"]"#,
            r#"{"uri":"a:b","size":1}"#,
            &[
                (Update("{}", r#"{"size":1}"#), AwaitListing),
                (Listing(r#"{"size": 1}"#), Suppress),
                (Update("{}", r#"{"size":1}"#), AwaitListing),
                (Listing(r#"{"size":2}"#), Deliver),
                (Listing(r#"{"size":2}"#), Suppress),
                // The update is newer than the known listing.
                (Update(r#"{"size":3}"#, r#"{"size":2}"#), Deliver),
                (Update("{}", r#"{"size":2}"#), AwaitListing),
                (Listing(r#"{"size":3}"#), Suppress),
                (Listing("{}"), Deliver),
                (Listing(""), Suppress),
            ],
        );
        check(r#"["size"]"#, r#"{"size":1}"#, &[(Listing(""), Deliver), (Update("{}", ""), Deliver)]);
    }

    #[test]
    fn subx2_a_listing_does_not_reset_fields_found_only_in_updates() {
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
    fn subx2_a_difference_in_any_field_delivers_the_update() {
        let listed = r#"{"size":1}"#;
        check(
            r#"["size","version"]"#,
            listed,
            &[
                (Update(r#"{"version":1}"#, listed), Deliver),
                (Update(r#"{"version":1}"#, listed), AwaitListing),
                (Listing(listed), Suppress),
                (Update(r#"{"version":1,"size":1}"#, listed), Suppress),
                (Update("{}", listed), Deliver),
            ],
        );
    }

    #[test]
    fn subx2_the_first_update_of_unseen_fields_is_delivered() {
        let (one, two) = (selection(r#"["size"]"#), selection(r#"["size","version"]"#));
        let (params, definition) = (r#"{"size":1}"#, r#"{"size":1,"version":1}"#);
        let update = Some((params, json::whole(params)));
        let mut seen = FieldState::default();
        assert_eq!(one.decide(&mut seen, update, Some(definition)), Deliver);
        assert_eq!(one.decide(&mut seen, update, Some(definition)), Suppress);
        // The state of other fields has no effect.
        assert_eq!(two.decide(&mut seen, update, Some(definition)), Deliver);
        assert_eq!(two.decide(&mut seen, update, Some(definition)), AwaitListing);
    }
}
