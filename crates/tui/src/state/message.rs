//! The messages that change the state, and the effects that a change has.

use std::path::PathBuf;
use std::time::Duration;

use goblin_admin::api::{CallList, EventInfo, LogList, SessionList, Status, SubscriptionList};
use goblin_admin::login::LoginStatus;
use goblin_admin::routes::{List, ServerAction};
use goblin_telemetry::clean;

use crate::state::data::CatalogItem;

goblin_wire::labels! {
    /// A panel, and its title.
    #[derive(Default)]
    Panel {
        #[default]
        Overview = "Overview",
        Servers = "Servers",
        Tools = "Tools",
        Prompts = "Prompts",
        Resources = "Resources",
        Subscriptions = "Subscriptions",
        Sessions = "Sessions",
        Calls = "Calls",
        Events = "Events",
    }
}

impl Panel {
    pub fn number(self) -> usize {
        Panel::ALL.iter().position(|panel| *panel == self).unwrap_or_default()
    }

    /// Returns the panel that is `by` places further, with the first after the last.
    pub fn beside(self, by: usize) -> Panel {
        Panel::ALL[(self.number() + by) % Panel::ALL.len()]
    }

    /// Returns the feed that the panel shows. `None` if the panel shows data that is always read.
    pub fn feed(self) -> Option<Feed> {
        match self {
            Panel::Subscriptions => Some(Feed::Subscriptions),
            Panel::Sessions => Some(Feed::Sessions),
            Panel::Calls => Some(Feed::Calls),
            _ => None,
        }
    }
}

/// Data that is read only while the user looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feed {
    Subscriptions,
    Sessions,
    Calls,
    Logs,
}

/// The part of the gateway that the user looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub panel: Panel,
    /// The server with visible logs.
    pub logs_of: Option<String>,
    /// The server with a visible login.
    pub login_of: Option<String>,
}

/// An action of the user on a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Quit,
    Help,
    Jump,
    NextPanel,
    PreviousPanel,
    Show(Panel),
    Down,
    Up,
    HalfDown,
    HalfUp,
    First,
    Last,
    Left,
    Right,
    Open,
    Close,
    Search,
    Filter,
    Sort,
    Reverse,
    /// Shows failed calls only, or all calls.
    FailedOnly,
    /// Shows events of the next level.
    Level,
    Logs,
    Copy,
    Call,
    Read,
    Watch,
    Restart,
    Toggle,
    LogIn,
    LogOut,
    Reload,
    Edit,
}

/// The area under the mouse pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerArea {
    List,
    Details,
}

/// An event of the user or the gateway.
#[derive(Clone, Debug)]
pub enum UiEvent {
    Act(Action),
    Write(char),
    Erase,
    /// In a dialog or a search: confirm.
    Submit,
    /// In a dialog or a search: close.
    Cancel,
    /// In a dialog or a search: move by this many fields, rows or lines.
    Go(isize),
    /// In a form: take the next or previous choice or suggestion.
    Choose(isize),
    Select {
        section: usize,
        row: usize,
    },
    Wheel {
        place: PointerArea,
        is_down: bool,
    },
    Measured(Measures),
    /// The editor ended. The value reports whether the configuration file changed, or why the editor failed.
    Edited(Result<bool, String>),

    Link(LinkStatus),
    Status {
        at: Duration,
        status: Box<Status>,
    },
    Items(List, Vec<CatalogItem>),
    Subscriptions(SubscriptionList),
    Sessions(SessionList),
    Calls(CallList),
    Logs {
        server: String,
        list: LogList,
    },
    /// The login at a server. `None` if the server has none.
    Login {
        server: String,
        status: Option<LoginStatus>,
    },
    /// The gateway has begun a login, or could not.
    LoginBegun {
        server: String,
        begun: Result<LoginStatus, String>,
    },
    /// The gateway has handled the address that finishes a login.
    LoginFinished {
        server: String,
        finished: Result<LoginStatus, String>,
    },
    /// A feed cannot be read.
    Unreadable {
        feed: Feed,
        reason: String,
    },
    Event(EventInfo),
    /// The result of a call or a read.
    Answered {
        ticket: u64,
        text: String,
        is_error: bool,
    },
    /// The values that a server suggests for a field of a form.
    Suggested {
        ticket: u64,
        values: Vec<String>,
    },
    Notice(StatusMessage),
    /// A message that may be too long for one line.
    Report {
        title: String,
        text: String,
    },
    Watching {
        uri: String,
        is_on: bool,
    },
    Updated {
        uri: String,
        time: String,
        is_deleted: bool,
    },
}

/// Work for the loop or the remote side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Quit,
    /// Copies a text to the clipboard of the terminal.
    Copy {
        /// The name of the text, for the user.
        label: String,
        text: String,
    },
    /// Opens an editor with the file.
    Edit {
        path: PathBuf,
    },
    Call {
        ticket: u64,
        tool: String,
        arguments: String,
    },
    GetPrompt {
        ticket: u64,
        prompt: String,
        arguments: String,
    },
    /// Asks for suggestions, with the parameters of `completion/complete`.
    Complete {
        ticket: u64,
        params: String,
    },
    Read {
        ticket: u64,
        uri: String,
    },
    /// Cancels the request of a reader that was closed.
    Forget {
        ticket: u64,
    },
    Watch {
        uri: String,
    },
    Unwatch {
        uri: String,
    },
    /// Opens a page in the browser of this desktop, if there is one.
    OpenBrowser {
        url: String,
    },
    Command(GatewayCommand),
}

/// A change through the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayCommand {
    /// An action on the server with this id.
    Server(ServerAction, String),
    LogIn(String),
    /// Finishes a login with the address at which the browser ended.
    FinishLogin {
        server: String,
        callback: String,
    },
    LogOut(String),
    Reload,
}

/// The state of the connection to the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkStatus {
    #[default]
    Connecting,
    Live,
    Lost {
        reason: String,
        retry_in: Duration,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusMessage {
    pub text: String,
    pub is_error: bool,
}

impl StatusMessage {
    pub fn good(text: impl Into<String>) -> StatusMessage {
        StatusMessage { text: clean(&text.into()), is_error: false }
    }

    pub fn bad(text: impl Into<String>) -> StatusMessage {
        StatusMessage { text: clean(&text.into()), is_error: true }
    }
}

/// The sizes that the last frame had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// The number of rows of the list.
    pub rows: usize,
    /// The maximum scroll position of the side panel.
    pub details: usize,
    /// The maximum scroll position of the dialog.
    pub dialog: usize,
    /// The maximum scroll position of the help.
    pub help: usize,
}
