//! The gateways behind a list, in [`KEY`] of its `_meta`, and the gateway in front of a server, in a header.
//!
//! Every gateway writes its own id and the ids of the gateways behind its servers into the lists that it serves. A
//! gateway that reads its own id from a server's list is connected to itself, directly or through other gateways.
//!
//! In a loop of several gateways each of them reads its own id, but one cut is enough. [`Via::check`] cuts a
//! connection from an older to a younger gateway. Ids are ordered by the start time, so every loop has such a
//! connection and another one that stays.
//!
//! A gateway also names itself in a header of the requests that begin a connection, see [`names_sender`]. A gateway
//! that receives its own id rejects the connection before it serves a list.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::Method;
use crate::json::{self, Span, quote};

/// The member of `_meta` that holds the ids.
pub const KEY: &str = "dev.goblin/via";
/// The limit of ids in the lists of one server, and in one header.
pub const MAX_IDS: usize = 64;
/// The length of an id.
const LENGTH: usize = 32;
/// The beginning of the text by which a gateway refuses a loop.
pub const REFUSAL: &str = "loop of gateway ";

/// The id of one run of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayId(Arc<str>);

impl GatewayId {
    /// Returns the id of a gateway that starts now: the time in milliseconds, then random bytes.
    pub fn of_start(milliseconds: u64, random: [u8; 10]) -> GatewayId {
        let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        GatewayId(format!("{:012x}{random}", milliseconds & 0xffff_ffff_ffff).into())
    }

