//! The load generator: a number of clients for a given time, each with one connection and one request in flight.
//!
//! Every response is compared with the expected bytes, and a wrong one fails the run. The CPU time is that of the
//! process under test only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use crate::client::{Client, Template};
use crate::expected::Expected;
use crate::procfs;
use crate::report::Sample;
use crate::scenario::{Scenario, Through};

const WARM_UP: Duration = Duration::from_millis(300);
const WARM_UP_OPERATIONS: usize = 500;
/// The pause before each reading of the CPU time. Deferred work of the measurement then counts, and earlier work does
/// not.
const SETTLE: Duration = Duration::from_millis(30);

/// A server under test.
#[derive(Clone, Copy)]
pub struct Target {
    pub through: Through,
    pub address: SocketAddr,
    pub pid: u32,
    /// The prefix of tool names at this server.
    pub prefix: &'static str,
}

/// A target with the request to send and the expected response.
pub struct Load {
    target: Target,
    scenario: Scenario,
    operation: Operation,
}

enum Operation {
    Setup { expected: Expected },
    Call { request: Template<String>, expected: Expected },
}

impl Load {
    /// Sends one request and checks the parsed response. Later responses must have the same bytes.
    pub async fn learn(target: Target, scenario: Scenario) -> Result<Arc<Self>> {
        let operation = Self::learn_operation(target, scenario)
            .await
            .with_context(|| format!("{} through {}", scenario.title(), target.through.title()))?;
        Ok(Arc::new(Self { target, scenario, operation }))
    }

    async fn learn_operation(target: Target, scenario: Scenario) -> Result<Operation> {
        let mut client = Client::connect(target.address).await?;
        let (setup_id, setup) = match target.through {
            Through::Stateless => (0, Default::default()),
            _ => client.learn_setup().await?,
        };
        let Some(request) = scenario.request(target.through, target.prefix) else {
            scenario.check(&setup)?;
            client.close().await?;
            let expected =
                Expected::with_id(&setup, setup_id).context("the answer does not contain its id exactly once")?;
            return Ok(Operation::Setup { expected });
        };
        let (id, answer) = client.learn(&request).await?;
        scenario.check(&answer)?;
        client.close().await?;
        let expected = match target.through {
            Through::Static => Expected::always(answer),
            Through::Direct | Through::Proxy | Through::Bare | Through::Goblin | Through::Stateless => {
                Expected::with_id(&answer, id).context("the answer does not contain its id exactly once")?
            }
        };
        Ok(Operation::Call { request, expected })
    }

    pub fn through(&self) -> Through {
        self.target.through
    }

    /// Runs one measurement: open, warm up, measure, close. Any wrong response fails it.
    pub async fn measure(self: &Arc<Self>, sessions: usize, duration: Duration) -> Result<Sample> {
        self.measure_phases(sessions, duration).await.with_context(|| {
            format!("{} through {}, {sessions} sessions", self.scenario.title(), self.target.through.title())
        })
    }

    async fn measure_phases(self: &Arc<Self>, sessions: usize, duration: Duration) -> Result<Sample> {
        let clients = self.open(sessions).await?;
        let (clients, _) = self.phase(clients, WARM_UP, WARM_UP_OPERATIONS.div_ceil(sessions)).await?;

        tokio::time::sleep(SETTLE).await;
        let cpu_before = procfs::cpu(self.target.pid)?;
        let start = Instant::now();
        let most = self.scenario.max_operations() / sessions;
        let (clients, latencies) = self.phase(clients, duration, most).await?;
        let elapsed = start.elapsed();
        tokio::time::sleep(SETTLE).await;
        let cpu = procfs::cpu(self.target.pid)?.since(&cpu_before);

        let mut closing: JoinSet<_> = clients.into_iter().map(Client::close).collect();
        while let Some(closed) = closing.join_next().await {
            closed??;
        }
        Ok(Sample::new(latencies, elapsed, cpu))
    }

    async fn open(&self, sessions: usize) -> Result<Vec<Client>> {
        let mut clients = Vec::with_capacity(sessions);
        for _ in 0..sessions {
            let mut client = Client::connect(self.target.address).await?;
            if self.target.through != Through::Stateless {
                client.learn_setup().await?;
            }
            clients.push(client);
        }
        Ok(clients)
    }

