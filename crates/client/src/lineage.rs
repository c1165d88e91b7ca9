//! The gateways that started this process, directly or through their servers.
//!
//! A gateway sets [`VARIABLE`] for each server that it starts: the ids of its own ancestors and its own id, each with a
//! hash of the configuration's path. Servers pass the variable on to their children. A gateway with the configuration
//! of an ancestor would start the same servers, and so itself, without end. It refuses to start.
//!
//! A server may clear its environment. Therefore a gateway also counts the gateways among the processes above it, on
//! Linux, and refuses to start below [`MAX_DEPTH`] of them.
//!
//! A bridge to an ancestor is another case. A server may be an agent that uses the gateway as a client, and its
//! `goblin stdio` has the same variable. Only a bridge that the gateway itself started as a server is a loop. The
//! guard of a server names its own process id in [`GUARD_VARIABLE`], which is the parent of such a bridge. Any other
//! bridge passes the ids on to the gateway, which knows whether the client is an agent or itself. A loop through other
//! programs shows in the lists of the server: see `goblin_wire::via`.

mod processes;

use std::time::SystemTime;

use goblin_wire::via::{self, GatewayId};
use sha2::{Digest, Sha256};

use crate::environment::environment;
use crate::runtime::identity::{Identity, hex};

/// The variable with the gateways that started a process, the oldest one first.
pub const VARIABLE: &str = "GOBLIN_VIA";
/// The variable with the process id of the guard, the parent of a server's process.
pub const GUARD_VARIABLE: &str = "GOBLIN_GUARD";
/// The limit of gateways among the processes above a gateway.
const MAX_DEPTH: usize = 8;
/// The limit of ids in the variable.
const MAX_ANCESTORS: usize = 16;
/// The length of the hash of a path.
const PLACE_LENGTH: usize = 16;

/// A gateway that started this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ancestor {
    id: GatewayId,
    /// The hash of the path of its configuration.
    place: String,
}

/// The id of this run of a gateway, and its ancestors.
#[derive(Clone, Debug)]
pub struct Lineage {
    pub id: GatewayId,
    place: String,
    ancestors: Vec<Ancestor>,
}

impl Lineage {
    /// Returns the lineage of a gateway in this process. `identity` names its configuration.
    pub fn of_process(identity: Option<&Identity>) -> Lineage {
        let mut random = [0; 10];
        // Without a random source, the time alone makes the id.
        let _ = getrandom::fill(&mut random);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let id = GatewayId::of_start(u64::try_from(now).unwrap_or_default(), random);
        Lineage { id, place: identity.map(hash_place).unwrap_or_default(), ancestors: ancestors(environment(VARIABLE)) }
    }

    /// Returns the error text if an ancestor has the same configuration, or if there are too many ancestors.
    pub fn check(&self) -> Result<(), String> {
        check_depth()?;
        let same = self.ancestors.iter().find(|ancestor| !self.place.is_empty() && ancestor.place == self.place);
        if let Some(Ancestor { id, .. }) = same {
            return Err(format!(
                "{}: a server of it starts goblin with its own configuration, which would go on without end\n\
                 remove that server from mcpServers; to start anyway, unset {VARIABLE}",
                via::refusal(id)
            ));
        }
        if self.ancestors.len() >= MAX_ANCESTORS {
            return Err(format!(
                "at most {MAX_ANCESTORS} gateways can start each other\n\
                 shorten the chain of gateways; to start anyway, unset {VARIABLE}"
            ));
        }
        Ok(())
    }

    /// Returns the value of [`VARIABLE`] for the servers of this gateway.
    pub fn variable(&self) -> String {
        let own = Ancestor { id: self.id.clone(), place: self.place.clone() };
        let write = |ancestor: &Ancestor| match ancestor.place.as_str() {
            "" => ancestor.id.to_string(),
            place => format!("{}:{place}", ancestor.id),
        };
        self.ancestors.iter().chain([&own]).map(write).collect::<Vec<_>>().join(",")
    }
}

