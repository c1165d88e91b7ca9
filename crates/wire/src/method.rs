//! The methods of the protocol, as a closed list plus `Other`. A closed list lets the compiler check that a `match`
//! handles every method. `Other` lets the gateway forward methods that it does not know.

use std::fmt;

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// The method of a request or notification. `Other` keeps the name of a method that no version defines.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Method {
            $($(#[$doc])* $variant,)+
            Other(Box<str>),
        }

        impl Method {
            pub fn parse(name: &str) -> Method {
                match name {
                    $($name => Method::$variant,)+
                    other => Method::Other(other.into()),
                }
            }

            pub fn as_str(&self) -> &str {
                match self {
                    $(Method::$variant => $name,)+
                    Method::Other(name) => name,
                }
            }
        }
    };
}

methods! {
    // Requests from clients.
    Initialize = "initialize",
    Ping = "ping",
    ToolsList = "tools/list",
    ToolsCall = "tools/call",
    PromptsList = "prompts/list",
    PromptsGet = "prompts/get",
    ResourcesList = "resources/list",
    TemplatesList = "resources/templates/list",
    ResourcesRead = "resources/read",
    Subscribe = "resources/subscribe",
    Unsubscribe = "resources/unsubscribe",
    Complete = "completion/complete",
    SetLevel = "logging/setLevel",
    /// 2026-07-28 only.
    Discover = "server/discover",
    /// 2026-07-28 only.
    Listen = "subscriptions/listen",
    TasksGet = "tasks/get",
    TasksCancel = "tasks/cancel",
    /// 2025-11-25 only.
    TasksResult = "tasks/result",
    /// 2025-11-25 only.
    TasksList = "tasks/list",
    /// 2026-07-28 only.
    TasksUpdate = "tasks/update",
    // Requests from servers.
    Sample = "sampling/createMessage",
    Elicit = "elicitation/create",
    RootsList = "roots/list",
    // Notifications.
    Initialized = "notifications/initialized",
    Cancelled = "notifications/cancelled",
    Progress = "notifications/progress",
    LogMessage = "notifications/message",
    ToolsChanged = "notifications/tools/list_changed",
    PromptsChanged = "notifications/prompts/list_changed",
    ResourcesChanged = "notifications/resources/list_changed",
    ResourceUpdated = "notifications/resources/updated",
    /// Part of the gateway's own extension of subscriptions.
    ResourceDeleted = "notifications/resources/deleted",
    RootsChanged = "notifications/roots/list_changed",
    /// 2026-07-28 only.
    Acknowledged = "notifications/subscriptions/acknowledged",
    ElicitationComplete = "notifications/elicitation/complete",
    /// 2025-11-25 only.
    TaskStatus = "notifications/tasks/status",
    /// 2026-07-28 only.
    TaskChanged = "notifications/tasks",
}

impl fmt::Display for Method {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
