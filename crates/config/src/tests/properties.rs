//! Properties that hold for every text and every pair of configurations.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::{FULL, accept, environment, origin};
use crate::admin::AdminSettings;
use crate::diff::{Depth, depth, diff};
use crate::exposure::{Exposure, ExposureMode, MetaListing, MetaTools, Profile, ProfileName, ProfileTools};
use crate::glob::Glob;
use crate::inherit::Inherit;
use crate::lists::{Refresh, Unlisted};
use crate::misconfigured::Misconfiguration;
use crate::secret::Secret;
use crate::target::Target;
use crate::{
    Config, Declare, Filter, Gateway, HttpKind, Log, LogLevel, Namespacing, Policies, Protocol, ResourceRules, Root,
    Rules, Server, ServerId, Sharing, Telemetry, Timeout, ToolRules, Transport, parse,
};

/// Generates few values for each member, so two arbitrary configurations often share some.
fn transports() -> impl Strategy<Value = Transport> {
    let env = || btree_map("[AB]", "[xy]".prop_map(Secret::new), 0..2);
    prop_oneof![
        ("[xy]", vec("[a-c]", 0..3), env()).prop_map(|(command, args, env)| Transport::Stdio {
            command: command.as_str().into(),
            args: args.iter().map(|argument: &String| argument.as_str().into()).collect(),
            env,
            inherit: Inherit::default(),
            cwd: PathBuf::from("/"),
        }),
        ("http://[xy]/", vec(("[ab]", "[xy]".prop_map(Secret::new)), 0..2)).prop_map(|(url, headers)| {
            let url = url.as_str().into();
            Transport::Http { kind: HttpKind::Unspecified, url, headers, ca: None, oauth: None }
        }),
        Just(Transport::Misconfigured(Misconfiguration {
            kind: "stdio",
            target: Target::Command(String::new()),
            problems: Vec::new(),
        })),
    ]
}

fn servers() -> impl Strategy<Value = Arc<Server>> {
    let timeout = prop_oneof![Just(Timeout::Never), Just(Timeout::After(Duration::from_secs(1)))];
    let filter = vec("[ab*]{1,2}".prop_map(|text| Glob::new(&text).unwrap()), 0..2)
        .prop_map(|deny| Filter { deny, ..Filter::default() });
    let session = prop_oneof![Just(Sharing::Shared), Just(Sharing::PerClient)];
    let declare = any::<bool>().prop_map(|sampling| Declare { sampling, ..Declare::default() });
    let roots = vec("file:///[xy]".prop_map(|uri| Root { uri, name: None }), 0..2);
    let link = (transports(), any::<bool>(), session, declare, roots);
    let surface = (any::<bool>(), "[pq]?", option::of(timeout), filter, 1usize..3);
    (link, surface).prop_map(|(link, surface)| {
        let (transport, legacy, session, declare, roots) = link;
        let (enabled, prefix, timeout, filter, max_clients) = surface;
        Arc::new(Server {
            transport,
            protocol: if legacy { Protocol::Legacy } else { Protocol::Auto },
            session,
            declare,
            roots,
            max_clients,
            enabled,
            prefix,
            namespacing: Namespacing::default(),
            timeout,
            unlisted: if legacy { Unlisted::Forward } else { Unlisted::Reject },
            poll: enabled.then_some(Duration::from_secs(1)),
            refresh: if enabled { Refresh::Auto } else { Refresh::Never },
            validate: false,
            tools: ToolRules { filter, rename: BTreeMap::new(), timeouts: BTreeMap::new() },
            prompts: Rules::default(),
            resources: ResourceRules::default(),
        })
    })
}

fn exposures() -> impl Strategy<Value = Exposure> {
    let mode = prop_oneof![Just(ExposureMode::All), Just(ExposureMode::Search), Just(ExposureMode::Auto)];
    (mode, 0usize..2, any::<bool>()).prop_map(|(mode, auto_above, reveal)| Exposure {
        mode,
        auto_above,
        reveal,
        ..Exposure::default()
    })
}

fn profiles() -> impl Strategy<Value = BTreeMap<ProfileName, Arc<Profile>>> {
    let name = "[pq]".prop_map(|text| ProfileName::new(&text).unwrap());
    let profile = (exposures(), btree_map("[ab]", "[xy]", 0..2)).prop_map(|(exposure, rename)| {
        let tools = ProfileTools { rename, ..ProfileTools::default() };
        Arc::new(Profile { exposure, tools, ..Profile::default() })
    });
    btree_map(name, profile, 0..3)
}

fn configs() -> impl Strategy<Value = Config> {
    let id = "[a-f]".prop_map(|text| ServerId::new(&text).unwrap());
    let settings = (1u16..3, 1usize..3, any::<bool>());
    let views = (exposures(), any::<bool>(), profiles());
    (vec((id, servers()), 0..6), settings, views).prop_map(|(servers, settings, views)| {
        let (port, page_size, debug) = settings;
        let (exposure, is_listed, profiles) = views;
        let enabled = if is_listed { MetaListing::Always } else { MetaListing::Never };
        Config {
            gateway: Gateway { port, ..Gateway::default() },
            policies: Policies { page_size, ..Policies::default() },
            log: Log { level: debug.then_some(LogLevel::Debug), ..Log::default() },
            admin: AdminSettings { enabled: !debug, ..AdminSettings::default() },
            telemetry: Telemetry { otlp: debug.then(|| "http://127.0.0.1:4318".to_owned()) },
            exposure,
            meta_tools: MetaTools { enabled, ..MetaTools::default() },
            namespacing: Namespacing { shorten: debug, ..Namespacing::default() },
            profiles,
            servers: servers.into_iter().collect(),
        }
    })
}

