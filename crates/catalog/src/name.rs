//! The exposed names of tools and prompts (D4). A name is built once and looked up as a whole. It is never split.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use goblin_config::{NamePolicy, Namespacing, ServerId};
use sha2::{Digest, Sha256};

/// The number of hash characters at the end of a shortened or contested name.
const HASH_LETTERS: usize = 6;
/// The number of characters that a hash has. Two hashes of this length never occur.
const MAX_HASH_LETTERS: usize = 32;

/// The names that an entry claims.
#[derive(Clone, Debug)]
pub struct NameClaim<'a> {
    pub server: &'a ServerId,
    pub native: &'a str,
    /// The exposed names before conflicts are resolved, at least one. The entry is listed under the first that it gets.
    pub names: Vec<String>,
    pub max_length: usize,
}

/// The result of [`resolve_conflicts`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ExposedNames {
    /// The names of each entry, in the order of the claims.
    pub names: Vec<ExposedName>,
    /// Names that several entries claimed. No entry gets them. The values are the exposed names of these entries.
    pub contested: BTreeMap<String, Vec<String>>,
}

/// The names that one entry got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExposedName {
    /// The name in lists.
    pub name: String,
    /// Other names that mean the same entry.
    pub aliases: Vec<String>,
    /// Claimed names that the entry did not get.
    pub lost: Vec<String>,
}

/// Returns the names that an entry claims, the preferred one first. Without namespacing it is the native name, whatever
/// its characters and length. Otherwise it is prefix and native name. A native name that already begins with the prefix
/// first claims the name that does not repeat it.
pub fn claimed_names(
    policy: NamePolicy,
    namespacing: &Namespacing,
    prefix: &str,
    server: &ServerId,
    native: &str,
) -> Vec<String> {
    let separator = &namespacing.separator;
    let full = match policy {
        NamePolicy::None => return vec![native.to_owned()],
        NamePolicy::Prefix if prefix.is_empty() => native.to_owned(),
        NamePolicy::Prefix => format!("{prefix}{separator}{native}"),
    };
    let is_shortened = namespacing.shorten && !prefix.is_empty();
    let short = if is_shortened { without_repetition(prefix, separator, native) } else { None };
    let fitted = |name: String| fit(&name, server, native, namespacing.max_length);
    let mut names: Vec<_> = short.into_iter().chain([full]).map(fitted).collect();
    names.dedup();
    names
}

/// Returns the name with the prefix once if the native name begins with the prefix. Letters compare without case, and
/// `-` equals `_`. After the prefix, the native name ends or has a separator, `_` or `-`, and more characters.
fn without_repetition(prefix: &str, separator: &str, native: &str) -> Option<String> {
    let (safe_prefix, safe_native) = (safe(prefix), safe(native));
    let folded = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let (head, rest) = safe_native.split_at_checked(safe_prefix.len())?;
    if folded(head) != folded(&safe_prefix) {
        return None;
    }
    if rest.is_empty() {
        return Some(safe_prefix);
    }
    let rest = rest.strip_prefix(separator).or_else(|| rest.strip_prefix(['_', '-']))?;
    (!rest.is_empty()).then(|| format!("{safe_prefix}{separator}{rest}"))
}

/// Replaces unsafe characters. A name that is too long is cut and ends in a hash.
fn fit(name: &str, server: &ServerId, native: &str, max_length: usize) -> String {
    let safe = safe(name);
    if safe.len() <= max_length { safe } else { suffixed(&safe, server, native, max_length, HASH_LETTERS) }
}

