//! Tests that parse whole files into configurations or problems.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::admin::{AdminSettings, ListenAddress};
use crate::expand::ExpandedText;
use crate::file::ConfigOrigin;
use crate::lists::{Refresh, Unlisted};
use crate::oauth::{Callback, CallbackHost, Grant, OAuthOptions, PrivateKey, ResourceIndicator};
use crate::schema::{IGNORED, ObjectKeys};
use crate::secret::Secret;
use crate::{
    Config, Declare, Files, HttpKind, LogFormat, LogLevel, NamePolicy, Protocol, Root, Server, ServerId, ServerIdError,
    Sharing, Timeout, Transport, UriPolicy, parse,
};

mod oauth;
mod permissions;
mod problems;
mod properties;
mod views;

fn environment(name: &str) -> Option<String> {
    match name {
        "TOKEN" => Some("s3cret-0123456789".to_owned()),
        "HOME" => Some("/srv/me".to_owned()),
        "BROKEN" => Some("a\nb".to_owned()),
        _ => None,
    }
}

fn origin() -> ConfigOrigin {
    ConfigOrigin::new("goblin.json", "/etc/goblin")
}

pub(crate) fn accept(text: &str) -> Config {
    let loaded = parse(text, &origin(), &environment).unwrap_or_else(|problems| panic!("{problems}\nin {text}"));
    assert_eq!(loaded.warnings, [], "{text}");
    loaded.config
}

/// Returns the only server of a file with these members.
fn accept_server(members: &str) -> Server {
    let config = accept(&format!("{{ \"mcpServers\": {{ \"a\": {{ {members} }} }} }}"));
    Server::clone(&config.servers["a"])
}

/// A file with every key under its own name and a value other than the default.
pub(crate) const FULL: &str = r#"{
  "$schema": "./goblin.schema.json",
  "gateway": {
    "host": "0.0.0.0", "port": 0, "allowedHosts": ["Goblin.example:3000"], "allowedOrigins": ["https://app.example"],
    "tcp": false, "socket": "run/goblin.sock",
    "maxSessions": 5, "sessionIdleTimeout": "1h", "maxBodySize": "1MB", "maxMemory": "2GiB", "grace": "0", "startWait": "0s", "listingCache": false,
    "token": "${TOKEN}",
  },
  "namespacing": { "tools": "none", "prompts": "none", "resources": "identifier", "separator": "__", "shorten": false, "maxLength": 60 },
  "policies": {
    "defaultTimeout": "10s", "maxTimeout": 0, "askTimeout": "2m", "startTimeout": "200ms", "maxInFlight": 1,
    "maxInFlightPerBackend": 2, "maxMessageSize": 65536, "pageSize": 3,
  },
  "subscriptions": { "maxPerClient": 7, "maxTotal": 8, "maxUpstream": 9 },
  "log": { "level": "debug", "format": "json", "audit": true },
  "admin": { "enabled": false, "listen": "[::1]:3001", "tokenFile": "admin.token", "token": "0123456789abcdef" },
  "telemetry": { "otlp": "http://127.0.0.1:4318/${TOKEN}" },
  "exposure": { "mode": "auto", "pinned": ["local_*"], "autoAbove": 0, "reveal": true, "clients": {
    "Cur*": { "mode": "search", "pinned": [], "autoAbove": 1, "reveal": false }, "claude-code": "all" } },
  "metaTools": { "enabled": true, "prefix": "goblin_" },
  "profiles": {
    "review": {
      "servers": ["local", "re*"], "exposure": "search", "prompts": ["local_*"], "resources": { "deny": ["docs://a"] },
      "tools": { "allow": ["seek*"], "deny": ["seek_x"], "rename": { "seek": "find" }, "describe": { "seek": "Finds.\nAll." } },
    },
    "all": {},
  },
  "mcpServers": {
    "local": { // a command
      "type": "stdio", "command": "${HOME}/bin/x", "args": ["-t", "${TOKEN}"], "env": { "T": "${env:TOKEN}" }, "cwd": "./sub/../w",
      "inherit": ["EXTRA", "MORE_*"], "enabled": false, "session": "shared", "protocol": "legacy", "prefix": "", "timeout": "5m", "poll": "1s", "refresh": "2m", "unlisted": "forward", "validate": true,
      "namespacing": "prefix", "declare": ["sampling"], "roots": ["src", { "uri": "file:///srv", "name": "all" }],
      "tools": { "allow": ["find_*"], "deny": ["find_x"], "rename": { "find_a": "seek" }, "timeouts": { "slow": "0", "b": "1h" } },
      "prompts": { "allow": [], "deny": ["*"], "rename": { "p": "q" } },
      "resources": { "allow": ["file:///*"], "deny": [], "rename": { "file:///a": "docs://a" } },
    },
    "remote": { /* a URL */
      "type": "http", "url": "https://search.example/mcp", "headers": { "Authorization": "Bearer ${TOKEN}" },
      "tls": { "ca": "ca.pem" }, "session": "per-client", "maxClients": 7, "declare": [],
    },
    "hosted": {
      "type": "http", "url": "https://hosted.example/mcp", "oauth": {
        "clientId": "goblin", "clientSecret": "${TOKEN}", "issuer": "https://id.example", "scopes": ["read", "write"], "resource": false,
        "authServerMetadataUrl": "https://id.example/metadata", "callbackHost": "localhost", "callbackPort": 8085, "grant": "authorization_code",
      },
    },
    "machine": {
      "type": "http", "url": "https://hosted.example/mcp",
      "oauth": { "grant": "client_credentials", "clientId": "robot", "privateKey": "${TOKEN}", "keyId": "k1" },
    },
    "workspace": { "type": "files", "root": "${HOME}/work", "hidden": true, "ignored": true, "maxFiles": 7 },
  },
}"#;

