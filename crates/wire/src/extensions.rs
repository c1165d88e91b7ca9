//! The experimental capabilities that the gateway and its clients declare to each other.

/// The name of our extension of subscriptions, among the capabilities of both sides.
pub const SUBSCRIPTIONS: &str = "dev.goblin/subscriptions";

/// The capability of the gateway that carries the name prefix of its own tools.
pub const META_TOOLS: &str = "dev.goblin/metaTools";