proptest! {
    #[test]
    fn a_plan_turns_the_old_configuration_into_the_new_one(old in configs(), new in configs()) {
        let plan = diff(&old, &new);
        let running = |config: &Config| -> BTreeMap<ServerId, Arc<Server>> {
            let servers = config.servers.iter().filter(|(_, server)| server.is_runnable());
            servers.map(|(id, server)| (id.clone(), Arc::clone(server))).collect()
        };
        let mut reached = running(&old);
        plan.stop.iter().for_each(|id| drop(reached.remove(id)));
        reached.extend(plan.start);
        reached.extend(plan.change.into_iter().map(|change| (change.id, change.server)));
        // A running server with a misconfigured new entry keeps its old one.
        let kept = plan.keep.iter().map(|id| (id.clone(), Arc::clone(&old.servers[id])));
        prop_assert_eq!(reached, running(&new).into_iter().chain(kept).collect::<BTreeMap<_, _>>());
        for id in &plan.keep {
            prop_assert!(new.servers[id].enabled && new.servers[id].misconfiguration().is_some());
        }
    }

    #[test]
    fn a_plan_starts_stopped_servers_and_stops_running_ones(old in configs(), new in configs()) {
        let plan = diff(&old, &new);
        let runs = |config: &Config, id: &ServerId| config.servers.get(id).is_some_and(|server| server.is_runnable());
        for (id, _) in &plan.start {
            prop_assert!(!runs(&old, id) && runs(&new, id));
        }
        for id in &plan.stop {
            prop_assert!(runs(&old, id) && !new.servers.get(id).is_some_and(|server| server.enabled));
        }
        for change in &plan.change {
            prop_assert!(runs(&old, &change.id) && runs(&new, &change.id));
            let link = |server: &Server| {
                let Server { transport, protocol, session, declare, roots, poll, .. } = server.clone();
                (transport, protocol, session, declare, roots, poll.is_some())
            };
            let same_link = link(&old.servers[&change.id]) == link(&change.server);
            prop_assert_eq!(same_link, depth(&old.servers[&change.id], &change.server) == Depth::Surface);
        }
    }

    #[test]
    fn parsing_any_text_does_not_panic(text in any::<String>()) {
        let _ = parse(&text, &origin(), &environment);
    }

    /// Replaces a piece of a valid file. The result passes the parser often enough to reach the readers.
    #[test]
    fn problems_of_a_damaged_file_have_a_line_and_show_no_secret(
        start in 0..FULL.len(),
        length in 0usize..12,
        piece in prop_oneof!["[\\[\\]{}:,\"0-9a-z$\u{e9} \r\n-]{0,6}", Just("null".to_owned()), Just("[{}]".to_owned())],
    ) {
        let end = (start + length).min(FULL.len());
        let text = format!("{}{piece}{}", &FULL[..start], &FULL[end..]);
        if let Err(problems) = parse(&text, &origin(), &environment) {
            // A lone carriage return also ends a line.
            let lines = 1 + text.matches(['\r', '\n']).count();
            for problem in problems.iter() {
                prop_assert!((1..=lines).contains(&problem.line.unwrap_or_default()), "{}", problem);
                prop_assert!(!problem.to_string().contains("s3cret"), "{}", problem);
                prop_assert!(!problem.to_string().contains('\n'), "{}", problem);
            }
        }
    }
}

#[test]
fn a_plan_from_the_empty_configuration_starts_all_enabled_servers() {
    let config = accept(FULL);
    let plan = diff(&Config::default(), &config);
    assert_eq!(
        plan.start.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(),
        ["remote", "hosted", "machine", "workspace"]
    );
    assert!(plan.stop.is_empty() && plan.change.is_empty());
    let none = diff(&config, &config);
    assert!(none.start.is_empty() && none.change.is_empty() && none.stop.is_empty());
}

/// Random configurations rarely differ in one member only.
#[test]
fn a_change_of_connection_settings_replaces_the_connection() {
    let file = |members: &str| accept(&format!(r#"{{ "mcpServers": {{ "a": {{ "command": "x"{members} }} }} }}"#));
    for (old, new, expected) in [
        ("", r#", "args": ["y"]"#, Depth::Connection),
        ("", r#", "protocol": "legacy""#, Depth::Connection),
        ("", r#", "session": "per-client""#, Depth::Connection),
        ("", r#", "declare": ["sampling"]"#, Depth::Connection),
        ("", r#", "roots": ["/x"]"#, Depth::Connection),
        (r#", "session": "per-client""#, r#", "session": "per-client", "maxClients": 5"#, Depth::Surface),
        ("", r#", "timeout": "5s""#, Depth::Surface),
        ("", r#", "poll": "5s""#, Depth::Connection),
        (r#", "poll": "4s""#, r#", "poll": "5s""#, Depth::Surface),
    ] {
        let (old, changed) = (file(old), file(new));
        assert_eq!(diff(&old, &changed).change.len(), 1, "{new}");
        assert_eq!(depth(&old.servers["a"], &changed.servers["a"]), expected, "{new}");
    }
}
