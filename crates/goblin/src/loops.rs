//! Finds entries of `mcpServers` that lead back to the gateway of the same configuration.
//!
//! An entry leads to a gateway by its URL, by the command `goblin stdio` or `goblin serve`, or by a known bridge with a
//! URL. The records of running gateways name the addresses in use. An address in the arguments of another program is
//! no proof: the program may be an agent that uses the gateway. The running gateway finds the remaining loops itself.

mod command;

use std::path::{Path, PathBuf};

use clap::Parser;
use goblin_client::environment::environment;
use goblin_client::runtime::identity::Identity;
use goblin_client::runtime::{GatewayRecord, RecordDirectories};
use goblin_config::edit::Draft;
use goblin_config::lead::{GatewayLead, is_gateway_url};
use goblin_config::tree::JsonTree;
use goblin_config::{Gateway, Transport, file, parse};

use crate::cli::{Cli, Command, ConfigArgs};
use crate::loops::command::LocalCommand;
use crate::stdio::Stdio;

/// The cure for an entry that leads back to the gateway.
pub(crate) const CURE: &str = "a client connects to the gateway; the gateway needs no entry for itself";

/// The gateway of one configuration, and the running gateways of this user.
pub(crate) struct KnownGateways {
    own: Identity,
    gateway: Gateway,
    running: Vec<GatewayRecord>,
}

/// The parts of an entry that may lead to a gateway.
pub(crate) struct EntryTarget {
    url: Option<String>,
    /// The program and its arguments.
    words: Vec<String>,
    /// The variables of the command.
    variables: Vec<(String, String)>,
    cwd: PathBuf,
}

impl EntryTarget {
    /// Returns the target of an entry in a file. `directory` is the directory of the file.
    pub(crate) fn of_entry(entry: &JsonTree, directory: &Path) -> EntryTarget {
        let text = |name: &str| entry.get(name).and_then(JsonTree::as_text).map(str::to_owned);
        let args = match entry.get("args") {
            Some(JsonTree::List(args)) => args.iter().filter_map(JsonTree::as_text).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let variables = entry.get("env").and_then(JsonTree::members).unwrap_or_default().iter();
        let variables = variables.filter_map(|(name, value)| Some((name.clone(), value.as_text()?.to_owned())));
        EntryTarget {
            url: text("url"),
            words: text("command").into_iter().chain(args).collect(),
            variables: variables.collect(),
            cwd: directory.join(text("cwd").unwrap_or_default()),
        }
    }

    /// Returns the target of a server of a valid configuration.
    pub(crate) fn of_transport(transport: &Transport) -> EntryTarget {
        let nothing = EntryTarget { url: None, words: Vec::new(), variables: Vec::new(), cwd: PathBuf::new() };
        match transport {
            Transport::Files(_) | Transport::Misconfigured(_) => nothing,
            Transport::Http { url, .. } => EntryTarget { url: Some(url.value().to_owned()), ..nothing },
            Transport::Stdio { command, args, env, cwd, .. } => EntryTarget {
                words: std::iter::once(command).chain(args).map(|word| word.value().to_owned()).collect(),
                variables: env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
                cwd: cwd.clone(),
                ..nothing
            },
        }
    }

    /// Returns the commands that the entry runs on this machine.
    fn commands(&self) -> Vec<LocalCommand> {
        let (words, variables, cwd) = (self.words.clone(), self.variables.clone(), self.cwd.clone());
        LocalCommand { words, variables, cwd }.unwrapped()
    }
}

impl LocalCommand {
    /// Returns the configuration of a `goblin` command with this flag.
    fn config_of(&self, source: &ConfigArgs) -> Option<PathBuf> {
        // The command does not get the GOBLIN variables of the gateway, only its own.
        let variable = |name: &str| {
            let own = self.variables.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
            own.or_else(|| environment(name).filter(|_| !name.starts_with("GOBLIN_")))
        };
        let path = file::target(source.config.as_deref(), &variable).ok()?;
        Some(self.cwd.join(path))
    }
}

/// Returns the gateways of this user, with that of the file in `draft`.
pub(crate) fn known(draft: &Draft) -> KnownGateways {
    let loaded = parse(&draft.text(), draft.origin(), &environment);
    KnownGateways::new(draft.path(), loaded.map_or_else(|_| Gateway::default(), |loaded| loaded.config.gateway))
}

impl KnownGateways {
    /// Returns the gateways of this user. `config` is the path of the own configuration, `gateway` its settings.
    pub(crate) fn new(config: &Path, gateway: Gateway) -> KnownGateways {
        let own = Identity::of_file(config, "", Path::new("/"));
        KnownGateways { own, gateway, running: RecordDirectories::of(&environment).inspect().running }
    }

