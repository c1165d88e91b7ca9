//! The experimental capabilities that the gateway and its clients declare to each other.

/// The prefix of the gateway's own capabilities.
pub const OWN_PREFIX: &str = "dev.goblin/";

/// The capability with which clients and the gateway announce the extension of subscriptions.
pub const SUBSCRIPTIONS: &str = "dev.goblin/subscriptions";

/// The capability of the gateway that carries the name prefix of its own tools.
pub const META_TOOLS: &str = "dev.goblin/metaTools";
