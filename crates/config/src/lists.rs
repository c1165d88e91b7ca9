//! The use of a server's lists: when they are fetched again, and whether a resource must be listed.

use std::time::Duration;

use crate::field::Field;
use crate::problem::Fault;
use crate::{Transport, quantity};

/// The shortest refresh interval. The gateway fetches the lists of a server at most once per second.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) const UNLISTED: [(&str, Unlisted); 2] = [("reject", Unlisted::Reject), ("forward", Unlisted::Forward)];

/// When the lists of a server are fetched again, besides the changes that the server announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// Lists whose changes the server does not announce are refreshed.
    Auto,
    Never,
    /// All lists are refreshed, at least at this interval.
    Every(Duration),
}

/// The treatment of reads and subscribes of URIs that a server does not offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unlisted {
    /// They get an error, and the gateway does not contact the server.
    #[default]
    Reject,
    /// The gateway sends those that name the server to the server.
    Forward,
}

/// Reads `refresh`.
pub(crate) fn refresh(field: &Field<'_>) -> Option<Refresh> {
    let wrong = || Fault::new("must be \"auto\", \"never\" or an interval").cure("use an interval like \"30s\"");
    let interval = match field.text()? {
        "auto" => return Some(Refresh::Auto),
        "never" => return Some(Refresh::Never),
        text => quantity::duration(text).map_err(|_| wrong()),
    };
    let too_short = || Fault::new("is too short").cure("use at least \"1s\"");
    let check =
        |interval| if interval < MIN_REFRESH_INTERVAL { Err(too_short()) } else { Ok(Refresh::Every(interval)) };
    field.accept(interval.and_then(check))
}

/// Reads `unlisted`. A directory has no resources beyond those that it offers.
pub(crate) fn unlisted(field: &Field<'_>, transport: Option<&Transport>) -> Option<Unlisted> {
    let unlisted = field.choice(&UNLISTED)?;
    let is_wrong = unlisted == Unlisted::Forward && matches!(transport, Some(Transport::Files(_)));
    let fault = || Fault::new("a server of type files offers every file that it serves").cure("remove \"unlisted\"");
    field.accept(if is_wrong { Err(fault()) } else { Ok(unlisted) })
}