/// Resolves conflicts. An entry gets the names that no other entry claims and that are not reserved. An entry without
/// such a name gets a name with a suffix. A name with a suffix is safe and short, also if the claimed name is not.
///
/// A name never changes its meaning when another backend appears. So if one entry claims the name with a suffix of
/// another entry, neither gets it: the claimant loses the name, and the other entry gets a longer suffix.
pub fn resolve_conflicts(claims: &[NameClaim<'_>], is_reserved: impl Fn(&str) -> bool) -> ExposedNames {
    let mut resolver = Resolver::new(claims, is_reserved);
    resolver.settle();
    resolver.into_names()
}

/// The state of [`resolve_conflicts`]. Entries only lose names and never get them back, so the order in which they are
/// examined does not change the result.
struct Resolver<'a, F> {
    claims: &'a [NameClaim<'a>],
    is_reserved: F,
    /// The entries that claim each name.
    claimed: HashMap<&'a str, Vec<usize>>,
    /// The claimed names that are also the name of another entry with a suffix. The values are these entries.
    blocked: HashMap<&'a str, BTreeSet<usize>>,
    /// The entries without a free name, with their current names.
    nameless: HashMap<usize, SuffixedName>,
    /// The entries that tried each name with a suffix.
    tried: HashMap<String, Vec<usize>>,
}

struct SuffixedName {
    name: String,
    /// The number of hash characters.
    letters: usize,
}

impl<'a, F: Fn(&str) -> bool> Resolver<'a, F> {
    fn new(claims: &'a [NameClaim<'a>], is_reserved: F) -> Resolver<'a, F> {
        let mut claimed: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, claim) in claims.iter().enumerate() {
            for name in &claim.names {
                claimed.entry(name).or_default().push(index);
            }
        }
        let (blocked, nameless, tried) = (HashMap::new(), HashMap::new(), HashMap::new());
        Resolver { claims, is_reserved, claimed, blocked, nameless, tried }
    }

    /// Examines each entry once, and again when it may have lost its name. A hostile server may list a long chain of
    /// entries that lose their names one after the other. The cost of one loss must therefore not grow with the list.
    fn settle(&mut self) {
        let mut open: Vec<usize> = (0..self.claims.len()).collect();
        while let Some(index) = open.pop() {
            if !self.has_name(index) {
                self.lengthen(index, &mut open);
            }
        }
    }

    /// Reports whether an entry still has a name that is its own.
    fn has_name(&self, index: usize) -> bool {
        match self.nameless.get(&index) {
            None => self.claims[index].names.iter().any(|name| self.is_free(name)),
            Some(SuffixedName { letters, .. }) if *letters >= MAX_HASH_LETTERS => true,
            Some(SuffixedName { name, .. }) => {
                let is_taken = self.claimed.contains_key(&**name) || (self.is_reserved)(name);
                !is_taken && self.tried[name].len() == 1
            }
        }
    }

    fn is_free(&self, name: &str) -> bool {
        self.claimed.get(name).is_some_and(|claimants| claimants.len() == 1)
            && !(self.is_reserved)(name)
            && !self.blocked.contains_key(name)
    }

    /// Gives an entry its first name with a suffix, or the next longer one. Adds the entries that may lose their names
    /// to `open`.
    fn lengthen(&mut self, index: usize, open: &mut Vec<usize>) {
        let rejected = self.nameless.remove(&index);
        let letters = rejected.as_ref().map_or(HASH_LETTERS, |rejected| rejected.letters + 2);
        let claimed = rejected.and_then(|rejected| self.claimed.get_key_value(&*rejected.name));
        if let Some((name, claimants)) = claimed {
            let entries = self.blocked.entry(name).or_default();
            if entries.is_empty() {
                open.extend(claimants);
            }
            entries.insert(index);
        }
        let claim = &self.claims[index];
        let stem = safe(claim.names.last().map_or("", String::as_str));
        let name = suffixed(&stem, claim.server, claim.native, claim.max_length, letters);
        // If two entries try the same name, both get longer ones.
        let entries = self.tried.entry(name.clone()).or_default();
        entries.push(index);
        open.extend([entries[0], index]);
        self.nameless.insert(index, SuffixedName { name, letters });
    }

    fn into_names(self) -> ExposedNames {
        let mut names: Vec<_> = self.claims.iter().map(|claim| free_names(claim, |name| self.is_free(name))).collect();
        for (index, suffixed) in &self.nameless {
            names[*index].name.clone_from(&suffixed.name);
        }
        let mut contested = BTreeMap::new();
        for (name, claimants) in self.claimed.iter().filter(|(name, claimants)| self.is_contested(name, claimants)) {
            let entries = claimants.iter().chain(self.blocked.get(name).into_iter().flatten());
            contested.insert((*name).to_owned(), entries.map(|index| names[*index].name.clone()).collect());
        }
        ExposedNames { names, contested }
    }

    /// Reports whether a claimed name means no entry. An entry that has another name does not contest a reserved name.
    fn is_contested(&self, name: &str, claimants: &[usize]) -> bool {
        claimants.len() > 1
            || self.blocked.contains_key(name)
            || claimants.iter().any(|index| self.nameless.contains_key(index)) && (self.is_reserved)(name)
    }
}