    /// Reads an id. Returns `None` if the text does not have the format of [`GatewayId::of_start`].
    pub fn parse(text: &str) -> Option<GatewayId> {
        let is_valid = text.len() == LENGTH && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_valid.then(|| GatewayId(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GatewayId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The reason why a gateway must not use a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViaProblem {
    /// The server leads back to the gateway.
    Loop,
    /// The server names more than [`MAX_IDS`] gateways. More could hide the own id.
    TooManyGateways,
}

/// The ids of a list. The first one is the gateway that wrote the list. Empty if no gateway wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Via(Arc<[GatewayId]>);

impl Via {
    /// Returns the ids of the lists of gateway `own` with servers that have the ids `behind`. Servers with few ids come
    /// first. Omits the ids of a server that would exceed [`MAX_IDS`], because other gateways would then drop all servers
    /// of this gateway.
    pub fn joined<'a>(own: &GatewayId, behind: impl Iterator<Item = &'a Via>) -> Via {
        let mut behind: Vec<_> = behind.collect();
        behind.sort_by_key(|via| via.0.len());
        let mut others = BTreeSet::new();
        for via in behind {
            let new: Vec<_> = via.0.iter().filter(|id| *id != own && !others.contains(*id)).cloned().collect();
            if others.len() + new.len() < MAX_IDS {
                others.extend(new);
            }
        }
        Via(std::iter::once(own.clone()).chain(others).collect())
    }

    /// Returns the ids of several lists of one server. The gateway that wrote the first of them stays first.
    pub fn union<'a>(parts: impl IntoIterator<Item = &'a Via>) -> Via {
        Via::collect(parts.into_iter().flat_map(|via| via.0.iter().cloned()))
    }

    /// Reads the ids of a list result. Ignores invalid ids.
    pub fn read(text: &str, result: Span) -> Via {
        let ids = json::member(text, result, "_meta").and_then(|meta| json::member(text, meta, KEY));
        let Some(ids) = ids.filter(|ids| ids.get(text).starts_with('[')) else { return Via::default() };
        Via::collect(json::elements(text, ids).filter_map(|id| GatewayId::parse(&json::string(text, id)?)))
    }

    /// Keeps distinct ids. Stops above [`MAX_IDS`], where [`Via::check`] fails whatever follows.
    fn collect(ids: impl Iterator<Item = GatewayId>) -> Via {
        let mut distinct = Vec::new();
        for id in ids {
            if !distinct.contains(&id) {
                distinct.push(id);
            }
            if distinct.len() > MAX_IDS {
                break;
            }
        }
        Via(distinct.into())
    }

    /// Returns an error if gateway `own` must drop the server with these ids. If several gateways form a loop, another
    /// one may have to cut it instead.
    pub fn check(&self, own: &GatewayId) -> Result<(), ViaProblem> {
        if self.0.len() > MAX_IDS {
            return Err(ViaProblem::TooManyGateways);
        }
        let closes_loop = self.0.contains(own) && self.0.first().is_some_and(|peer| own <= peer);
        if closes_loop { Err(ViaProblem::Loop) } else { Ok(()) }
    }

    /// Returns the member of `_meta`, or an empty string if there are no ids.
    pub fn member(&self) -> String {
        let ids: Vec<_> = self.0.iter().map(|id| quote(id.as_str())).collect();
        if ids.is_empty() { String::new() } else { format!("{}:[{}]", quote(KEY), ids.join(",")) }
    }
}

/// Returns the text by which gateway `id` rejects a connection to itself, and by which a process refuses to start
/// because that gateway started it with the same configuration. The gateway recognises the text in errors and among
/// the last lines of the process.
pub fn refusal(id: &GatewayId) -> String {
    format!("{REFUSAL}{id}")
}

/// Reports whether a request of this method names the gateway that sends it in a header: a handshake or a list.
pub fn names_sender(method: &Method) -> bool {
    matches!(
        method,
        Method::Initialize
            | Method::Discover
            | Method::ToolsList
            | Method::PromptsList
            | Method::ResourcesList
            | Method::TemplatesList
    )
}

/// Returns the value of the header for these ids.
pub fn header_value(ids: &[GatewayId]) -> String {
    ids.iter().map(GatewayId::as_str).collect::<Vec<_>>().join(",")
}

/// Reads the value of the header. Ignores invalid ids, and those beyond [`MAX_IDS`].
pub fn read_header(value: &str) -> Vec<GatewayId> {
    value.split(',').take(MAX_IDS).filter_map(GatewayId::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> GatewayId {
        GatewayId::of_start(number, [7; 10])
    }

    fn via(ids: impl IntoIterator<Item = u64>) -> Via {
        Via(ids.into_iter().map(id).collect())
    }

    fn read(result: &str) -> Via {
        Via::read(result, json::whole(result))
    }

    #[test]
    fn use1_ids_survive_a_list_and_bad_ones_are_ignored() {
        let chain = Via::joined(&id(5), [Via::joined(&id(9), [].iter()), Via::joined(&id(1), [].iter())].iter());
        let list = format!(r#"{{"tools":[],"_meta":{{"other":1,{}}}}}"#, chain.member());
        assert_eq!(read(&list), chain);
        assert_eq!(chain, via([5, 1, 9]));
        for bad in
            ["{}", r#"{"_meta":1}"#, r#"{"_meta":{"dev.goblin/via":"a"}}"#, r#"{"_meta":{"dev.goblin/via":[""]}}"#]
        {
            assert_eq!(read(bad), Via::default(), "{bad}");
        }
        let (valid, upper) = (id(1), id(0xabcdef).as_str().to_uppercase());
        let mixed = format!(r#"{{"_meta":{{"{KEY}":["{valid}0",1,null,["a"],"a b","ok","{upper}","{valid}"]}}}}"#);
        assert_eq!(read(&mixed), via([1]));
        assert_eq!(Via::default().member(), "");
    }

    #[test]
    fn use1_forged_ids_hide_no_loop() {
        let list = |ids: std::ops::Range<u64>| {
            let ids: Vec<_> = ids.map(|number| quote(id(number).as_str())).collect();
            read(&format!(r#"{{"_meta":{{"{KEY}":[{}]}}}}"#, ids.join(",")))
        };
        assert_eq!(list(0..64).check(&id(99)), Ok(()));
        assert_eq!(list(0..65).check(&id(99)), Err(ViaProblem::TooManyGateways));
        assert_eq!(list(0..1_000_000).0.len(), MAX_IDS + 1, "reading stops");
        let both = Via::union([&list(0..64), &list(8..72)]);
        assert_eq!(both.check(&id(99)), Err(ViaProblem::TooManyGateways));
    }

    #[test]
    fn use1_the_ids_of_one_server_make_no_other_gateway_drop_this_one() {
        // The own id comes first, and servers with few ids precede the others.
        let joined = Via::joined(&id(50), [via(100..160), via([60, 61]), via([50, 61])].iter());
        assert_eq!((joined.0.len(), &joined.0[0]), (63, &id(50)));
        let joined = Via::joined(&id(50), [via(100..164), via(60..62)].iter());
        assert_eq!(joined, via([50, 60, 61]));
        assert_eq!(joined.check(&id(99)), Ok(()));
    }

    #[test]
    fn use1_the_lists_of_a_server_have_the_ids_of_all_of_them() {
        let union = Via::union([&Via::default(), &via([5, 1]), &via([5, 9]), &Via::default()]);
        assert_eq!(union, via([5, 1, 9]));
    }

    #[test]
    fn use1_a_header_holds_a_limited_number_of_ids() {
        assert_eq!(read_header(&header_value(&[id(1), id(2)])), [id(1), id(2)]);
        assert!(read_header("").is_empty() && read_header("a,b, ,goblin").is_empty());
        let many: Vec<_> = (0..100).map(id).collect();
        assert_eq!(read_header(&header_value(&many)).len(), MAX_IDS);
    }

    #[test]
    fn use1_every_loop_loses_a_connection_and_keeps_another() {
        let closes_loop = |ids: &[u64], own| via(ids.iter().copied()).check(&id(own)) == Err(ViaProblem::Loop);
        assert!(closes_loop(&[1], 1), "a gateway in front of itself");
        assert!(!closes_loop(&[2, 3], 1) && !closes_loop(&[], 1), "a chain");
        for order in [[1, 2, 3], [3, 1, 2], [2, 3, 1], [3, 2, 1]] {
            // Each gateway is connected to the next one, and all have learned all ids.
            let cuts = (0..3).filter(|index| {
                let (own, peer) = (order[*index], order[(index + 1) % 3]);
                closes_loop(&[peer, 1, 2, 3], own)
            });
            assert!((1..3).contains(&cuts.count()), "{order:?}");
        }
    }
}
