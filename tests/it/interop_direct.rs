//! Every client against every server of its era without the gateway. A feature that works here but not in `interop.rs`
//! is a fault of the gateway. A feature that fails here is a known limit of the SDK.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use crate::interop_features::{Era, FEATURES, Verdict, Verdicts};
use crate::interop_player::{HttpServer, Maker, Over};

/// The number of clients that run in parallel.
const AT_ONCE: usize = 2;

struct Run {
    client: Maker,
    server: Maker,
    era: Era,
    over_stdio: bool,
}

impl Run {
    fn lacks(&self, feature: &str) -> Option<&'static str> {
        let by_server = self.server.server_lacks(self.era, feature).filter(|_| !self.client.hides(feature));
        let between = (feature == "not_found" && self.era == Era::Modern && self.client == Maker::Rust)
            .then_some("the server says it with HTTP status 400, which the client does not read")
            .filter(|_| self.server == Maker::Python2);
        self.client.client_lacks(self.era, feature).or(by_server).or(between)
    }
}

/// Returns all possible pairs. Every second pair uses stdio, if both sides support it.
fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for era in Era::ALL {
        let makers: Vec<Maker> = Maker::ALL.into_iter().filter(|maker| maker.supports(era)).collect();
        for (row, &client) in makers.iter().enumerate() {
            for (column, &server) in makers.iter().enumerate() {
                let programs = client != Maker::Rust && server != Maker::Rust;
                runs.push(Run { client, server, era, over_stdio: programs && (row + column) % 2 == 1 });
            }
        }
    }
    runs
}

async fn play(run: &Run, number: usize, url: &str) -> Verdicts {
    let over = if run.over_stdio { Over::Stdio(run.server) } else { Over::Http(url) };
    run.client.play(run.era, over, &format!("mark{number}")).await
}

/// Returns the features with an outcome that contradicts the known limits of the two SDKs.
fn surprises(run: &Run, verdicts: &Verdicts) -> Vec<String> {
    let surprise = |feature: &&str| {
        let lacks = run.lacks(feature);
        let verdict = &verdicts[*feature];
        let as_expected = (*verdict == Verdict::Works) == lacks.is_none();
        (!as_expected).then(|| {
            let (client, server) = (run.client.name(), run.server.name());
            let over = if run.over_stdio { "stdio" } else { "HTTP" };
            format!("{feature}: {client} to {server}, {}, {over}: {verdict:?}, known limit {lacks:?}", run.era.name())
        })
    };
    FEATURES.iter().filter_map(surprise).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_feature_works_between_sdks_of_one_era() {
    let mut servers = BTreeMap::new();
    for maker in Maker::ALL {
        servers.insert(maker, HttpServer::start(maker).await);
    }
    let runs = runs();
    assert_eq!(runs.len(), 5 * 5 + 3 * 3);
    let mut playing = JoinSet::new();
    let mut surprising = Vec::new();
    for (number, run) in runs.into_iter().enumerate() {
        if playing.len() == AT_ONCE {
            surprising.extend(playing.join_next().await.expect("one plays").expect("no panic"));
        }
        let url = servers[&run.server].url().to_owned();
        playing.spawn(async move {
            let verdicts = play(&run, number, &url).await;
            surprises(&run, &verdicts)
        });
    }
    surprising.extend(playing.join_all().await.into_iter().flatten());
    assert!(surprising.is_empty(), "{}", surprising.join("\n"));
}
