//! Decides which variables of the gateway's environment a stdio server inherits (D19).
//!
//! A server gets the variables of [`ALLOWED`], those that its `inherit` names, and its own `env`. It gets nothing else,
//! because the gateway's environment holds the secrets of all servers. This module decides by name and reads no
//! environment.
//!
//! Invariant: no server inherits a variable that starts with [`PRIVATE_PREFIX`] or that holds a token of the gateway.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use crate::expand::is_variable_name;
use crate::field::Field;
use crate::problem::Fault;
use crate::word_list;

/// Variables with this prefix configure the gateway and may hold its tokens.
pub(crate) const PRIVATE_PREFIX: &str = "GOBLIN_";

/// The variables that every server gets: names, and prefixes that end in `*`. Case matters, as on Unix.
const ALLOWED: &str = include_str!("words/inherited.txt");

/// The inheritance rules of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherit {
    /// Whether the server inherits all variables, as with `"inherit": true`.
    everything: bool,
    /// The names and prefixes from the file. Prefixes end in `*`.
    named: Vec<String>,
    /// Variables that match the rules above and must still not pass.
    withheld: BTreeSet<String>,
}

impl Inherit {
    /// Reports whether the server gets the gateway's variable of this name.
    pub fn passes(&self, name: &OsStr) -> bool {
        let Some(text) = name.to_str() else { return self.everything };
        !text.starts_with(PRIVATE_PREFIX)
            && !self.withheld.contains(text)
            && (self.everything || self.names(text) || word_list::match_name(word_list::of(ALLOWED), text))
    }

    /// Reports whether the server gets the gateway's variable only because of its `inherit`.
    pub fn adds(&self, name: &OsStr) -> bool {
        let is_allowed = |text: &str| word_list::match_name(word_list::of(ALLOWED), text);
        self.passes(name) && !name.to_str().is_some_and(is_allowed)
    }

    fn names(&self, name: &str) -> bool {
        word_list::match_name(self.named.iter().map(String::as_str), name)
    }

    /// Reports whether the variable would pass if `inherit` named it.
    pub fn may_name(&self, name: &str) -> bool {
        is_variable_name(name) && !name.starts_with(PRIVATE_PREFIX) && !self.withheld.contains(name)
    }

    /// Withholds the variables that hold tokens of the gateway. Also withholds variables that other parts of the
    /// configuration expand, if only a prefix of [`ALLOWED`] would pass them.
    pub(crate) fn withhold<'a>(
        &mut self,
        tokens: impl Iterator<Item = &'a str>,
        elsewhere: impl Iterator<Item = &'a str>,
    ) {
        let is_allowed = |name: &str| word_list::of(ALLOWED).any(|allowed| allowed == name);
        let is_named = |name: &str| self.everything || self.names(name) || is_allowed(name);
        let elsewhere: Vec<&str> = elsewhere.filter(|name| !is_named(name)).collect();
        for name in tokens.chain(elsewhere) {
            // Skip a name that does not pass anyway. Otherwise a change of another server would restart this one.
            if self.passes(OsStr::new(name)) {
                self.withheld.insert(name.to_owned());
            }
        }
    }
}

/// Reads `inherit`.
pub(crate) fn inherit(field: &Field<'_>) -> Option<Inherit> {
    if field.is_flag() {
        return Some(Inherit { everything: field.flag()?, ..Inherit::default() });
    }
    if !field.is_array() {
        return field
            .accept(Err(Fault::new("must be true or an array of names").cure("write [\"NAME\", \"PREFIX_*\"]")));
    }
    let named = field.list(|field| field.accept(check(field.text()?)))?;
    Some(Inherit { named, ..Inherit::default() })
}

/// Reports the elements of `inherit` that name a token of the gateway.
pub(crate) fn report_tokens(field: &Field<'_>, is_token: impl Fn(&str) -> bool) {
    if !field.is_array() {
        return;
    }
    // The elements have been checked before, so only strings need a check here.
    field.list(|field| {
        if field.is_string() && field.text().is_some_and(&is_token) {
            field.problem(Fault::new("contains a token of the gateway, which no server may see").cure("remove it"));
        }
        Some(())
    });
}

fn check(text: &str) -> Result<String, Fault> {
    if !is_variable_name(text.strip_suffix('*').unwrap_or(text)) {
        return Err(Fault::new("must be the name of a variable, or a prefix and \"*\""));
    }
    if text.starts_with(PRIVATE_PREFIX) {
        return Err(Fault::new("variables that start with GOBLIN_ are passed to no server")
            .cure("set another variable in \"env\""));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(named: &[&str]) -> Inherit {
        Inherit { named: named.iter().map(|name| (*name).to_owned()).collect(), ..Inherit::default() }
    }

    fn passes(inherit: &Inherit, name: &str) -> bool {
        inherit.passes(OsStr::new(name))
    }

    #[test]
    fn d19_a_server_gets_the_allow_list_and_the_names_of_inherit() {
        for (named, name, expected) in [
            (&[][..], "PATH", true),
            (&[], "Path", false),
            (&[], "PATHS", false),
            (&[], "LC_ALL", true),
            (&[], "LC", false),
            (&[], "https_proxy", true),
            (&[], "NO_PROXY", true),
            (&[], "npm_config_cache", true),
            (&[], "GITHUB_TOKEN", false),
            (&["GITHUB_TOKEN"], "GITHUB_TOKEN", true),
            (&["GITHUB_TOKEN"], "GITHUB_TOKEN_2", false),
            (&["AWS_*"], "AWS_REGION", true),
            (&["AWS_*"], "aws_region", false),
            (&["AWS_*"], "AWSREGION", false),
            (&["GOB*"], "GOBLIN_TOKEN", false),
        ] {
            assert_eq!(passes(&of(named), name), expected, "{named:?} {name}");
            assert_eq!(of(named).adds(OsStr::new(name)), expected && !named.is_empty(), "{named:?} {name}");
        }
        let all = Inherit { everything: true, ..Inherit::default() };
        assert!(passes(&all, "GITHUB_TOKEN") && !passes(&all, "GOBLIN_TOKEN"));
    }

    #[test]
    fn d19_tokens_of_the_gateway_and_secrets_of_other_servers_are_withheld() {
        let others = ["UV_INDEX_PASSWORD", "HOME", "AWS_KEY", "UNRELATED"];
        for (mut inherit, passing) in [
            (of(&[]), &["HOME"][..]),
            (of(&["AWS_*", "UV_INDEX_PASSWORD"]), &["UV_INDEX_PASSWORD", "HOME", "AWS_KEY"]),
            (of(&["A*", "GATE"]), &["HOME", "AWS_KEY"]),
            (Inherit { everything: true, ..Inherit::default() }, &others),
        ] {
            inherit.withhold(["GATE"].into_iter(), others.into_iter());
            let found: Vec<_> = others.into_iter().chain(["GATE"]).filter(|name| passes(&inherit, name)).collect();
            assert_eq!(found, passing, "{inherit:?}");
        }
        let mut plain = of(&[]);
        plain.withhold(["GATE"].into_iter(), ["GITHUB_TOKEN", "HOME"].into_iter());
        assert_eq!(plain, of(&[]), "nothing was withheld that would pass");
    }
}
