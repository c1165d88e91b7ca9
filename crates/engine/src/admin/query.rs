//! Reads the query of a request to the admin API.

use goblin_admin::routes::Route;
use http::StatusCode;
use percent_encoding::percent_decode_str;

use crate::admin::{API, AdminError};

/// The parameters of a request.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Returns the parameters. Rejects any other parameter, because a misspelled filter would return the whole list.
    /// Ignores the query of probes and scrapes, because some programs add one.
    pub(crate) fn read(route: &Route, query: &str) -> Result<Query, AdminError> {
        let mut read = Query::default();
        if !route.path.starts_with(API) {
            return Ok(read);
        }
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (given, value) = part.split_once('=').unwrap_or((part, ""));
            let name = route.parameters.iter().find(|name| **name == given);
            let (Some(name), false) = (name, value.is_empty()) else { return Err(misused(route)) };
            if read.get(name).is_some() {
                return Err(misused(route));
            }
            let value = percent_decode_str(value).decode_utf8().map_err(|_| denied(format!("{name} is not UTF-8")))?;
            read.0.push((name, value.into_owned()));
        }
        Ok(read)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a parameter that is a number. Returns an error if the number is above `max`.
    pub(crate) fn number(&self, name: &str, max: u64) -> Result<Option<u64>, AdminError> {
        let read = |value: &str| value.parse().ok().filter(|number| *number <= max);
        let read = |value| read(value).ok_or_else(|| denied(format!("{name} must be a number from 0 to {max}")));
        self.get(name).map(read).transpose()
    }

    /// Returns the value of a parameter that is one of `words`.
    pub(crate) fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>, AdminError> {
        let Some(given) = self.get(name) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| *word == given).map(|(_, value)| *value);
        let known = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        found.map(Some).ok_or_else(|| denied(format!("{name} must be one of {}", known())))
    }
}

fn misused(route: &Route) -> AdminError {
    let forms: Vec<_> = route.parameters.iter().map(|name| format!("{name}={}", name.to_ascii_uppercase())).collect();
    let message = match &forms[..] {
        [] => "this route accepts no query".to_owned(),
        [form] => format!("the query may have one {form} and nothing else; & and % in it are written as %26 and %25"),
        forms => format!(
            "the query may have {}, each once, and nothing else; & and % in a value are written as %26 and %25",
            forms.join(", ")
        ),
    };
    denied(message)
}

fn denied(message: String) -> AdminError {
    AdminError::new(StatusCode::BAD_REQUEST, message)
}
