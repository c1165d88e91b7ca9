//! The JSON schema of the configuration, `goblin.schema.json`, and the keys that it describes.
//!
//! The schema is the only description of the file: the position, type, default and meaning of every key. The reader
//! takes the names of keys from it, and tests compare both. Editors use it for completion and checks.
//!
//! The schema accepts every file that the reader accepts, and rejects mistakes that are visible in the text alone. It
//! cannot detect unset variables, missing files or ids with the same folded form. `null` is allowed for every optional
//! key, because the reader treats it as absent.
//!
//! There are three kinds of keys. The gateway reads some keys. Aliases are other names for them. Keys of other clients
//! that have no meaning for a gateway are described as `ignored`.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::problem::Fault;
use crate::vocabulary::nearest;

/// The description of a key that has no effect.
#[cfg(any(test, feature = "import"))]
pub(crate) const IGNORED: &str = "ignored";

static SCHEMA: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(text()).expect("a test reads the schema"));

/// Returns the schema as it is committed and printed.
pub fn text() -> &'static str {
    include_str!("goblin.schema.json")
}

pub fn schema() -> &'static Value {
    &SCHEMA
}

/// Returns every key of the schema, including ignored ones.
pub fn keys() -> BTreeSet<&'static str> {
    ObjectKeys::ALL.iter().flat_map(|object| object.properties().keys()).map(String::as_str).collect()
}

goblin_wire::labels! {
    /// The keys of one object of the file, given by their place in the schema.
    ObjectKeys {
        Root = "/properties",
        Gateway = "/properties/gateway/anyOf/0/properties",
        Policies = "/properties/policies/anyOf/0/properties",
        Subscriptions = "/properties/subscriptions/anyOf/0/properties",
        Log = "/properties/log/anyOf/0/properties",
        Admin = "/properties/admin/anyOf/0/properties",
        Telemetry = "/properties/telemetry/anyOf/0/properties",
        MetaTools = "/properties/metaTools/anyOf/0/anyOf/1/properties",
        Namespacing = "/$defs/namespacing/properties",
        Exposure = "/$defs/exposure/properties",
        ClientExposure = "/$defs/clientExposure/properties",
        Profile = "/$defs/profile/properties",
        ProfileTools = "/$defs/profile/properties/tools/anyOf/0/anyOf/1/properties",
        ProfileFilter = "/$defs/profile/properties/prompts/anyOf/0/anyOf/1/properties",
        Server = "/$defs/server/properties",
        Command = "/$defs/server/properties/command/anyOf/0/anyOf/1/properties",
        NamedRoot = "/$defs/server/properties/roots/anyOf/0/items/anyOf/1/allOf/0/properties",
        OAuth = "/$defs/server/properties/oauth/anyOf/0/anyOf/1/properties",
        Tls = "/$defs/server/properties/tls/anyOf/0/properties",
        Tools = "/$defs/server/properties/tools/anyOf/0/properties",
        Prompts = "/$defs/server/properties/prompts/anyOf/0/properties",
        Resources = "/$defs/server/properties/resources/anyOf/0/properties",
    }
}

impl ObjectKeys {
    pub(crate) fn properties(self) -> &'static Map<String, Value> {
        let place = schema().pointer(self.as_str()).and_then(Value::as_object);
        place.expect("a test finds every object in the schema")
    }

    pub(crate) fn knows(self, key: &str) -> bool {
        self.properties().contains_key(key)
    }

    #[cfg(any(test, feature = "import"))]
    pub(crate) fn ignores(self, key: &str) -> bool {
        self.properties().get(key).is_some_and(|property| property["description"] == IGNORED)
    }

    /// Returns an error for an unknown key, with the most similar known one.
    pub(crate) fn check(self, key: &str) -> Result<(), Fault> {
        if self.knows(key) {
            return Ok(());
        }
        let fault = Fault::new("unknown key");
        Err(match nearest(key, self.properties().keys().map(String::as_str)) {
            Some(known) => fault.cure(format!("did you mean \"{known}\"?")),
            None => fault,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
