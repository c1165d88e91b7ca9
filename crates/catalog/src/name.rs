//! The exposed names of tools and prompts (D4). A name is built once and looked up as a whole. It is never split.

use std::collections::{BTreeMap, HashMap};

use goblin_config::{NamePolicy, Namespacing, ServerId};
use sha2::{Digest, Sha256};

/// The number of hash characters at the end of a shortened or contested name.
const HASH_LETTERS: usize = 6;

/// The name that an entry claims.
#[derive(Clone, Debug)]
pub struct NameClaim<'a> {
    pub server: &'a ServerId,
    pub native: &'a str,
    /// The exposed name before conflicts are resolved.
    pub name: String,
    pub max_length: usize,
}

/// The result of [`resolve_conflicts`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ExposedNames {
    /// One exposed name per claim, in the order of the claims.
    pub names: Vec<String>,
    /// Names that several entries claimed. Each of them got a suffix, and the bare name is unassigned.
    pub contested: BTreeMap<String, Vec<String>>,
}

/// Returns the name that an entry claims. Without namespacing it is the native name, whatever its characters and length.
/// Otherwise it is prefix and native name, with unsafe characters replaced by `_`. A name that is too long is cut and
/// ends in a hash. An empty prefix changes only the prefix: the name is still safe and short.
pub fn claimed_name(
    policy: NamePolicy,
    namespacing: &Namespacing,
    prefix: &str,
    server: &ServerId,
    native: &str,
) -> String {
    let whole = match policy {
        NamePolicy::None => return native.to_owned(),
        NamePolicy::Prefix if prefix.is_empty() => native.to_owned(),
        NamePolicy::Prefix => format!("{prefix}{}{native}", namespacing.separator),
    };
    let safe = safe(&whole);
    if safe.len() <= namespacing.max_length {
        return safe;
    }
    suffixed(&safe, server, native, namespacing.max_length, HASH_LETTERS)
}

/// Resolves conflicts. All entries with equal names get a suffix, and so does an entry with a reserved name. A name
/// therefore never changes its meaning when another backend appears. A name with a suffix is safe and short, also if the
/// claimed name is not.
pub fn resolve_conflicts(claims: &[NameClaim<'_>], is_reserved: impl Fn(&str) -> bool) -> ExposedNames {
    let mut claimed: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, claim) in claims.iter().enumerate() {
        claimed.entry(&claim.name).or_default().push(index);
    }
    let mut names: Vec<String> = claims.iter().map(|claim| claim.name.clone()).collect();
    let mut contested = BTreeMap::new();
    let mut taken: HashMap<String, usize> = HashMap::new();
    for (name, indexes) in &claimed {
        if let [only] = indexes[..]
            && !is_reserved(name)
        {
            taken.insert((*name).to_owned(), only);
        } else {
            contested.insert((*name).to_owned(), Vec::new());
        }
    }
    // Iterate in the order of names, so that the result does not depend on the order of the claims.
    let bare: Vec<String> = contested.keys().cloned().collect();
    for name in bare {
        let stem = safe(&name);
        for &index in &claimed[name.as_str()] {
            let claim = &claims[index];
            let mut letters = HASH_LETTERS;
            let unique = loop {
                let candidate = suffixed(&stem, claim.server, claim.native, claim.max_length, letters);
                let is_free = !taken.contains_key(&candidate)
                    && !claimed.contains_key(candidate.as_str())
                    && !is_reserved(&candidate);
                if is_free || letters >= 40 {
                    break candidate;
                }
                letters += 2;
            };
            taken.insert(unique.clone(), index);
            contested.entry(name.clone()).or_default().push(unique.clone());
            names[index] = unique;
        }
    }
    ExposedNames { names, contested }
}

/// Replaces unsafe characters by `_`.
fn safe(name: &str) -> String {
    name.chars().map(|character| if is_safe(character) { character } else { '_' }).collect()
}

