//! The description of one object, one key and one value, and the checks that follow from it.

use crate::problem::{Fault, quoted};

/// The keys of one object.
pub(crate) struct ObjectKeys {
    pub(crate) read: &'static [KeySpec],
    /// Pairs of an alias and the key it means.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    pub(crate) passed_over: &'static [&'static str],
    pub(crate) later: &'static [&'static str],
}

/// One key that is read.
pub(crate) struct KeySpec {
    pub(crate) name: &'static str,
    pub(crate) shape: ValueType,
    /// The default as JSON. Empty if the default cannot be written as a value.
    pub(crate) default: &'static str,
    pub(crate) change: ApplyMode,
    pub(crate) doc: &'static str,
}

/// The time at which a change of the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApplyMode {
    /// On reload.
    Live,
    /// At the next start.
    Restart,
}

/// The type of a key's value.
pub(crate) enum ValueType {
    Flag,
    /// Text that matches a regular expression. Rust and ECMAScript must interpret the expression alike.
    Text(&'static str),
    /// Text with expanded `${VAR}` references.
    Expanded,
    /// Expanded text that becomes a path.
    Path,
    /// Expanded text that becomes a URL.
    Url,
    /// A whole number with its minimum and maximum.
    Whole(u64, u64),
    Size,
    Duration,
    PositiveDuration,
    /// A duration. A plain number counts milliseconds, as in other clients.
    DurationOrMilliseconds,
    Choice(&'static [&'static str]),
    List(&'static ValueType),
    /// An object with keys of the operator's choice.
    Map(&'static ValueType),
    Object(&'static ObjectKeys),
    Namespacing,
    /// A path or a file URI, which becomes a URI.
    Place,
    Roots,
    /// The servers by id.
    Servers,
    Exposure,
    /// The profiles by name.
    Profiles,
    Either(&'static ValueType, &'static ValueType),
}

pub(super) const fn live(name: &'static str, shape: ValueType, default: &'static str, doc: &'static str) -> KeySpec {
    KeySpec { name, shape, default, change: ApplyMode::Live, doc }
}

pub(super) const fn restart(name: &'static str, shape: ValueType, default: &'static str, doc: &'static str) -> KeySpec {
    KeySpec { name, shape, default, change: ApplyMode::Restart, doc }
}

/// Returns the names in a table of choices.
pub(super) const fn words<T, const N: usize>(table: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut index = 0;
    while index < N {
        words[index] = table[index].0;
        index += 1;
    }
    words
}

impl ObjectKeys {
    pub(crate) fn check(&self, key: &str) -> Result<(), Fault> {
        if self.known().any(|known| known == key) {
            return Ok(());
        }
        if self.later.contains(&key) {
            return Err(later().cure("remove it"));
        }
        let fault = Fault::new("unknown key");
        Err(match nearest(key, self.known().chain(self.later.iter().copied())) {
            Some(known) => fault.cure(format!("did you mean \"{known}\"?")),
            None => fault,
        })
    }

    fn known(&self) -> impl Iterator<Item = &'static str> {
        let read = self.read.iter().map(|key| key.name);
        let aliases = self.aliases.iter().map(|(alias, _)| *alias);
        read.chain(aliases).chain(self.passed_over.iter().copied())
    }
}

/// Returns the fault for a key that is reserved but not available yet.
fn later() -> Fault {
    Fault::new("known but not available in this version yet")
}

/// Returns the meaning of a value from a closed set. `unserved` lists values that are not available yet.
pub(crate) fn choose<T: Copy>(text: &str, values: &[(&str, T)], unserved: &[&str]) -> Result<T, Fault> {
    if let Some((_, meaning)) = values.iter().find(|(name, _)| *name == text) {
        return Ok(*meaning);
    }
    let names: Vec<String> = values.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let names = names.join(" or ");
    if unserved.contains(&text) {
        let fault = Fault::new(format!("\"{text}\" is known but not available in this version yet"));
        return Err(fault.cure(format!("use {names}")));
    }
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
