//! Names of keys with several spellings, names of keys of one kind of server, and the choice of known words.

use crate::problem::{Fault, quoted};

/// The names of the servers object in goblin and in other clients.
pub(crate) const SERVERS: [&str; 4] = ["mcpServers", "servers", "context_servers", "mcp_servers"];
pub(crate) const URL: [&str; 3] = ["url", "serverUrl", "httpUrl"];
pub(crate) const TYPE: [&str; 2] = ["type", "transport"];

/// Members that only one kind of server has.
pub(crate) const STDIO_MEMBERS: [&str; 5] = ["command", "args", "env", "inherit", "cwd"];
pub(crate) const HTTP_MEMBERS: [&str; 6] = ["url", "serverUrl", "httpUrl", "headers", "tls", "oauth"];
pub(crate) const FILES_MEMBERS: [&str; 4] = ["root", "hidden", "ignored", "maxFiles"];
/// Members of servers that may send requests to clients. The gateway's own file server sends none.
pub(crate) const SERVER_REQUEST_MEMBERS: [&str; 2] = ["declare", "roots"];

/// Returns the meaning of a value from a closed set.
pub(crate) fn choose<T: Copy>(text: &str, values: &[(&str, T)]) -> Result<T, Fault> {
    if let Some((_, meaning)) = values.iter().find(|(name, _)| *name == text) {
        return Ok(*meaning);
    }
    let names: Vec<String> = values.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let names = names.join(" or ");
    let fault = Fault::new(format!("unknown value {}", quoted(text)));
    Err(match nearest(text, values.iter().map(|(name, _)| *name)) {
        Some(known) => fault.cure(format!("did you mean \"{known}\"?")),
        None => fault.cure(format!("use {names}")),
    })
}

/// Returns the known word that is most similar. At most a third of its letters may differ. Ignores case.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // The comparison costs the product of both lengths, and a longer word is hardly a typing error.
    const MAX_LENGTH: usize = 64;
    if word.len() > MAX_LENGTH {
        return None;
    }
    let word = word.to_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&word, &known.to_lowercase());
    known
        .map(|known| (distance(known), known))
        .filter(|(distance, known)| *distance <= (known.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::{choose, nearest};

    #[test]
    fn only_a_similar_word_is_suggested() {
        assert_eq!(nearest("x", ["url", "env"].into_iter()), None);
        assert_eq!(nearest("", ["url"].into_iter()), None);
        assert_eq!(nearest(&"u".repeat(1_000_000), ["url"].into_iter()), None);
        assert_eq!(nearest("ulr", ["env", "url"].into_iter()), Some("url"));
    }

    #[test]
    fn values_are_chosen_from_a_closed_set() {
        let choose = |text| choose(text, &[("auto", 1), ("legacy", 2)]).map_err(|fault| fault.to_string());
        assert_eq!(choose("legacy"), Ok(2));
        assert_eq!(choose("legaci"), Err("unknown value \"legaci\", did you mean \"legacy\"?".to_owned()));
        assert_eq!(choose("x"), Err("unknown value \"x\", use \"auto\" or \"legacy\"".to_owned()));
    }
}