fn is_safe(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

/// Shortens `name`, which is safe, so that `_` and a hash of server and native name fit after it.
fn suffixed(name: &str, server: &ServerId, native: &str, max_length: usize, letters: usize) -> String {
    let room = max_length.saturating_sub(letters + 1);
    let cut = &name[..name.len().min(room)];
    format!("{cut}_{}", hash(server, native, letters))
}

/// Returns the first letters of a hash of server id and native name, in base 32.
pub fn hash(server: &ServerId, native: &str, letters: usize) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut digest = Sha256::new();
    digest.update(server.as_str().as_bytes());
    digest.update([0]);
    digest.update(native.as_bytes());
    digest.finalize().iter().take(letters).map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server(id: &str) -> ServerId {
        ServerId::new(id).expect("a valid id")
    }

    fn default() -> Namespacing {
        Namespacing::default()
    }

    fn exposed_names(entries: &[(&str, &str)]) -> ExposedNames {
        exposed_under(NamePolicy::Prefix, entries)
    }

    fn exposed_under(policy: NamePolicy, entries: &[(&str, &str)]) -> ExposedNames {
        let servers: Vec<_> = entries.iter().map(|(id, _)| server(id)).collect();
        let claims: Vec<_> = entries
            .iter()
            .zip(&servers)
            .map(|((id, native), server)| NameClaim {
                server,
                native,
                name: claimed_name(policy, &default(), id, server, native),
                max_length: default().max_length,
            })
            .collect();
        resolve_conflicts(&claims, |name| name == "reserved")
    }

    #[test]
    fn d4_names_are_prefix_and_native_name() {
        assert_eq!(
            exposed_names(&[("server1", "myTool"), ("my_server", "a.b/c")]).names,
            ["server1_myTool", "my_server_a_b_c"]
        );
    }

    #[test]
    fn d4_long_names_are_cut_and_end_in_a_stable_hash() {
        let long = "x".repeat(100);
        let first = exposed_names(&[("s", &long)]).names.remove(0);
        assert_eq!(first.len(), default().max_length);
        assert_eq!(first, exposed_names(&[("s", &long)]).names[0]);
        let other = exposed_names(&[("s", &format!("{long}y"))]).names.remove(0);
        assert_ne!(first, other);
    }

    #[test]
    fn d4_all_equal_names_get_a_suffix() {
        let exposed_names = exposed_names(&[("a", "b_c"), ("a_b", "c"), ("z", "c")]);
        let (first, second) = (&exposed_names.names[0], &exposed_names.names[1]);
        assert!(first.starts_with("a_b_c_") && second.starts_with("a_b_c_") && first != second, "{exposed_names:?}");
        assert_eq!(exposed_names.names[2], "z_c");
        assert_eq!(exposed_names.contested["a_b_c"], [first.clone(), second.clone()]);
    }

    #[test]
    fn d4_without_namespacing_only_contested_names_change() {
        let long = "x".repeat(200);
        let odd = ["a.b", "a/b", &long, "späť 工具", "tab\there", "server1_t"];
        let entries: Vec<_> = odd.iter().map(|native| ("server1", *native)).collect();
        let exposed_names = exposed_under(NamePolicy::None, &entries);
        assert_eq!(exposed_names, ExposedNames { names: odd.map(str::to_owned).to_vec(), ..ExposedNames::default() });
        let shared: Vec<_> = odd.iter().flat_map(|native| [("a", *native), ("b", *native)]).collect();
        let resolved = exposed_under(NamePolicy::None, &[&shared[..], &[("a", "reserved"), ("b", "own")]].concat());
        let (suffixed, rest) = resolved.names.split_at(shared.len());
        for name in suffixed {
            assert!(name.chars().all(is_safe) && name.len() <= default().max_length, "{name}");
        }
        assert!(rest[0].starts_with("reserved_") && rest[1] == "own", "{rest:?}");
        assert_eq!(resolved.contested["a.b"], suffixed[..2]);
        assert_eq!(resolved.contested.len(), odd.len() + 1, "{:?}", resolved.contested);
    }

    #[test]
    fn d4_an_empty_prefix_keeps_names_safe_and_short() {
        let name = |native: &str| claimed_name(NamePolicy::Prefix, &default(), "", &server("a"), native);
        assert_eq!((name("t"), name("a.b/ü")), ("t".to_owned(), "a_b__".to_owned()));
        assert_eq!(name(&"x".repeat(200)).len(), default().max_length);
    }

    proptest! {
        #[test]
        fn d4_native_names_are_unique_and_change_only_if_contested(entries in proptest::collection::hash_set(("[a-b]", "\\PC{1,60}|[a-b_.é]{1,3}|reserved"), 1..20)) {
            let entries: Vec<_> = entries.iter().map(|(id, native)| (id.as_str(), native.as_str())).collect();
            let exposed_names = exposed_under(NamePolicy::None, &entries);
            let unique: std::collections::HashSet<_> = exposed_names.names.iter().collect();
            prop_assert_eq!(unique.len(), entries.len());
            for ((_, native), name) in entries.iter().zip(&exposed_names.names) {
                let is_contested =
                    *native == "reserved" || entries.iter().filter(|(_, other)| other == native).count() > 1;
                prop_assert_eq!(is_contested, name != native);
                prop_assert_eq!(is_contested, exposed_names.contested.contains_key(*native));
                prop_assert!(!is_contested || name.chars().all(is_safe) && name.len() <= default().max_length);
            }
        }

        #[test]
        fn d4_names_are_unique_safe_and_short(entries in proptest::collection::hash_set(("[a-b_]{1,3}", "\\PC{1,60}|[a-b_.]{1,4}"), 1..20)) {
            let entries: Vec<_> = entries.iter().map(|(id, native)| (id.as_str(), native.as_str())).collect();
            let exposed_names = exposed_names(&entries);
            let unique: std::collections::HashSet<_> = exposed_names.names.iter().collect();
            prop_assert_eq!(unique.len(), entries.len());
            for name in &exposed_names.names {
                prop_assert!(name.chars().all(is_safe) && name.len() <= default().max_length && !name.is_empty());
                prop_assert!(!exposed_names.contested.contains_key(name));
            }
        }

        #[test]
        fn d4_names_do_not_depend_on_the_order(entries in proptest::collection::hash_set(("[a-b_]{1,3}", "[a-b_.]{1,4}"), 1..12)) {
            let forward: Vec<_> = entries.iter().map(|(id, native)| (id.as_str(), native.as_str())).collect();
            let backward: Vec<_> = forward.iter().rev().copied().collect();
            let names = exposed_names(&forward).names;
            let mut again = exposed_names(&backward).names;
            again.reverse();
            prop_assert_eq!(names, again);
        }
    }
}