/// Returns the error text if too many of the processes above this one are gateways. This does not depend on the
/// environment. On other systems than Linux the variable alone limits the number.
pub fn check_depth() -> Result<(), String> {
    let depth = processes::gateways_above();
    if depth < MAX_DEPTH {
        return Ok(());
    }
    Err(format!(
        "{depth} goblin processes have started each other, which may go on without end\n\
         remove the server that starts goblin with its own configuration from mcpServers"
    ))
}

/// Returns the ids of the gateways that started this process.
pub fn ancestor_ids() -> Vec<GatewayId> {
    ancestors(environment(VARIABLE)).into_iter().map(|ancestor| ancestor.id).collect()
}

/// Returns the error text if this process is a server of gateway `target` and would be a bridge to it.
pub fn check_bridge(target: Option<&str>) -> Result<(), String> {
    let guard = environment(GUARD_VARIABLE).and_then(|id| id.parse().ok());
    let starter = ancestors(environment(VARIABLE)).pop();
    let parent = std::os::unix::process::parent_id();
    match starter.filter(|starter| guard == Some(parent) && target == Some(starter.id.as_str())) {
        Some(Ancestor { id, .. }) => Err(format!(
            "{}: this command would connect the gateway to itself\nremove that server from mcpServers",
            via::refusal(&id)
        )),
        None => Ok(()),
    }
}

/// Reads the variable. Ignores invalid members, and all but the last [`MAX_ANCESTORS`].
fn ancestors(variable: Option<String>) -> Vec<Ancestor> {
    let read = |member: &str| {
        let (id, place) = member.split_once(':').unwrap_or((member, ""));
        let is_hash = place.len() == PLACE_LENGTH && place.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = GatewayId::parse(id).filter(|_| place.is_empty() || is_hash)?;
        Some(Ancestor { id, place: place.to_owned() })
    };
    let text = variable.unwrap_or_default();
    let mut newest: Vec<_> = text.rsplit(',').filter_map(read).take(MAX_ANCESTORS).collect();
    newest.reverse();
    newest
}

/// Returns a hash of the path of a configuration. The servers of a gateway need not know the path.
fn hash_place(identity: &Identity) -> String {
    let mut digest = Sha256::new();
    for path in [&identity.config, &identity.directory] {
        digest.update(path.as_deref().map(|path| path.as_os_str().as_encoded_bytes()).unwrap_or_default());
        digest.update([0]);
    }
    let mut text = hex(&digest.finalize());
    text.truncate(PLACE_LENGTH);
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn lineage(place: &str, ancestors: Vec<Ancestor>) -> Lineage {
        let identity = Identity::of_directory(Path::new(place));
        Lineage { ancestors, ..Lineage::of_process(Some(&identity)) }
    }

    #[test]
    fn use1_a_gateway_refuses_the_configuration_of_an_ancestor() {
        let first = lineage("/a", Vec::new());
        assert_eq!(first.check(), Ok(()));
        let second = lineage("/b", ancestors(Some(first.variable())));
        assert_eq!(second.check(), Ok(()), "a chain without a loop");
        let third = lineage("/a", ancestors(Some(second.variable())));
        let reason = third.check().expect_err("the configuration of the first one");
        assert!(reason.contains(&via::refusal(&first.id)) && reason.contains("mcpServers"), "{reason}");
        let unknown = Lineage { place: String::new(), ..third };
        assert_eq!(unknown.check(), Ok(()));
    }

    #[test]
    fn use1_the_list_of_ancestors_is_bounded_and_bad_members_are_ignored() {
        let mut lineages = vec![lineage("/0", Vec::new())];
        for number in 1..100 {
            let before = lineages.last().expect("not empty").variable();
            lineages.push(lineage(&format!("/{number}"), ancestors(Some(before))));
        }
        let fits = lineages.iter().take_while(|lineage| lineage.check().is_ok()).count();
        assert_eq!(fits, MAX_ANCESTORS);
        assert!(lineages.last().expect("not empty").variable().len() < 1024);
        assert!(ancestors(Some(",, ,a:b,a b:0123456789abcdef,é".to_owned())).is_empty());
        let (one, other) = (lineage("/1", Vec::new()).id, lineage("/2", Vec::new()).id);
        assert_eq!(ancestors(Some(format!("{one},{other}:0123456789abcdef,ab"))).len(), 2);
    }
}
