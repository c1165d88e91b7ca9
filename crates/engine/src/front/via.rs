//! Recognises gateways among the clients, by the header in which they name themselves.
//!
//! A gateway that is its own client rejects itself before it serves a list. Lists of other gateways do not wait for the
//! start of servers: two gateways in front of each other would wait for each other.
//!
//! Programs that a gateway starts inherit its id, and a bridge among them passes the id on. The client of such a bridge
//! may be an agent, which is a server and a client of this gateway. Only a client that calls itself a gateway is rejected.

use goblin_wire::headers::VIA;
use goblin_wire::json::{self, Span};
use goblin_wire::via::{GatewayId, names_sender, read_header, refusal};
use goblin_wire::{Error, Request};
use http::header::HeaderMap;

use crate::front::gate::single;

/// The name by which gateways describe themselves in handshakes and requests.
const GATEWAY_NAME: &str = "goblin";

/// The gateways that a header names. Empty for other clients.
pub(crate) struct NamedGateways(Vec<GatewayId>);

impl NamedGateways {
    /// Reads the header. Clients other than gateways have none.
    pub(crate) fn read(headers: &HeaderMap) -> NamedGateways {
        NamedGateways(single(headers, &VIA).map(read_header).unwrap_or_default())
    }

    /// Reads the header of a request. Ignores it unless the request is a handshake or a list.
    pub(crate) fn of_request(headers: &HeaderMap, request: &Request) -> NamedGateways {
        if names_sender(&request.method) { NamedGateways::read(headers) } else { NamedGateways(Vec::new()) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an error if the gateway `own` would connect to itself.
    pub(crate) fn check(&self, own: &GatewayId) -> Result<(), Error> {
        match self.0.contains(own) {
            true => {
                let refusal = refusal(own);
                Err(Error::InvalidRequest(format!("{refusal}: the client is this gateway itself, or a server of it")))
            }
            false => Ok(()),
        }
    }

    /// Returns an error if the gateway `own` would connect to itself with this request.
    pub(crate) fn check_request(&self, own: &GatewayId, request: &Request) -> Result<(), Error> {
        if self.is_empty() || !is_of_gateway(request) { Ok(()) } else { self.check(own) }
    }
}

/// Reports whether the sender of a request calls itself a gateway.
fn is_of_gateway(request: &Request) -> bool {
    let text = request.raw.as_str();
    let name = |info: Span| json::string(text, json::member(text, info, "name")?);
    let info = request.params.client_info.or(request.params.known_meta.client_info);
    info.and_then(name).is_some_and(|name| name == GATEWAY_NAME)
}
