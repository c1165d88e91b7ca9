//! The pairs of SDKs that prove every feature between clients and servers of each era. They are also the source of
//! `docs/reference/interop.md`.

use std::fmt::Write as _;

use crate::interop_difference_table::section;
use crate::interop_features::{Era, FEATURES};
use crate::interop_player::Maker;
use crate::interop_player::Maker::{Python1, Python2, Rust, TypeScript1, TypeScript2};

/// A client and a backend with the gateway between them.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub client: (Era, Maker),
    pub server: (Era, Maker),
    pub over: Transport,
}

/// The transport between the gateway and its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Http,
    Stdio,
}

use Era::{Legacy, Modern};
use Transport::{Http, Stdio};

const fn pair(client: (Era, Maker), server: (Era, Maker), over: Transport) -> Pair {
    Pair { client, server, over }
}

pub const PAIRS: [Pair; 19] = [
    pair((Legacy, Python1), (Legacy, TypeScript1), Http),
    pair((Legacy, TypeScript1), (Legacy, Python1), Stdio),
    pair((Legacy, Python2), (Legacy, Rust), Http),
    pair((Legacy, Rust), (Legacy, Python2), Stdio),
    pair((Legacy, TypeScript2), (Legacy, TypeScript2), Http),
    pair((Legacy, Python1), (Modern, TypeScript2), Http),
    pair((Legacy, TypeScript1), (Modern, Python2), Stdio),
    pair((Legacy, TypeScript2), (Modern, Rust), Http),
    pair((Legacy, Python2), (Modern, TypeScript2), Stdio),
    pair((Legacy, Rust), (Modern, Python2), Http),
    pair((Modern, Python2), (Legacy, TypeScript1), Http),
    pair((Modern, Rust), (Legacy, Python1), Stdio),
    pair((Modern, TypeScript2), (Legacy, Rust), Http),
    pair((Modern, TypeScript2), (Legacy, Python1), Http),
    pair((Modern, Rust), (Legacy, TypeScript2), Stdio),
    pair((Modern, TypeScript2), (Modern, Python2), Http),
    pair((Modern, Rust), (Modern, TypeScript2), Stdio),
    pair((Modern, Python2), (Modern, Rust), Http),
    pair((Modern, Python2), (Modern, TypeScript2), Http),
];

impl Pair {
    /// Returns the reason if one of the two SDKs does not support a feature.
    pub fn lacks(&self, feature: &str) -> Option<String> {
        let ((client_era, client), (server_era, server)) = (self.client, self.server);
        let of = |side: &str, maker: Maker, lack: &str| format!("the {side} of {} {lack}", maker.name());
        let by_client = client.client_lacks(client_era, feature).map(|lack| of("client", client, lack));
        let by_server = server.server_lacks(server_era, feature).map(|lack| of("server", server, lack));
        // The gateway translates the error for a modern client, so the code of the server does not matter.
        let hidden = client.hides(feature) || (feature == "not_found" && client_era == Modern);
        by_client.or(by_server.filter(|_| !hidden)).or(self.lacks_behind_gateway(feature))
    }

    /// Returns a limit of an SDK that shows only behind a gateway.
    fn lacks_behind_gateway(&self, feature: &str) -> Option<String> {
        let reason = match (feature, self.client, self.server) {
            ("logging", (Modern, _), (Legacy, Rust)) => {
                "the server of Rust sends log lines beside the stream of the call, where they may come after its end"
            }
            _ => return None,
        };
        Some(reason.to_owned())
    }
}

const INTRODUCTION: &str = "\
# Interoperability

This page lists the features that work between clients and servers of both eras. The *legacy* era is every version up to
2025-11-25, with `initialize` and sessions. The *modern* era is 2026-07-28, without sessions.
[Protocol versions](versions.md) explains the translation.

`tests/it/interop.rs` proves the tables with the official SDKs of five generations on both ends. The gateway is between
them, and clients reach it over HTTP. [The programs](../../tests/clients/README.md) also run without the gateway
(`tests/it/interop_direct.rs`), so a failure in this page alone is a fault of the gateway. `GOBLIN_BLESS=1` writes this
page again.

The official conformance suite also runs against servers with these SDKs, directly and through the gateway. Its
[README](../../tests/conformance/README.md#results) has the results.
";

/// Returns the text of `docs/reference/interop.md`.
pub fn document() -> String {
    let mut page =
        format!("{INTRODUCTION}\n## Features\n\nEach number is the number of SDK pairs that prove the feature.\n\n");
    page += "| feature | legacy client, legacy server | legacy client, modern server | modern client, legacy server \
             | modern client, modern server |\n|---|---|---|---|---|\n";
    for feature in FEATURES {
        let cells = QUADRANTS.map(|(client, server)| format!("yes, {}", proofs(client, server, feature)));
        line(&mut page, &format!("| {feature} | {} |", cells.join(" | ")));
    }
    page += "\nA legacy server gets the roots of a client only over that client's own connection: \
             `\"session\": \"per-client\"`. Clients without a session and with the same capabilities share one connection. A request \
             of the server there goes to the only client with an open call. A tool of 2025-11-25 becomes a task for a modern client \
             if the tool requires a task; otherwise it is called without one.\n";
    page += "\n## Pairs\n\n| client | server | transport to the server | not tested, because |\n|---|---|---|---|\n";
    for pair in PAIRS {
        line(&mut page, &row(&pair));
    }
    page + &section()
}

pub const QUADRANTS: [(Era, Era); 4] = [(Legacy, Legacy), (Legacy, Modern), (Modern, Legacy), (Modern, Modern)];

/// Returns the number of pairs that can prove a feature between these eras.
pub fn proofs(client: Era, server: Era, feature: &str) -> usize {
    let able = |pair: &&Pair| (pair.client.0, pair.server.0) == (client, server) && pair.lacks(feature).is_none();
    PAIRS.iter().filter(able).count()
}

fn line(page: &mut String, text: &str) {
    writeln!(page, "{text}").expect("a string takes everything");
}

fn row(pair: &Pair) -> String {
    let side = |(era, maker): (Era, Maker)| format!("{}, {}", maker.name(), era.name());
    let over = match pair.over {
        Http => "HTTP",
        Stdio => "stdio",
    };
    let lacking: Vec<String> = FEATURES
        .into_iter()
        .filter_map(|feature| pair.lacks(feature).map(|lack| format!("{feature}: {lack}")))
        .collect();
    format!("| {} | {} | {over} | {} |", side(pair.client), side(pair.server), lacking.join("; "))
}

#[test]
fn every_feature_is_proved_by_two_pairs_and_every_sdk_is_on_both_ends() {
    for feature in FEATURES {
        for (client, server) in QUADRANTS {
            let proofs = proofs(client, server, feature);
            assert!(proofs >= 2, "{feature}, {client:?} client, {server:?} server: {proofs}");
        }
    }
    for maker in Maker::ALL {
        assert!(PAIRS.iter().any(|pair| pair.client.1 == maker), "no client of {maker:?}");
        assert!(PAIRS.iter().any(|pair| pair.server.1 == maker), "no server of {maker:?}");
    }
    for pair in PAIRS {
        assert!(pair.client.1.supports(pair.client.0) && pair.server.1.supports(pair.server.0), "{pair:?}");
    }
}

#[test]
fn the_interop_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/interop.md");
    if std::env::var_os("GOBLIN_BLESS").is_some() {
        std::fs::write(path, document()).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == document(),
        "docs/reference/interop.md is stale, run: GOBLIN_BLESS=1 cargo test --test it interop_table"
    );
}
