//! The experimental capabilities that the gateway and its clients declare to each other.

/// The name of our extension of subscriptions, among the capabilities of both sides.
pub const SUBSCRIPTIONS: &str = "dev.goblin/subscriptions";

/// Tells clients, among the capabilities of the gateway, what stands before the names of the tools that it serves itself.
pub const META_TOOLS: &str = "dev.goblin/metaTools";