    /// Returns the gateway that an entry leads to. Returns `None` if it leads to no known gateway.
    pub(crate) fn lead(&self, target: &EntryTarget) -> Option<GatewayLead> {
        if let Some(url) = &target.url {
            return self.lead_of_url(url);
        }
        let mut leads = target.commands().into_iter().filter_map(|command| self.lead_of_command(&command));
        leads.next().or_else(|| {
            let is_own = self.lead_of_words(&target.words) == Some(GatewayLead::Own);
            is_own.then_some(GatewayLead::Unclear)
        })
    }

    fn lead_of_command(&self, command: &LocalCommand) -> Option<GatewayLead> {
        if let Some(arguments) = command.bridge_arguments() {
            return self.lead_of_words(arguments);
        }
        let arguments = command.goblin_arguments()?.iter().cloned();
        let parsed = Cli::try_parse_from(std::iter::once("goblin".to_owned()).chain(arguments));
        let config = match parsed.map(|cli| cli.command) {
            Ok(Command::Stdio(Stdio { url: Some(url), .. })) => return self.lead_of_url(&url),
            Ok(Command::Stdio(stdio)) => command.config_of(&stdio.source),
            Ok(Command::Serve(serve)) => command.config_of(&serve.source),
            // No other command is an MCP server.
            _ => return Some(GatewayLead::Own),
        };
        let config = Identity::of_file(&config?, "", Path::new("/"));
        match config.is_same_place(&self.own) {
            true => Some(GatewayLead::Own),
            false => Some(GatewayLead::Other(format!("the gateway of {}", config.place()))),
        }
    }

    /// Returns the gateway with a URL that is one of these words, or the value of an option among them.
    fn lead_of_words(&self, words: &[String]) -> Option<GatewayLead> {
        let urls = words.iter().flat_map(|word| [Some(word.as_str()), word.split_once('=').map(|(_, value)| value)]);
        urls.flatten().find_map(|url| self.lead_of_url(url))
    }

    fn lead_of_url(&self, url: &str) -> Option<GatewayLead> {
        if let Some(record) = self.running.iter().find(|record| record.is_endpoint(url)) {
            return Some(match record.identity.is_same_place(&self.own) {
                true => GatewayLead::Own,
                false => GatewayLead::Other(format!("the gateway of {}", record.identity.place())),
            });
        }
        // The record of a running gateway has the addresses in use, so this one belongs to another program.
        let is_running = self.running.iter().any(|record| record.identity.is_same_place(&self.own));
        let Gateway { host, port, tcp, .. } = &self.gateway;
        (!is_running && *tcp && *port > 0 && is_gateway_url(url, host, *port)).then_some(GatewayLead::Own)
    }
}

#[cfg(test)]
mod tests {
    use goblin_client::runtime::identity::Fingerprints;

    use super::*;

    /// Checks an entry while the gateway of the configuration runs at another port than the configured one.
    fn check(members: &[(&str, JsonTree)], expected: Option<&str>) {
        let record = |url: &str, config: &str| {
            let identity = Identity::of_file(Path::new(config), "", Path::new("/"));
            GatewayRecord::new(url.to_owned(), identity, Fingerprints::new([0; 16], &Default::default()))
        };
        let mut with_socket = record("http://127.0.0.1:4000/mcp", "/x/goblin.json");
        with_socket.socket = Some("/x/goblin.sock".into());
        check_with(vec![with_socket, record("http://127.0.0.1:5000/mcp", "/y/goblin.json")], members, expected);
    }

    fn check_with(running: Vec<GatewayRecord>, members: &[(&str, JsonTree)], expected: Option<&str>) {
        let own = Identity::of_file(Path::new("/x/goblin.json"), "", Path::new("/"));
        let known = KnownGateways { own, gateway: Gateway::default(), running };
        let entry = JsonTree::object(members.iter().cloned());
        let lead = known.lead(&EntryTarget::of_entry(&entry, Path::new("/x")));
        let found = lead.map(|lead| match lead {
            GatewayLead::Own => "own".to_owned(),
            GatewayLead::Other(place) => place,
            GatewayLead::Unclear => "unclear".to_owned(),
        });
        assert_eq!(found.as_deref(), expected, "{entry:?}");
    }