/// Returns the names that a claim gets. The first is the name in lists, or empty if none is free.
fn free_names(claim: &NameClaim<'_>, is_free: impl Fn(&str) -> bool) -> ExposedName {
    let (mut got, lost) = claim.names.iter().cloned().partition::<Vec<_>, _>(|name| is_free(name));
    let name = if got.is_empty() { String::new() } else { got.remove(0) };
    ExposedName { name, aliases: got, lost }
}

/// Replaces unsafe characters by `_`.
pub fn safe(name: &str) -> String {
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
    use std::cell::Cell;
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn server(id: &str) -> ServerId {
        ServerId::new(id).expect("a valid id")
    }

    fn default() -> Namespacing {
        Namespacing::default()
    }

    /// The names of entries, without the other names that mean the same entries.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct PlainNames {
        names: Vec<String>,
        contested: BTreeMap<String, Vec<String>>,
    }

    fn exposed_names(entries: &[(&str, &str)]) -> PlainNames {
        exposed_under(NamePolicy::Prefix, entries)
    }

    fn exposed_under(policy: NamePolicy, entries: &[(&str, &str)]) -> PlainNames {
        let ExposedNames { names, contested } = resolved(policy, entries);
        PlainNames { names: names.into_iter().map(|name| name.name).collect(), contested }
    }

    fn resolved(policy: NamePolicy, entries: &[(&str, &str)]) -> ExposedNames {
        let servers: Vec<_> = entries.iter().map(|(id, _)| server(id)).collect();
        let claims: Vec<_> = entries
            .iter()
            .zip(&servers)
            .map(|((id, native), server)| NameClaim {
                server,
                native,
                names: claimed_names(policy, &default(), id, server, native),
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
    fn d4_a_name_with_a_suffix_does_not_move_to_a_server_that_claims_it() {
        let contested = [("a", "b_c"), ("a_b", "c")];
        let before = exposed_names(&contested);
        let (suffixed, hash) = (&before.names[0], before.names[0].strip_prefix("a_b_c_").expect("a suffix"));
        let claimant = [("a_b_c", hash)];
        assert_eq!(&exposed_names(&claimant).names[0], suffixed, "alone, the claimant has the name");
        let after = exposed_names(&[&contested[..], &claimant].concat());
        assert!(!after.names.contains(suffixed), "{after:?}");
        assert!(after.names[0].starts_with(&**suffixed), "the suffix is longer: {after:?}");
        assert!(after.names[2].starts_with(&format!("{suffixed}_")), "{after:?}");
        assert_eq!(after.names[1], before.names[1]);
        assert_eq!(after.contested[suffixed], [after.names[2].clone(), after.names[0].clone()]);
    }

    #[test]
    fn d4_a_chain_of_lost_names_takes_work_in_proportion_to_its_length() {
        const LINKS: usize = 20_000;
        const MAX_LOOKUPS_PER_NAME: usize = 10;
        let (own, max_length) = (server("s"), default().max_length);
        let claimed = |native: &str| claimed_names(NamePolicy::Prefix, &default(), "s", &own, native);
        // Each further entry claims the name with a suffix of the entry before.
        let mut natives = vec!["x_y".to_owned(), "x.y".to_owned()];
        for _ in 0..LINKS {
            let last = &natives[natives.len() - 1];
            let suffixed = suffixed(&claimed(last)[0], &own, last, max_length, HASH_LETTERS);
            natives.push(suffixed["s_".len()..].to_owned());
        }
        let claim = |native| NameClaim { server: &own, native, names: claimed(native), max_length };
        let claims: Vec<_> = natives.iter().map(|native| claim(native)).collect();
        let lookups = Cell::new(0);
        let found = resolve_conflicts(&claims, |_| {
            lookups.set(lookups.get() + 1);
            assert!(lookups.get() <= claims.len() * MAX_LOOKUPS_PER_NAME, "too many lookups");
            false
        });
        assert_eq!(found.contested.len(), LINKS + 1);
        let unique: HashSet<_> = found.names.iter().map(|name| &name.name).collect();
        assert_eq!(unique.len(), claims.len());
        assert!(
            found.names.iter().zip(&claims).all(|(name, claim)| name.lost == claim.names),
            "no entry has its claim"
        );
    }

    #[test]
    fn d4_entries_with_the_same_suffix_both_get_longer_ones() {
        let (one, other) = (server("a"), server("b"));
        let short_hash = |server, index: usize| hash(server, &format!("n{index}"), HASH_LETTERS);
        let hashes: HashMap<_, _> = (0..100_000).map(|index| (short_hash(&one, index), index)).collect();
        let equal = (0..).find_map(|index| Some((*hashes.get(&short_hash(&other, index))?, index)));
        let (first, second) = equal.map(|(first, second)| (format!("n{first}"), format!("n{second}"))).expect("a pair");
        let claim = |server, native| NameClaim { server, native, names: vec!["x".to_owned()], max_length: 48 };
        let found = resolve_conflicts(&[claim(&one, &first), claim(&other, &second)], |_| false);
        let names: Vec<_> = found.names.iter().map(|name| &*name.name).collect();
        assert!(
            names[0] != names[1] && names.iter().all(|name| name.len() == "x_".len() + HASH_LETTERS + 2),
            "{names:?}"
        );
    }

    #[test]
    fn d4_without_namespacing_only_contested_names_change() {
        let long = "x".repeat(200);
        let odd = ["a.b", "a/b", &long, "späť 工具", "tab\there", "server1_t"];
        let entries: Vec<_> = odd.iter().map(|native| ("server1", *native)).collect();
        let exposed_names = exposed_under(NamePolicy::None, &entries);
        assert_eq!(exposed_names, PlainNames { names: odd.map(str::to_owned).to_vec(), ..PlainNames::default() });
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
        let name = |native: &str| claimed_names(NamePolicy::Prefix, &default(), "", &server("a"), native).remove(0);
        assert_eq!((name("t"), name("a.b/ü")), ("t".to_owned(), "a_b__".to_owned()));
        assert_eq!(name(&"x".repeat(200)).len(), default().max_length);
    }

    #[test]
    fn use13_a_name_does_not_repeat_the_prefix() {
        let names =
            |prefix: &str, native: &str| claimed_names(NamePolicy::Prefix, &default(), prefix, &server("s"), native);
        for (prefix, native, short) in [
            ("git", "git_log", "git_log"),
            ("git", "git-log", "git_log"),
            ("git", "git.log", "git_log"),
            ("git", "Git_log", "git_log"),
            ("Git", "git_log", "Git_log"),
            ("my-server", "my_server_x", "my-server_x"),
            ("my server", "my_server_x", "my_server_x"),
            ("git", "git_git_log", "git_git_log"),
            ("fetch", "fetch", "fetch"),
            ("fetch", "Fetch", "fetch"),
        ] {
            let full = safe(&format!("{prefix}_{native}"));
            assert_eq!(names(prefix, native), [short.to_owned(), full], "{prefix} {native}");
        }
        for (prefix, native) in
            [("git", "gitlog"), ("git", "git_"), ("git", "log"), ("git", "gi"), ("git", "log_git"), ("é", "gé")]
        {
            assert_eq!(names(prefix, native).len(), 1, "{prefix} {native}");
        }
        let long = format!("git_{}", "x".repeat(100));
        let both = names("git", &long);
        assert!(both.len() == 2 && both.iter().all(|name| name.len() == default().max_length), "{both:?}");
        let separated = Namespacing { separator: "--".to_owned(), ..default() };
        let claimed = claimed_names(NamePolicy::Prefix, &separated, "a", &server("a"), "a--b");
        assert_eq!(claimed, ["a--b", "a--a--b"]);
        let unshortened = Namespacing { shorten: false, ..default() };
        assert_eq!(claimed_names(NamePolicy::Prefix, &unshortened, "a", &server("a"), "a_b"), ["a_a_b"]);
        assert_eq!(claimed_names(NamePolicy::None, &default(), "a", &server("a"), "a_b"), ["a_b"]);
    }

    #[test]
    fn use13_the_full_name_is_another_name_of_the_same_entry() {
        let resolved = resolved(NamePolicy::Prefix, &[("git", "git_log"), ("x", "log")]);
        let expected = ExposedName { name: "git_log".into(), aliases: vec!["git_git_log".into()], lost: vec![] };
        assert_eq!(resolved.names[0], expected);
        assert!(resolved.contested.is_empty() && resolved.names[1].aliases.is_empty());
    }

    #[test]
    fn use13_no_entry_gets_a_short_name_that_another_entry_claims() {
        // Another tool of the same server has the short name as its full name.
        let same = resolved(NamePolicy::Prefix, &[("git", "git_log"), ("git", "log")]);
        let suffixed = same.names[1].name.clone();
        assert_eq!(
            (same.names[0].name.as_str(), &same.names[0].lost[..]),
            ("git_git_log", &["git_log".to_owned()][..])
        );
        assert!(suffixed.starts_with("git_log_"), "{suffixed}");
        assert_eq!(same.contested["git_log"], ["git_git_log".to_owned(), suffixed]);
        // Two tools have the same short name.
        let equal = resolved(NamePolicy::Prefix, &[("git", "git_log"), ("git", "git-log")]);
        assert_eq!(equal.names.iter().map(|name| &*name.name).collect::<Vec<_>>(), ["git_git_log", "git_git-log"]);
        // Another server claims the full name.
        let full = resolved(NamePolicy::Prefix, &[("git", "git_log"), ("git_git", "log")]);
        assert_eq!((full.names[0].name.as_str(), full.names[0].aliases.len()), ("git_log", 0));
        assert!(full.names[1].name.starts_with("git_git_log_"), "{full:?}");
        assert_eq!(full.contested.keys().collect::<Vec<_>>(), ["git_git_log"]);
        // A reserved short name is no conflict, because the full name serves.
        let own = server("s");
        let names = ["reserved", "s_reserved"].map(str::to_owned).to_vec();
        let reserved = resolve_conflicts(&[NameClaim { server: &own, native: "n", names, max_length: 48 }], |name| {
            name == "reserved"
        });
        assert!(reserved.names[0].name == "s_reserved" && reserved.contested.is_empty(), "{reserved:?}");
    }

    proptest! {
        /// A name that means an entry means the same entry or nothing after other entries appear.
        #[test]
        fn use13_a_name_never_moves_to_another_entry(
            entries in proptest::collection::hash_set(("[a-b_]{1,3}", "[ab_.-]{1,6}"), 1..12), kept in 0_usize..12
        ) {
            let all: Vec<_> = entries.iter().map(|(id, native)| (id.as_str(), native.as_str())).collect();
            let some = &all[..kept.min(all.len())];
            let meanings = |entries: &[(&str, &str)]| {
                let mut meanings = HashMap::new();
                for (names, entry) in resolved(NamePolicy::Prefix, entries).names.into_iter().zip(entries) {
                    for name in names.aliases.into_iter().chain([names.name]) {
                        assert_eq!(meanings.insert(name, (entry.0.to_owned(), entry.1.to_owned())), None, "one meaning");
                    }
                }
                meanings
            };
            let (before, after) = (meanings(some), meanings(&all));
            for (name, entry) in &before {
                prop_assert!(after.get(name).is_none_or(|found| found == entry), "{name}: {entry:?}");
            }
        }

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