#[test]
fn a_minimal_file_gets_the_documented_defaults() {
    let config = accept(r#"{ "mcpServers": { "a": { "command": "x" } } }"#);
    let empty = Config::default();
    assert_eq!((&config.gateway, &config.policies, &config.log), (&empty.gateway, &empty.policies, &empty.log));
    assert_eq!((config.log.audit, config.telemetry.otlp), (false, None));
    assert_eq!((config.gateway.host.as_str(), config.gateway.port), ("127.0.0.1", 3000));
    assert_eq!(config.gateway.session_idle_timeout, Duration::from_secs(1800));
    assert_eq!(config.policies.max_timeout, Some(Duration::from_secs(3600)));
    assert_eq!(config.policies.ask_timeout, Some(Duration::from_secs(300)));
    assert_eq!((config.gateway.max_body_size, config.policies.max_message_size), (4 << 20, 16 << 20));
    let server = &config.servers["a"];
    assert_eq!((server.session, server.max_clients, server.roots.as_slice()), (Sharing::Shared, 100, &[][..]));
    assert_eq!(server.declare, Declare { sampling: true, elicitation: true });
    assert_eq!((server.prefix.as_str(), server.enabled, server.timeout), ("a", true, None));
    assert_eq!((server.refresh, server.poll), (Refresh::Auto, None));
    assert_eq!((server.namespacing.tools, server.namespacing.resources), (NamePolicy::Prefix, UriPolicy::Uri));
    assert_eq!((server.namespacing.separator.as_str(), server.namespacing.max_length), ("_", 48));
    let Transport::Stdio { cwd, .. } = &server.transport else { panic!("not stdio") };
    assert_eq!(cwd, Path::new("/etc/goblin"));
}

#[test]
fn every_key_is_accepted() {
    let elsewhere = ["disabled", "includeTools", "excludeTools", "path"];
    let properties = ObjectKeys::ALL.iter().flat_map(|object| object.properties());
    let is_own = |description: &str| description != IGNORED && !description.starts_with("the same as");
    let own = properties.filter(|(_, property)| property["description"].as_str().is_some_and(is_own));
    for (key, _) in own.filter(|(key, _)| !elsewhere.contains(&key.as_str())) {
        assert!(FULL.contains(&format!("\"{key}\":")), "FULL lacks {key}");
    }

    let config = accept(FULL);
    assert_eq!(config.gateway.host, "0.0.0.0");
    assert_eq!((config.gateway.tcp, config.gateway.socket), (false, Some("/etc/goblin/run/goblin.sock".into())));
    assert_eq!(config.gateway.allowed_hosts, ["goblin.example:3000"]);
    assert_eq!(config.gateway.token.as_ref().unwrap().expose(), "s3cret-0123456789");
    assert_eq!(config.gateway.grace, Duration::ZERO);
    let listen = ListenAddress { host: "::1".to_owned(), port: 3001 };
    let token_file = Some("/etc/goblin/admin.token".into());
    let token = Some(Secret::new("0123456789abcdef"));
    assert_eq!(config.admin, AdminSettings { enabled: false, listen: Some(listen), token_file, token });
    assert_eq!((config.gateway.max_sessions, config.gateway.max_body_size), (5, 1_000_000));
    assert_eq!(config.gateway.max_memory, Some(2 << 30));
    assert_eq!(config.policies.default_timeout, Some(Duration::from_secs(10)));
    assert_eq!((config.policies.max_timeout, config.policies.ask_timeout), (None, Some(Duration::from_secs(120))));
    assert_eq!((config.policies.max_in_flight, config.policies.max_in_flight_per_backend), (1, 2));
    assert_eq!((config.policies.max_message_size, config.policies.page_size), (65536, 3));
    let limits = config.policies.subscriptions;
    assert_eq!((limits.per_client, limits.total, limits.upstream), (7, 8, 9));
    assert_eq!((config.log.level, config.log.format, config.log.audit), (Some(LogLevel::Debug), LogFormat::Json, true));
    assert_eq!(config.telemetry.otlp.as_deref(), Some("http://127.0.0.1:4318/s3cret-0123456789"));
    assert_eq!(
        config.servers.keys().map(ServerId::as_str).collect::<Vec<_>>(),
        ["local", "remote", "hosted", "machine", "workspace"]
    );
}

#[test]
fn every_member_of_a_server_is_read() {
    let config = accept(FULL);
    let local = &config.servers["local"];
    let Transport::Stdio { command, args, env, cwd, .. } = &local.transport else { panic!("not stdio") };
    assert_eq!(
        (command.value(), args.iter().map(ExpandedText::value).collect::<Vec<_>>()),
        ("/srv/me/bin/x", vec!["-t", "s3cret-0123456789"])
    );
    assert_eq!((env["T"].expose(), cwd.as_path()), ("s3cret-0123456789", Path::new("/etc/goblin/sub/../w")));
    assert_eq!((local.enabled, local.validate, local.protocol), (false, true, Protocol::Legacy));
    assert_eq!((local.prefix.as_str(), local.namespacing.tools), ("", NamePolicy::Prefix));
    assert_eq!((local.refresh, local.unlisted), (Refresh::Every(Duration::from_secs(120)), Unlisted::Forward));
    assert_eq!((local.namespacing.separator.as_str(), local.namespacing.max_length), ("__", 60));
    assert!(local.tools.filter.admits("find_a") && !local.tools.filter.admits("find_x"));
    assert!(!local.prompts.filter.admits("p") && local.resources.filter.admits("file:///b"));
    assert_eq!(local.resources.rename["file:///a"], "docs://a");
    assert_eq!(local.declare, Declare { sampling: true, elicitation: false });
    assert_eq!(local.roots, [root("file:///etc/goblin/src", None), root("file:///srv", Some("all"))]);
    let of = |tool| local.timeout_of(tool, &config.policies);
    assert_eq!((of("slow"), of("b")), (None, Some(Duration::from_secs(3600))));
    assert_eq!(of("other"), Some(Duration::from_secs(300)));

    let remote = &config.servers["remote"];
    let Transport::Http { kind: HttpKind::Streamable, url, headers, ca, oauth: None } = &remote.transport else {
        panic!("not http")
    };
    assert_eq!((url.value(), ca.clone()), ("https://search.example/mcp", Some(PathBuf::from("/etc/goblin/ca.pem"))));
    assert_eq!((headers[0].0.as_str(), headers[0].1.expose()), ("authorization", "Bearer s3cret-0123456789"));
    assert_eq!(remote.namespacing.resources, UriPolicy::Identifier);
    assert_eq!((remote.session, remote.max_clients), (Sharing::PerClient, 7));
    assert_eq!(remote.declare, Declare { sampling: false, elicitation: false });
    assert_eq!(remote.timeout_of("any", &config.policies), Some(Duration::from_secs(10)));
    assert!(!format!("{config:?}").contains("Bearer s3cret-0123456789"));

    let Transport::Http { oauth: Some(hosted), .. } = &config.servers["hosted"].transport else { panic!("no login") };
    let expected = OAuthOptions {
        client_id: Some("goblin".to_owned()),
        client_secret: Some(Secret::new("s3cret-0123456789")),
        issuer: Some("https://id.example".to_owned()),
        metadata_url: Some("https://id.example/metadata".to_owned()),
        scopes: Some(vec!["read".to_owned(), "write".to_owned()]),
        resource: ResourceIndicator::Omitted,
        callback: Callback { host: CallbackHost::Localhost, port: Some(8085) },
        grant: Grant::AuthorizationCode,
    };
    assert_eq!(*hosted, expected);
    let Transport::Http { oauth: Some(machine), .. } = &config.servers["machine"].transport else { panic!("no login") };
    let key = PrivateKey { pem: Secret::new("s3cret-0123456789"), id: Some("k1".to_owned()) };
    assert_eq!(machine.grant, Grant::ClientCredentials(Some(key)));

    let root = PathBuf::from("/srv/me/work");
    let files = Files { hidden: true, ignored: true, max_files: 7, ..Files::at(root) };
    assert_eq!(config.servers["workspace"].transport, Transport::Files(files));
}

fn root(uri: &str, name: Option<&str>) -> Root {
    Root { uri: uri.to_owned(), name: name.map(str::to_owned) }
}

#[test]
fn roots_are_paths_or_uris() {
    for (written, expected) in [
        ("[]", vec![]),
        (r#"["."]"#, vec![root("file:///etc/goblin", None)]),
        (r#"["/"]"#, vec![root("file:///", None)]),
        (r#"["../my work/"]"#, vec![root("file:///etc/my%20work", None)]),
        (
            r#"["${HOME}/a", "file://${HOME}/a%20b"]"#,
            vec![root("file:///srv/me/a", None), root("file:///srv/me/a%20b", None)],
        ),
        (
            r#"[{ "uri": "a", "name": "A b" }, { "uri": "file:///x/" }]"#,
            vec![root("file:///etc/goblin/a", Some("A b")), root("file:///x/", None)],
        ),
        (r#"[{ "uri": "/x", "name": null }]"#, vec![root("file:///x", None)]),
    ] {
        assert_eq!(accept_server(&format!(r#""command": "x", "roots": {written}"#)).roots, expected, "{written}");
    }
    let many = vec!["\"x\""; 100].join(",");
    assert_eq!(accept_server(&format!(r#""command": "x", "roots": [{many}]"#)).roots.len(), 100);
}

#[test]
fn an_ask_timeout_of_zero_means_no_limit() {
    let config = accept(r#"{ "mcpServers": {}, "policies": { "askTimeout": 0 } }"#);
    assert_eq!(config.policies.ask_timeout, None);
}

#[test]
fn a_root_or_the_type_files_makes_a_files_server() {
    let files = |members: &str| match accept_server(members).transport {
        Transport::Files(files) => files,
        other => panic!("{members}: {other:?}"),
    };
    let here = Files::at("/etc/goblin".into());
    assert_eq!((here.hidden, here.ignored, here.max_files), (false, false, 10_000));
    assert_eq!(files(r#""type": "files""#), here);
    assert_eq!(files(r#""root": ".""#), here);
    assert_eq!(files(r#""root": "sub""#).root, Path::new("/etc/goblin/sub"));
    assert_eq!(files(r#""transport": "files", "root": "/srv""#).root, Path::new("/srv"));
}

#[test]
fn keys_of_other_clients_mean_the_same() {
    let typed = accept(r#"{ "mcpServers": { "a": { "type": "http", "url": "http://x/mcp" } } }"#);
    for text in [
        r#"{ "servers": { "a": { "type": "http", "url": "http://x/mcp", "gallery": "https://g" } } }"#,
        r#"{ "mcpServers": { "a": { "transport": "streamable-http", "url": "http://x/mcp" } } }"#,
        r#"{ "mcpServers": { "a": { "type": "streamableHttp", "url": "http://x/mcp", "autoApprove": [], "alwaysAllow": [] } } }"#,
    ] {
        assert_eq!(accept(text), typed, "{text}");
    }
    let own = accept(r#"{ "mcpServers": { "a": { "url": "http://x/mcp" } } }"#);
    for text in [
        r#"{ "context_servers": { "a": { "url": "http://x/mcp" } } }"#,
        r#"{ "mcp_servers": { "a": { "url": "http://x/mcp" } } }"#,
        r#"{ "mcpServers": { "a": { "serverUrl": "http://x/mcp", "disabled": false } } }"#,
        r#"{ "mcpServers": { "a": { "httpUrl": "http://x/mcp", "trust": true } } }"#,
        r#"{ "mcpServers": { "a": { "url": "http://x/mcp", "description": "x", "env": null } } }"#,
    ] {
        assert_eq!(accept(text), own, "{text}");
    }
    let flat = accept_server(r#""command": "x", "args": ["y"], "env": { "K": "v" }"#);
    let zed = accept_server(r#""command": { "path": "x", "args": ["y"], "env": { "K": "v" } }"#);
    assert_eq!(zed, flat);
    assert!(!accept_server(r#""command": "x", "disabled": true"#).enabled);
    assert_eq!(
        accept_server(r#""command": "x", "timeout": 600000"#).timeout,
        Some(Timeout::After(Duration::from_secs(600)))
    );
    assert_eq!(accept_server(r#""command": "x", "timeout": 0"#).timeout, Some(Timeout::Never));
    assert_eq!(
        accept_server(r#""command": "x", "includeTools": ["a*"], "excludeTools": ["ab"]"#).tools,
        accept_server(r#""command": "x", "tools": { "allow": ["a*"], "deny": ["ab"] }"#).tools
    );
}

#[test]
fn the_http_transport_is_read_from_the_type_or_left_unspecified() {
    for (members, expected) in [
        (r#""type": "http", "url": "http://x""#, HttpKind::Streamable),
        (r#""type": "sse", "url": "http://x""#, HttpKind::Sse),
        (r#""transport": "sse", "serverUrl": "http://x""#, HttpKind::Sse),
        (r#""url": "http://x""#, HttpKind::Unspecified),
    ] {
        match accept_server(members).transport {
            Transport::Http { kind, .. } => assert_eq!(kind, expected, "{members}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn namespacing_of_a_server_overrides_the_global_one() {
    let of = |global: &str, own: &str| {
        let text = format!(
            r#"{{ "namespacing": {global}, "mcpServers": {{ "a": {{ "command": "x", "namespacing": {own} }} }} }}"#
        );
        accept(&text).servers["a"].namespacing.clone()
    };
    let none = of(r#""none""#, "{}");
    assert_eq!((none.tools, none.prompts, none.resources), (NamePolicy::None, NamePolicy::None, UriPolicy::None));
    let mixed = of(r#"{ "separator": "--", "maxLength": 64 }"#, r#"{ "tools": "none", "maxLength": 100 }"#);
    assert_eq!((mixed.tools, mixed.prompts, mixed.resources), (NamePolicy::None, NamePolicy::Prefix, UriPolicy::Uri));
    assert_eq!((mixed.separator.as_str(), mixed.max_length), ("--", 100));
    let back = of(r#""none""#, r#""prefix""#);
    assert_eq!((back.tools, back.prompts, back.resources), (NamePolicy::Prefix, NamePolicy::Prefix, UriPolicy::Uri));
}

#[test]
fn server_ids_fold_as_d1_requires() {
    for (id, expected) in [
        ("filesystem", "filesystem"),
        ("My_Server", "my-server"),
        ("a__b  c", "a-b-c"),
        ("a.b-c", "a.b-c"),
        ("1st", "x-1st"),
        ("-a", "x--a"),
        ("日本", "x--"),
        ("a+b", "a-b"),
        ("\u{212A}elvin", "x--elvin"),
    ] {
        assert_eq!(ServerId::new(id).unwrap().folded(), expected, "{id}");
    }
}

#[test]
fn an_invalid_server_id_is_rejected() {
    assert_eq!(ServerId::new(""), Err(ServerIdError::Empty));
    assert_eq!(ServerId::new("a\tb"), Err(ServerIdError::Control));
    assert_eq!(ServerId::new(&"é".repeat(65)), Err(ServerIdError::TooLong));
    assert_eq!(ServerId::new(&"é".repeat(64)).unwrap().as_str().len(), 128);
}
