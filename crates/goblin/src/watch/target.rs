//! The resources and patterns to watch, and the params of their subscribe requests.

use std::collections::HashSet;
use std::time::Duration;

use clap::ValueEnum;
use goblin_wire::json::{self, Span, quote};

/// The kind of a URI on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UriKind {
    /// One resource
    Exact,
    /// All resources that match: * stops at a slash, ** does not, ? is one character, [ab] is one of several
    Glob,
    /// All resources that a template of a server describes
    Template,
}

impl UriKind {
    /// Guesses the kind from the characters of the URI. Only the resource list shows whether it is an exact resource.
    fn guess(uri: &str) -> UriKind {
        if uri.contains('{') {
            UriKind::Template
        } else if uri.contains(['*', '?', '[']) {
            UriKind::Glob
        } else {
            UriKind::Exact
        }
    }

    fn pattern_name(self) -> Option<&'static str> {
        match self {
            UriKind::Exact => None,
            UriKind::Glob => Some("glob"),
            UriKind::Template => Some("template"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchTarget {
    pub uri: String,
    pub kind: UriKind,
}

impl WatchTarget {
    /// Returns the prefix that all matching URIs share.
    pub(crate) fn literal<'a>(&self, uri: &'a str) -> &'a str {
        match self.kind {
            UriKind::Exact => uri,
            UriKind::Glob | UriKind::Template => uri.split(['*', '?', '[', '{']).next().unwrap_or_default(),
        }
    }
}

/// All resources and patterns to watch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WatchTargets {
    pub targets: Vec<WatchTarget>,
    /// The members of `_meta` that all requests share.
    options: Vec<String>,
    is_guessed: bool,
}

/// The delivery options of updates.
#[derive(Default)]
pub(crate) struct UpdateOptions<'a> {
    pub min_interval: Option<Duration>,
    pub batch: Option<Duration>,
    pub fields: &'a [String],
}

impl WatchTargets {
    /// Creates one entry per distinct URI. Guesses the kind if `kind` is `None`.
    pub(crate) fn new(uris: &[String], kind: Option<UriKind>, options: &UpdateOptions<'_>) -> WatchTargets {
        let mut seen = HashSet::new();
        let uris = uris.iter().filter(|uri| seen.insert(*uri));
        let target = |uri: &String| WatchTarget { uri: uri.clone(), kind: kind.unwrap_or_else(|| UriKind::guess(uri)) };
        WatchTargets { targets: uris.map(target).collect(), options: options.members(), is_guessed: kind.is_none() }
    }

    /// Reports whether a URI that looks like a pattern may be an exact resource.
    pub(crate) fn needs_listing(&self) -> bool {
        self.is_guessed && self.targets.iter().any(|target| target.kind != UriKind::Exact)
    }

    /// Marks the entries that a `resources/list` result contains as exact, by the listed URI or by the server's own.
    pub(crate) fn mark_listed(&mut self, text: &str, result: Span) {
        let Some(resources) = json::member(text, result, "resources") else { return };
        for resource in json::elements(text, resources) {
            let uri = json::member(text, resource, "uri").and_then(|uri| json::string(text, uri));
            let Some(uri) = uri else { continue };
            let native = uri.split_once('+').map(|(_, native)| native);
            let is_listed = |target: &&mut WatchTarget| target.uri == *uri || native == Some(&*target.uri);
            self.targets.iter_mut().filter(is_listed).for_each(|target| target.kind = UriKind::Exact);
        }
    }

