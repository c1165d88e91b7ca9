//! The table of every route for operators. The router matches requests against it. Tests compare the documentation and
//! the OpenAPI document with it.

pub use goblin_catalog::listing::List;
use http::Method as Verb;
use percent_encoding::percent_decode_str;

/// The length to which a path is cut before it is compared with the routes.
const MAX_COMPARED_LENGTH: usize = 128;
/// The placeholder for a server's id in a path.
const ID: &str = "{id}";

#[derive(Clone, Copy)]
pub struct Route {
    /// The path. It may contain `{id}` in place of one segment.
    pub path: &'static str,
    pub access: Access,
    pub action: RouteAction,
    /// The query parameters that the route accepts, each at most once.
    pub parameters: &'static [&'static str],
}

impl Route {
    pub fn verb(&self) -> Verb {
        match self.action {
            RouteAction::Read(_) => Verb::GET,
            RouteAction::Change(_) => Verb::POST,
        }
    }

    /// Reports whether the path contains the id of a server.
    pub fn has_id(&self) -> bool {
        self.path.contains(ID)
    }
}

/// The permission that a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No token is needed, and any `Host` is accepted.
    Probe,
    /// Every client of the gateway has access.
    Client,
    /// The admin token is required.
    Operator,
}

/// The action of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteAction {
    Read(ReadTarget),
    Change(ChangeTarget),
}

/// An operation on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerAction {
    Restart,
    Enable,
    Disable,
}

impl ServerAction {
    pub const ALL: [ServerAction; 3] = [ServerAction::Restart, ServerAction::Enable, ServerAction::Disable];

    pub fn as_str(self) -> &'static str {
        match self {
            ServerAction::Restart => "restart",
            ServerAction::Enable => "enable",
            ServerAction::Disable => "disable",
        }
    }
}

/// The target of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeTarget {
    Configuration,
    Server(ServerAction),
    Login,
    LoginCallback,
    Logout,
}

/// The subject of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadTarget {
    Alive,
    Ready,
    Metrics,
    Status,
    Servers,
    Server,
    Login,
    Entries(List),
    Subscriptions,
    Sessions,
    Events,
    Logs,
    Calls,
    OpenApi,
}

const fn read(path: &'static str, target: ReadTarget) -> Route {
    Route { path, access: Access::Operator, action: RouteAction::Read(target), parameters: &[] }
}

const fn entries(path: &'static str, list: List) -> Route {
    Route { parameters: &["server"], ..read(path, ReadTarget::Entries(list)) }
}

const fn change(path: &'static str, change: ChangeTarget) -> Route {
    Route { path, access: Access::Operator, action: RouteAction::Change(change), parameters: &[] }
}

pub const ROUTES: &[Route] = &[
    Route { access: Access::Probe, ..read("/healthz", ReadTarget::Alive) },
    Route { access: Access::Probe, ..read("/readyz", ReadTarget::Ready) },
    Route { access: Access::Client, ..read("/metrics", ReadTarget::Metrics) },
    read("/api/status", ReadTarget::Status),
    read("/api/servers", ReadTarget::Servers),
    read("/api/servers/{id}", ReadTarget::Server),
    read("/api/servers/{id}/login", ReadTarget::Login),
    entries("/api/tools", List::Tools),
    entries("/api/prompts", List::Prompts),
    entries("/api/resources", List::Resources),
    entries("/api/templates", List::Templates),
    Route { parameters: &["uri"], ..read("/api/subscriptions", ReadTarget::Subscriptions) },
    read("/api/sessions", ReadTarget::Sessions),
    read("/api/events", ReadTarget::Events),
    Route { parameters: &["server", "level", "after", "limit", "wait"], ..read("/api/logs", ReadTarget::Logs) },
    Route {
        parameters: &["server", "client", "tool", "outcome", "after", "limit", "wait"],
        ..read("/api/calls", ReadTarget::Calls)
    },
    read("/api/openapi.json", ReadTarget::OpenApi),
    change("/api/reload", ChangeTarget::Configuration),
    change("/api/servers/{id}/restart", ChangeTarget::Server(ServerAction::Restart)),
    change("/api/servers/{id}/enable", ChangeTarget::Server(ServerAction::Enable)),
    change("/api/servers/{id}/disable", ChangeTarget::Server(ServerAction::Disable)),
    change("/api/servers/{id}/login", ChangeTarget::Login),
    change("/api/servers/{id}/login/callback", ChangeTarget::LoginCallback),
    change("/api/servers/{id}/logout", ChangeTarget::Logout),
];

