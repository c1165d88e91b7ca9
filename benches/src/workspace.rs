//! The processes of one scenario. Each scenario starts its own, so that none inherits another's heap.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::child::Child;
use crate::client::Client;
use crate::load::Target;
use crate::scenario::{FEW_TOOLS, LISTED_BACKENDS, LISTED_TOOLS, Scenario, Through};

const READY_TIMEOUT: Duration = Duration::from_secs(30);
const READY_PAUSE: Duration = Duration::from_millis(50);

/// The Goblin binary to measure and the directory for the files of a run.
pub struct Workspace {
    goblin: Option<PathBuf>,
    directory: PathBuf,
}

/// The servers to measure and the backends behind them. All of them end with the target set.
pub struct TargetSet {
    pub targets: Vec<Target>,
    _children: Vec<Child>,
}

/// A ready Goblin and its backends, which end with it.
pub struct Gateway {
    goblin: Child,
    backends: Vec<Child>,
}

impl Workspace {
    /// Creates a directory below the system's temporary one. Dropping the yard removes it.
    pub fn new(goblin: Option<PathBuf>) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("goblin-bench-{}", std::process::id()));
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self { goblin, directory })
    }

    pub async fn target_set(&self, scenario: Scenario) -> Result<TargetSet> {
        match scenario {
            Scenario::List => self.listing_targets().await,
            Scenario::Setup => self.setup_targets().await,
            Scenario::CallSmall | Scenario::CallLarge => self.calling_targets().await,
            Scenario::Stateless => self.stateless_targets().await,
        }
    }

    /// Starts Goblin with `backends` backends of `tools` tools each, and waits until it lists them all. Returns `None`
    /// if Goblin is not measured.
    pub async fn gateway(&self, backends: usize, tools: usize) -> Result<Option<Gateway>> {
        if self.goblin.is_none() {
            return Ok(None);
        }
        let expected = backends * tools;
        let backends: Vec<Child> = (0..backends).map(|server| backend(tools, server)).collect::<Result<_>>()?;
        let Some(goblin) = self.goblin(&goblin_config(&backends))? else { return Ok(None) };
        wait_for_tools(&goblin, expected).await?;
        Ok(Some(Gateway { goblin, backends }))
    }

    /// Starts Goblin with `config` and waits until it listens. Returns `None` if Goblin is not measured.
    pub fn goblin(&self, config: &Value) -> Result<Option<Child>> {
        let Some(binary) = &self.goblin else { return Ok(None) };
        let file = self.directory.join("goblin.json");
        fs::write(&file, config.to_string())?;
        Child::goblin(binary, &file, &self.directory).map(Some)
    }

    async fn calling_targets(&self) -> Result<TargetSet> {
        let direct = backend(FEW_TOOLS, 0)?;
        let proxy = Child::role(&["proxy", "--target", &direct.url()])?;
        let gateway = self.gateway(1, FEW_TOOLS).await?;
        Ok(TargetSet::new([(Through::Direct, direct), (Through::Proxy, proxy)], gateway))
    }

    /// Starts two gateways: one with sessions towards its clients and backend, and one without.
    async fn stateless_targets(&self) -> Result<TargetSet> {
        let Some(with) = self.gateway(1, FEW_TOOLS).await? else { return Ok(TargetSet::new([], None)) };
        let modern = Child::role(&["backend", "--tools", &FEW_TOOLS.to_string(), "--server", "0", "--modern"])?;
        let without = self.goblin(&goblin_config(std::slice::from_ref(&modern)))?;
        let mut target_set = TargetSet::new([], Some(with));
        if let Some(without) = without {
            wait_for_tools(&without, FEW_TOOLS).await?;
            let (through, address, pid) = (Through::Stateless, without.address, without.pid());
            target_set.targets.push(Target { through, address, pid, prefix: "b0_" });
            target_set._children.extend([without, modern]);
        }
        Ok(target_set)
    }

    async fn setup_targets(&self) -> Result<TargetSet> {
        let direct = backend(FEW_TOOLS, 0)?;
        let proxy = Child::role(&["proxy", "--target", &direct.url()])?;
        let fixed = self.fixed(b"{}")?;
        let gateway = self.gateway(1, FEW_TOOLS).await?;
        Ok(TargetSet::new([(Through::Direct, direct), (Through::Proxy, proxy), (Through::Static, fixed)], gateway))
    }

    /// Starts the servers of the list scenario. Direct and proxy list one backend with all tools, and the static body
    /// is Goblin's own response.
    async fn listing_targets(&self) -> Result<TargetSet> {
        let direct = backend(LISTED_TOOLS, 0)?;
        let proxy = Child::role(&["proxy", "--target", &direct.url()])?;
        let gateway = self.gateway(LISTED_BACKENDS, LISTED_TOOLS / LISTED_BACKENDS).await?;
        let listed = tools_list(gateway.as_ref().map_or(&direct, |gateway| &gateway.goblin)).await?;
        let fixed = self.fixed(&listed)?;
        Ok(TargetSet::new([(Through::Direct, direct), (Through::Proxy, proxy), (Through::Static, fixed)], gateway))
    }

    fn fixed(&self, body: &[u8]) -> Result<Child> {
        let file = self.directory.join("static.json");
        fs::write(&file, body)?;
        Child::role(&["static", "--file", &file.to_string_lossy()])
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Files that remain in the temporary directory do no harm.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl TargetSet {
    fn new<const COUNT: usize>(servers: [(Through, Child); COUNT], gateway: Option<Gateway>) -> Self {
        let target =
            |through, child: &Child, prefix| Target { through, address: child.address, pid: child.pid(), prefix };
        let mut targets: Vec<_> = servers.iter().map(|(through, child)| target(*through, child, "")).collect();
        let mut children: Vec<_> = servers.into_iter().map(|(_, child)| child).collect();
        if let Some(gateway) = gateway {
            targets.push(target(Through::Goblin, &gateway.goblin, "b0_"));
            children.push(gateway.goblin);
            children.extend(gateway.backends);
        }
        Self { targets, _children: children }
    }
}

impl Gateway {
    pub fn goblin(&self) -> &Child {
        &self.goblin
    }
}

fn backend(tools: usize, server: usize) -> Result<Child> {
    Child::role(&["backend", "--tools", &tools.to_string(), "--server", &server.to_string()])
}

/// Returns the default configuration except for the port and the meta tools.
fn goblin_config(backends: &[Child]) -> Value {
    let servers: Map<_, _> = backends
        .iter()
        .enumerate()
        .map(|(server, child)| (format!("b{server}"), json!({ "url": child.url() })))
        .collect();
    json!({
        "gateway": { "host": "127.0.0.1", "port": 0 },
        // The list contains only backend tools, as it does without a gateway.
        "metaTools": false,
        "mcpServers": servers
    })
}

pub async fn wait_for_tools(goblin: &Child, expected: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        let seen = listed_tools(goblin).await;
        match seen {
            Ok(count) if count == expected => return Ok(()),
            seen if start.elapsed() > READY_TIMEOUT => {
                let lines = goblin.last_lines();
                bail!("goblin did not list {expected} tools in {READY_TIMEOUT:?}, last {seen:?}; its log:\n{lines}")
            }
            _ => tokio::time::sleep(READY_PAUSE).await,
        }
    }
}

async fn tools_list(child: &Child) -> Result<Bytes> {
    let mut client = Client::connect(child.address).await?;
    client.learn_setup().await?;
    let request = Scenario::List.request(Through::Direct, "").expect("the list is one request");
    let (_, answer) = client.learn(&request).await?;
    client.close().await?;
    Ok(answer)
}

/// Returns the number of tools that a new client sees.
pub async fn listed_tools(child: &Child) -> Result<usize> {
    let answer: Value = serde_json::from_slice(&tools_list(child).await?)?;
    Ok(answer["result"]["tools"].as_array().map_or(0, Vec::len))
}