    /// Returns the params of the subscribe request for an entry.
    pub(crate) fn params(&self, target: &WatchTarget) -> String {
        let pattern = target.kind.pattern_name().map(|name| format!(r#""dev.goblin/pattern":"{name}""#));
        let mut members: Vec<_> = self.options.iter().cloned().chain(pattern).collect();
        if members.is_empty() {
            // An option at its default value requests the names of the subscription and changes nothing else.
            members.push(r#""dev.goblin/priority":0"#.to_owned());
        }
        format!(r#"{{"uri":{},"_meta":{{{}}}}}"#, quote(&target.uri), members.join(","))
    }
}

impl UpdateOptions<'_> {
    fn members(&self) -> Vec<String> {
        let member = |key: &str, value: String| format!(r#""dev.goblin/{key}":{value}"#);
        let millis = |key, duration: Duration| member(key, duration.as_millis().to_string());
        let fields: Vec<_> = self.fields.iter().map(|field| quote(field)).collect();
        let fields = (!fields.is_empty()).then(|| member("fields", format!("[{}]", fields.join(","))));
        let interval = self.min_interval.map(|interval| millis("minIntervalMs", interval));
        let batch = self.batch.map(|batch| millis("batchMs", batch));
        [interval, batch, fields].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(uris: &[&str], kind: Option<UriKind>, options: &UpdateOptions<'_>) -> WatchTargets {
        let uris: Vec<_> = uris.iter().map(|uri| (*uri).to_owned()).collect();
        WatchTargets::new(&uris, kind, options)
    }

    fn kinds(targets: &WatchTargets) -> Vec<UriKind> {
        targets.targets.iter().map(|target| target.kind).collect()
    }

    #[test]
    fn a_subscribe_request_contains_the_update_options() {
        let check = |uri: &str, kind, options: UpdateOptions<'_>, expected: &str| {
            let targets = targets(&[uri], kind, &options);
            let params = targets.params(&targets.targets[0]);
            assert_eq!(params, expected);
            assert!(serde_json::from_str::<serde_json::Value>(&params).is_ok(), "{params}");
        };
        check("a:b", None, UpdateOptions::default(), r#"{"uri":"a:b","_meta":{"dev.goblin/priority":0}}"#);
        check("a:*", None, UpdateOptions::default(), r#"{"uri":"a:*","_meta":{"dev.goblin/pattern":"glob"}}"#);
        let exact = r#"{"uri":"a:*","_meta":{"dev.goblin/priority":0}}"#;
        check("a:*", Some(UriKind::Exact), UpdateOptions::default(), exact);
        check("a:{b}", None, UpdateOptions::default(), r#"{"uri":"a:{b}","_meta":{"dev.goblin/pattern":"template"}}"#);
        check(
            "a:\"b",
            Some(UriKind::Glob),
            UpdateOptions {
                min_interval: Some(Duration::from_secs(5)),
                batch: Some(Duration::ZERO),
                fields: &["size".to_owned(), "a.\"b".to_owned()],
            },
            concat!(
                r#"{"uri":"a:\"b","_meta":{"dev.goblin/minIntervalMs":5000,"dev.goblin/batchMs":0,"#,
                r#""dev.goblin/fields":["size","a.\"b"],"dev.goblin/pattern":"glob"}}"#
            ),
        );
    }

    #[test]
    fn a_uri_with_wildcards_is_a_pattern_unless_it_is_listed() {
        use UriKind::{Exact, Glob, Template};
        let uris = ["a:b", "x+a:[b]", "a:*", "a:{/b*}", "a:c?d", "a:b"];
        let mut guessed = targets(&uris, None, &UpdateOptions::default());
        assert_eq!(kinds(&guessed), [Exact, Glob, Glob, Template, Glob]);
        assert!(guessed.needs_listing());
        let listed = r#"{"resources":[{"uri":"x+a:[b]"},{"uri":"y+a:c?d"},{"name":"odd"},{"uri":"y+other:*"}]}"#;
        guessed.mark_listed(listed, json::whole(listed));
        assert_eq!(kinds(&guessed), [Exact, Exact, Glob, Template, Exact]);
        assert!(!targets(&["a:b"], None, &UpdateOptions::default()).needs_listing());
        assert!(!targets(&uris, Some(Glob), &UpdateOptions::default()).needs_listing());
    }

    #[test]
    fn a_pattern_has_a_literal_prefix() {
        let check = |uri: &str, expected: &str| {
            let targets = targets(&[uri], None, &UpdateOptions::default());
            assert_eq!(targets.targets[0].literal(uri), expected);
        };
        check("a+b:c", "a+b:c");
        check("a+b:c/**/*.log", "a+b:c/");
        check("a+b:{c}", "a+b:");
        check("**", "");
    }
}