/// The result of matching a path and a verb.
pub enum RouteMatch {
    Route(&'static Route, Option<String>),
    /// The path exists, but only for these verbs.
    OtherVerb(String),
    /// The path does not exist. This route is the most similar one.
    Nothing(&'static Route),
}

/// Finds the route of a request. HEAD matches every GET route.
pub fn find(verb: &Verb, path: &str) -> RouteMatch {
    let at_path: Vec<_> = ROUTES.iter().filter_map(|route| Some((route, capture(route.path, path)?))).collect();
    let wanted = if *verb == Verb::HEAD { &Verb::GET } else { verb };
    match at_path.iter().find(|(route, _)| route.verb() == *wanted) {
        Some((route, id)) => RouteMatch::Route(route, id.clone()),
        None if at_path.is_empty() => RouteMatch::Nothing(nearest(path)),
        None => RouteMatch::OtherVerb(allowed(at_path.iter().map(|(route, _)| route.verb()))),
    }
}

fn allowed(verbs: impl Iterator<Item = Verb>) -> String {
    let names = verbs.map(|verb| if verb == Verb::GET { "GET, HEAD".to_owned() } else { verb.to_string() });
    names.collect::<Vec<_>>().join(", ")
}

/// Matches a path against a route's path and returns the id in it. Splits before decoding, because an id may contain
/// `/`.
fn capture(form: &str, path: &str) -> Option<Option<String>> {
    let mut id = None;
    let (mut wanted, mut given) = (form.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(id),
            (Some(ID), Some(segment)) if !segment.is_empty() => {
                id = Some(percent_decode_str(segment).decode_utf8().ok()?.into_owned());
            }
            (Some(wanted), Some(given)) if wanted == given => {}
            _ => return None,
        }
    }
}

fn nearest(path: &str) -> &'static Route {
    let path: String = path.chars().take(MAX_COMPARED_LENGTH).collect();
    let given: Vec<_> = path.split('/').collect();
    let distance = |route: &&Route| {
        let segments = route.path.split('/').enumerate();
        let filled = segments.map(|(at, segment)| match (segment, given.get(at)) {
            (ID, Some(given)) if !given.is_empty() => given,
            _ => segment,
        });
        strsim::damerau_levenshtein(&path, &filled.collect::<Vec<_>>().join("/"))
    };
    // Suggest only routes of the API, because all unmatched paths begin with `/api`.
    ROUTES.iter().filter(|route| route.path.starts_with("/api/")).min_by_key(distance).expect("there are some")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard7_exactly_the_routes_under_api_require_an_operator() {
        for route in ROUTES {
            assert_eq!(route.access == Access::Operator, route.path.starts_with("/api/"), "{}", route.path);
        }
    }

    #[test]
    fn a_path_and_verb_match_a_route_or_name_the_allowed_verbs_or_nearest_route() {
        let describe = |verb: &str, path: &str| match find(&verb.parse().expect("a verb"), path) {
            RouteMatch::Route(route, Some(id)) => format!("{} {} of {id}", route.verb(), route.path),
            RouteMatch::Route(route, None) => format!("{} {}", route.verb(), route.path),
            RouteMatch::OtherVerb(allowed) => format!("only {allowed}"),
            RouteMatch::Nothing(route) => format!("near {}", route.path),
        };
        for (verb, path, expected) in [
            ("GET", "/api/status", "GET /api/status"),
            ("HEAD", "/api/status", "GET /api/status"),
            ("PUT", "/api/status", "only GET, HEAD"),
            ("GET", "/api/reload", "only POST"),
            ("POST", "/api/servers/a/restart", "POST /api/servers/{id}/restart of a"),
            ("POST", "/api/servers/a/restar", "near /api/servers/{id}/restart"),
            ("GET", "/api/servers/a%2Fb%20c", "GET /api/servers/{id} of a/b c"),
            ("GET", "/api/servers/", "near /api/servers"),
            ("GET", "/api/servers/%ff", "near /api/servers/{id}"),
            ("GET", "/api/servers/a/b", "near /api/servers/{id}"),
            ("GET", "/api/Status", "near /api/status"),
            ("GET", "/api/tool", "near /api/tools"),
            ("GET", "/api", "near /api/logs"),
        ] {
            assert_eq!(describe(verb, path), expected, "{verb} {path}");
        }
    }
}