    /// Runs the clients until `duration` is over or each has done `most` operations. Each client does at least one.
    /// Returns the clients and the latencies in nanoseconds.
    async fn phase(
        self: &Arc<Self>,
        clients: Vec<Client>,
        duration: Duration,
        most: usize,
    ) -> Result<(Vec<Client>, Vec<u64>)> {
        let deadline = Instant::now() + duration;
        let mut workers = JoinSet::new();
        for client in clients {
            workers.spawn(Arc::clone(self).work(client, deadline, most));
        }
        let (mut clients, mut latencies) = (Vec::new(), Vec::new());
        while let Some(done) = workers.join_next().await {
            let (client, mut of_client) = done??;
            clients.push(client);
            latencies.append(&mut of_client);
        }
        Ok((clients, latencies))
    }

    async fn work(self: Arc<Self>, mut client: Client, deadline: Instant, most: usize) -> Result<(Client, Vec<u64>)> {
        let mut latencies = Vec::new();
        let mut now = Instant::now();
        while latencies.is_empty() || (now < deadline && latencies.len() < most) {
            match &self.operation {
                Operation::Setup { expected } => client.setup(expected).await?,
                Operation::Call { request, expected } => client.call(request, expected).await?,
            }
            let after = Instant::now();
            latencies.push((after - now).as_nanos() as u64);
            now = after;
        }
        Ok((client, latencies))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::net::TcpListener;

    use super::{Load, Target};
    use crate::scenario::{LISTED_TOOLS, Scenario, Through};
    use crate::{backend, fixed, proxy};

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    async fn backend(tools: usize) -> SocketAddr {
        let (listener, address) = listener().await;
        tokio::spawn(backend::run(listener, tools, 0, false));
        address
    }

    async fn proxy(target: SocketAddr) -> SocketAddr {
        let (listener, address) = listener().await;
        tokio::spawn(proxy::run(listener, format!("http://{target}/mcp").parse().unwrap()));
        address
    }

    async fn fixed(body: &'static [u8]) -> SocketAddr {
        let (listener, address) = listener().await;
        tokio::spawn(fixed::run(listener, Bytes::from_static(body)));
        address
    }

    /// Returns a target in this process. Its CPU time is that of the whole process.
    fn target(through: Through, address: SocketAddr) -> Target {
        Target { through, address, pid: std::process::id(), prefix: "" }
    }

    #[tokio::test]
    async fn every_scenario_works_directly_and_through_the_proxy() {
        let direct = backend(LISTED_TOOLS).await;
        let proxy = proxy(direct).await;
        for target in [target(Through::Direct, direct), target(Through::Proxy, proxy)] {
            for scenario in Scenario::ALL {
                let load = Load::learn(target, scenario).await.unwrap();
                let sample = load.measure(3, Duration::from_millis(50)).await.unwrap();
                assert!(sample.operations >= 3 && sample.cpu_us > 0.0, "{sample:?}");
            }
        }
    }

    #[tokio::test]
    async fn the_static_server_sets_sessions_up() {
        let target = target(Through::Static, fixed(b"{}").await);
        let load = Load::learn(target, Scenario::Setup).await.unwrap();
        assert!(load.measure(3, Duration::from_millis(50)).await.is_ok());
    }

    #[tokio::test]
    async fn wrong_answers_are_refused() {
        let few = target(Through::Direct, backend(5).await);
        assert!(Load::learn(few, Scenario::List).await.is_err());
        let another = fixed(br#"{"jsonrpc":"2.0","id":1000000001,"result":{"content":[]}}"#).await;
        assert!(Load::learn(target(Through::Direct, another), Scenario::CallSmall).await.is_err());
        let nobody = proxy(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))).await;
        assert!(Load::learn(target(Through::Proxy, nobody), Scenario::CallSmall).await.is_err());
    }

    #[tokio::test]
    async fn an_answer_that_stops_being_right_fails_the_measurement() {
        let right = br#"{"jsonrpc":"2.0","id":1000000001,"result":{"content":[{"text":"echo: the quick brown fox jumps over the lazy dog"}]}}"#;
        let load = Load::learn(target(Through::Direct, fixed(right).await), Scenario::CallSmall).await.unwrap();
        // The first id of each client is right, and all later ones are wrong.
        assert!(load.measure(1, Duration::from_millis(50)).await.is_err());
    }
}