    #[test]
    fn use1_an_entry_that_leads_to_a_gateway_is_recognised() {
        let url = |url: &str, expected| check(&[("url", JsonTree::text(url))], expected);
        for host in ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"] {
            for path in ["/mcp", "/mcp/", "/mcp/p/review", "/sse", "/sse/p/review", "/mcp?a=b"] {
                let configured = format!("http://{host}:3000{path}");
                check_with(Vec::new(), &[("url", JsonTree::text(&*configured))], Some("own"));
                url(&configured, None);
                url(&format!("http://{host}:4000{path}"), Some("own"));
                url(&format!("http://{host}:5000{path}"), Some("the gateway of /y/goblin.json"));
            }
        }
        for other in
            ["http://localhost:3001/mcp", "http://example.com:3000/mcp", "http://localhost:3000/other", "${URL}"]
        {
            url(other, None);
        }
        let env = JsonTree::object([("GOBLIN_CONFIG", JsonTree::text("/x/goblin.json"))]);
        let args = JsonTree::texts(["stdio"]);
        check(&[("command", JsonTree::text("goblin")), ("args", args), ("env", env)], Some("own"));
    }

    fn command(words: &[&str], expected: Option<&str>) {
        let args = JsonTree::texts(words[1..].iter().copied());
        check(&[("command", JsonTree::text(words[0])), ("args", args)], expected);
    }

    #[test]
    fn use1_commands_that_are_the_gateway_are_recognised_behind_wrappers_and_bridges() {
        let exe = std::env::current_exe().expect("a path").display().to_string();
        for own in [
            &["goblin", "stdio", "--config", "/x/goblin.json"][..],
            &["/usr/bin/goblin", "stdio", "-c", "goblin.json"],
            &["goblin", "serve", "--config=/x/goblin.json"],
            &[&exe, "stdio", "--config", "/x/goblin.json"],
            &["env", "A=B", "goblin", "stdio", "--config", "/x/goblin.json"],
            &["env", "-i", "-u", "B", "GOBLIN_CONFIG=/x/goblin.json", "goblin", "stdio"],
            &["nice", "-n", "10", "goblin", "stdio", "-c", "goblin.json"],
            &["sh", "-c", "cd /tmp; exec goblin stdio --config /x/goblin.json"],
            &["bash", "-lc", "cd / && cd x && GOBLIN_CONFIG=goblin.json nice goblin stdio"],
            &["npx", "mcp-remote", "http://127.0.0.1:4000/mcp"],
            &["npx", "-y", "-p", "x", "mcp-remote@0.1.9", "http://localhost:4000/mcp", "--allow-http"],
            &["uvx", "--from", "mcp-proxy", "mcp-proxy", "http://localhost:4000/sse"],
            &["/opt/bin/supergateway", "--sse=http://localhost:4000/sse"],
            &["sh", "-c", "exec npx -y mcp-remote http://localhost:4000/mcp"],
            &["goblin", "stdio", "--url", "unix:/x/goblin.sock"],
            &["goblin", "stdio", "--url=unix:/x/goblin.sock:/mcp/p/a"],
            &["goblin"],
        ] {
            command(own, Some("own"));
        }
        command(&["goblin", "stdio", "--config", "/y/goblin.json"], Some("the gateway of /y/goblin.json"));
        command(&["npx", "mcp-remote", "http://127.0.0.1:5000/mcp"], Some("the gateway of /y/goblin.json"));
    }

    #[test]
    fn use1_agents_and_other_machines_are_not_rejected() {
        for unclear in [
            &["my-agent", "--mcp", "http://127.0.0.1:4000/mcp"][..],
            &["npx", "-y", "my-agent", "--mcp=http://localhost:4000/mcp"],
            &["uv", "run", "agent.py", "http://localhost:4000/mcp"],
            &["ssh", "devbox", "mcp-remote", "http://localhost:4000/mcp"],
        ] {
            command(unclear, Some("unclear"));
        }
        for none in [
            &["npx", "server", "/srv/goblin"][..],
            &["goblins", "stdio"],
            &["goblin", "stdio", "--url", "http://h/mcp"],
            &["ssh", "devbox", "goblin", "stdio", "--config", "/x/goblin.json"],
            &["docker", "exec", "-i", "box", "goblin", "stdio", "--config", "/x/goblin.json"],
            &["my-agent", "--mcp-command", "goblin stdio --config /x/goblin.json"],
            &["sh", "-c", "goblin stdio --config /x/goblin.json | my-agent"],
            &["sh", "-c", "goblin serve --config /x/goblin.json & exec my-server"],
            &["env", "-S", "goblin stdio"],
            &["sh", "script"],
        ] {
            command(none, None);
        }
    }
}
