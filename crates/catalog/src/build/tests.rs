use std::sync::Arc;

use goblin_config::ServerId;
use goblin_config::exposure::{ExposureMode, MetaListing};
use goblin_config::file::ConfigOrigin;
use goblin_config::glob::Glob;
use goblin_wire::json::quote;
use goblin_wire::memory::Memory;
use goblin_wire::{Dialect, Text, json};
use parking_lot::{Mutex, MutexGuard};
use proptest::prelude::*;

use super::*;
use crate::instructions::MAX_INSTRUCTIONS;
use crate::known_uris::KnownUris;
use crate::listing::Listing;

/// A server without a connection.
pub(crate) struct TestServer {
    id: ServerId,
    config: Arc<Server>,
    known_uris: Mutex<KnownUris>,
}

impl Upstream for TestServer {
    type Calls = ();

    fn id(&self) -> &ServerId {
        &self.id
    }

    fn config(&self) -> &Arc<Server> {
        &self.config
    }

    fn known_uris(&self) -> MutexGuard<'_, KnownUris> {
        self.known_uris.lock()
    }

    fn calls_of(&self, _tool: &str) -> Arc<()> {
        Arc::default()
    }
}

type Source = crate::Source<TestServer>;
pub(crate) type Catalog = crate::Catalog<TestServer>;
/// The version of the clients in tests.
pub(crate) const CLIENT: Dialect = Dialect::V2025_11_25;

/// A backend with these entries and `settings` in its configuration, but without a connection.
pub(crate) struct BackendFixture<'a> {
    id: &'a str,
    settings: &'a str,
    tools: Vec<String>,
    resources: Vec<String>,
    templates: Vec<String>,
}

pub(crate) fn tools<'a>(id: &'a str, names: &[&str]) -> BackendFixture<'a> {
    BackendFixture { id, settings: "", tools: owned(names), resources: vec![], templates: vec![] }
}

pub(crate) fn resources<'a>(id: &'a str, uris: &[&str], templates: &[&str]) -> BackendFixture<'a> {
    BackendFixture { id, settings: "", tools: vec![], resources: owned(uris), templates: owned(templates) }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

pub(crate) fn with<'a>(settings: &'a str, offer: BackendFixture<'a>) -> BackendFixture<'a> {
    BackendFixture { settings, ..offer }
}

fn definitions(list: List, natives: &[String]) -> Arc<Vec<Definition>> {
    let definition = |native: &String| {
        let raw = format!(r#"{{"{}":{},"x":1.0}}"#, list.key(), quote(native));
        let native_at = json::member(&raw, json::whole(&raw), list.key()).expect("the key");
        Definition { raw: Text::new(raw.into()).expect("UTF-8"), native: native.as_str().into(), native_at }
    };
    Arc::new(natives.iter().map(definition).collect())
}

/// Returns the settings of a gateway that does not list its own tools.
pub(crate) fn catalog_settings() -> CatalogSettings {
    let mut config = Config::default();
    config.meta_tools.enabled = MetaListing::Never;
    CatalogSettings::new(&config)
}

fn source(offer: &BackendFixture<'_>) -> Source {
    let text = format!(r#"{{"mcpServers":{{{}:{{"command":"x"{}}}}}}}"#, quote(offer.id), offer.settings);
    let loaded =
        goblin_config::parse(&text, &ConfigOrigin::new("test.json", "/"), &|_| None).expect("a valid configuration");
    let id = ServerId::new(offer.id).expect("a valid id");
    let server = Arc::clone(&loaded.config.servers[&id]);
    let offered = [&offer.tools[..], &[], &offer.resources, &offer.templates];
    let lists = List::ALL.map(|list| definitions(list, offered[list as usize]));
    let listing = Listing { lists, ..Listing::default() };
    Source {
        backend: Arc::new(TestServer {
            id,
            config: server,
            known_uris: Mutex::new(KnownUris::new(&Arc::<Memory>::default())),
        }),
        listing: Arc::new(listing),
    }
}

pub(crate) fn catalog(offers: &[BackendFixture<'_>]) -> Catalog {
    build(1, &catalog_settings(), offers.iter().map(source).collect())
}

/// Returns the owner of `uri` as `id native`, or the candidates if it is ambiguous.
pub(crate) fn owner(catalog: &Catalog, uri: &str) -> String {
    match catalog.resources.find(&catalog.sources, uri) {
        Ok(owner) => format!("{} {}", catalog.source(owner.source).backend.id(), owner.native),
        Err(goblin_wire::Error::ResourceNotFound { candidates, .. }) => candidates.join(" or "),
        Err(other) => panic!("{other}"),
    }
}

fn exposed(catalog: &Catalog) -> Vec<&str> {
    catalog.resources.entries.iter().map(|entry| &*entry.exposed).collect()
}

#[test]
fn d4_a_contested_name_finds_no_tool_and_lists_its_candidates() {
    let catalog = catalog(&[tools("a", &["b_c"]), tools("a_b", &["c"])]);
    let view = catalog.view(CLIENT);
    let Err(goblin_wire::Error::ToolNotFound { candidates, .. }) = view.tool("a_b_c") else {
        panic!("the bare name must have no owner")
    };
    assert_eq!(candidates.len(), 2);
    let owners: Vec<_> =
        candidates.iter().map(|name| view.tool(name).expect("a candidate").1.native.to_string()).collect();
    assert_eq!(owners, ["b_c", "c"]);
}

#[test]
fn reg9_an_alias_replaces_the_minted_name_and_takes_part_in_conflicts() {
    let renamed = with(r#","tools":{"rename":{"t":"b_u"}}"#, tools("a", &["t"]));
    let alone = catalog(&[renamed]);
    assert_eq!(&*alone.view(CLIENT).tool("b_u").expect("the alias").1.native, "t");
    assert!(alone.view(CLIENT).tool("a_t").is_err());
    let contested = catalog(&[with(r#","tools":{"rename":{"t":"b_u"}}"#, tools("a", &["t"])), tools("b", &["u"])]);
    assert!(contested.view(CLIENT).tool("b_u").is_err());
    assert_eq!(contested.tools.contested.len(), 1);
}

#[test]
fn res8_more_literal_text_wins_between_two_templates() {
    let catalog = catalog(&[resources("a", &[], &["note:///{name}"]), resources("b", &[], &["note:///x{name}"])]);
    assert_eq!(owner(&catalog, "note:///xyz"), "b note:///xyz");
    assert_eq!(owner(&catalog, "note:///yz"), "a note:///yz");
    assert_eq!(owner(&catalog, "a+note:///xyz"), "a note:///xyz");
}

#[test]
fn d3_a_resource_is_found_by_exposed_uri_identifier_or_unique_native_uri() {
    let catalog = catalog(&[
        resources("fs", &["file:///a b", "file:///logs/app.log", "both:1"], &[]),
        resources("db", &["both:1"], &[]),
    ]);
    for (sent, expected) in [
        ("fs+file:///a b", "fs file:///a b"),
        ("fs+:file:///a b", "fs file:///a b"),
        ("fs+file:///a%20b", "fs file:///a b"),
        ("FS+FILE:///a%20b", "fs file:///a b"),
        ("file:///a%20b", "fs file:///a b"),
        ("file:///a b", "fs file:///a b"),
        ("fs_file_logs_app.log", "fs file:///logs/app.log"),
        ("fs_file___logs_app.log", "fs file:///logs/app.log"),
        ("both:1", "fs+both:1 or db+both:1"),
        ("db+both:1", "db both:1"),
        ("file:///nobody", ""),
        ("nobody+both:1", ""),
        ("", ""),
    ] {
        assert_eq!(owner(&catalog, sent), expected, "{sent}");
    }
}

#[test]
fn d1_without_namespacing_a_uri_of_two_backends_is_namespaced_for_both() {
    let none = r#","namespacing":{"resources":"none"}"#;
    let catalog =
        catalog(&[with(none, resources("a", &["x:1", "x:2"], &[])), with(none, resources("b", &["x:1"], &[]))]);
    assert_eq!(exposed(&catalog), ["a+x:1", "b+x:1", "x:2"]);
}

#[test]
fn d2_the_identifier_can_be_the_exposed_uri_and_never_collides() {
    let identifier = r#","namespacing":{"resources":"identifier"}"#;
    let catalog = catalog(&[with(identifier, resources("a", &["x:/1", "x://1", "y:1"], &[]))]);
    let exposed = exposed(&catalog);
    assert_eq!(exposed.len(), 3);
    assert!(exposed.contains(&"a_y_1"), "{exposed:?}");
    let contested: Vec<_> = exposed.iter().filter(|uri| uri.starts_with("a_x_1_")).collect();
    assert_eq!(contested.len(), 2, "{exposed:?}");
    for uri in contested {
        assert!(owner(&catalog, uri).starts_with("a x:"), "{uri}");
    }
}

#[test]
fn res9_a_template_does_not_offer_a_denied_uri() {
    let denied = r#","resources":{"deny":["note:///secret*"]}"#;
    let catalog = catalog(&[with(denied, resources("a", &["note:///secret1", "note:///open"], &["note:///{name}"]))]);
    assert_eq!(exposed(&catalog), ["a+note:///open"]);
    assert_eq!(owner(&catalog, "a+note:///other"), "a note:///other");
    assert_eq!(owner(&catalog, "a+note:///secret2"), "");
}

#[test]
fn hard1_a_denied_uri_is_found_in_no_spelling() {
    let settings = r#","resources":{"deny":["file:///secret*"]}"#;
    let listed = ["file:///secret", "file:///x/../secret", "file:///a%20b"];
    let catalog = catalog(&[with(settings, resources("a", &listed, &["{+any}", "file:///%73ecret/{name}"]))]);
    assert_eq!(exposed(&catalog), ["a+file:///a%20b"]);
    assert_eq!(catalog.resources.templates.len(), 1);
    assert_eq!(owner(&catalog, "a+file:///a%20b"), "a file:///a%20b");
    assert_eq!(owner(&catalog, "a+file:///c%20d"), "a file:///c%20d", "its own spelling");
    catalog.source(0).backend.known_uris().remember("file:///secret", uri::normalise);
    for spelling in
        ["file:///secret", "file:///s%65cret", "file:///./secret", "FILE:///secret", "file:///public/../secret"]
    {
        assert_eq!(owner(&catalog, spelling), "", "{spelling}");
        assert_eq!(owner(&catalog, &format!("a+{spelling}")), "", "{spelling}");
    }
}

#[test]
fn d13_a_remembered_uri_is_offered() {
    let catalog = catalog(&[resources("a", &[], &[])]);
    assert_eq!(owner(&catalog, "a+made:up"), "");
    catalog.source(0).backend.known_uris().remember("made:up", uri::normalise);
    assert_eq!(owner(&catalog, "a+made:up"), "a made:up");
    assert_eq!(owner(&catalog, "made:up"), "a made:up");
}

#[test]
fn d13_an_unlisted_uri_is_forwarded_to_the_server_that_it_names() {
    const FORWARD: &str = r#","unlisted":"forward","resources":{"deny":["file:///secret*"]}"#;
    let is_forwarded = |catalog: &Catalog, uri: &str| {
        catalog.resources.find(&catalog.sources, uri).is_ok_and(|owner| owner.is_forwarded)
    };
    let catalog = catalog(&[
        with(FORWARD, resources("My Server", &["x:listed"], &["db://{id}"])),
        resources("b", &["x:other"], &[]),
    ]);
    for (uri, expected, forwarded) in [
        ("my-server+made:up", "My Server made:up", true),
        ("MY-SERVER+made:up", "My Server made:up", true),
        ("my-server+:made up", "My Server made up", true),
        ("ui://my-server/page", "My Server ui://page", true),
        ("my-server+x:listed", "My Server x:listed", false),
        ("my-server+db://7", "My Server db://7", false),
        ("x:other", "b x:other", false),
        ("my-server+", "", false),
        ("my-server+file:///secret", "", false),
        ("my-server+FILE:/a/../%73ecret", "", false),
        ("b+made:up", "", false),
        ("made:up", "", false),
    ] {
        assert_eq!((owner(&catalog, uri).as_str(), is_forwarded(&catalog, uri)), (expected, forwarded), "{uri}");
    }
}

#[test]
fn d13_without_namespacing_only_a_single_server_receives_unlisted_uris() {
    const BARE: &str = r#","unlisted":"forward","namespacing":"none""#;
    let (a, c) = (|| with(BARE, resources("a", &[], &[])), with(BARE, resources("c", &[], &[])));
    let b = || resources("b", &["b:1"], &[]);
    let one = catalog(&[a(), b()]);
    assert_eq!(owner(&one, "made:up"), "a made:up");
    assert_eq!(owner(&one, "a+made:up"), "a made:up");
    assert_eq!(owner(&one, "b:1"), "b b:1", "an offered URI takes precedence");
    assert_eq!(owner(&one, "b+made:up"), "", "the URI names another server");
    let two = catalog(&[a(), b(), c]);
    assert_eq!(owner(&two, "made:up"), "");
    assert_eq!(owner(&two, "c+made:up"), "c made:up");
    let mixed = catalog(&[a(), with(r#","unlisted":"forward""#, resources("d", &[], &[]))]);
    assert_eq!(owner(&mixed, "made:up"), "", "two servers have the setting");
}

#[test]
fn srv6_instructions_are_joined_under_headings_and_cuts_are_stated() {
    let hello = |text: String| {
        let dialect = Dialect::V2025_11_25;
        let capabilities = goblin_wire::Capabilities::default();
        Arc::new(goblin_wire::Hello {
            dialect,
            capabilities,
            instructions: Some(text),
            extensions: None,
            unknown: Default::default(),
            lists_handshake: false,
            software: String::new(),
        })
    };
    let with_instructions = |text: String, offer: BackendFixture<'_>| {
        let mut source = source(&offer);
        source.listing = Arc::new(Listing { hello: Some(hello(text)), ..(*source.listing).clone() });
        source
    };
    let plain = |id, text: &str| with_instructions(text.to_owned(), tools(id, &[]));
    let joined = |settings: &CatalogSettings, sources: Vec<Source>| {
        build(1, settings, sources).default_lists().instructions.clone().unwrap_or_default()
    };
    let long = "x".repeat(MAX_INSTRUCTIONS);
    let sources = vec![plain("a", "Be kind."), plain("b", &long), plain("c", "Bye.")];
    let expected = "## a\n\nBe kind.\n\n## c\n\nBye.\n\n(Omitted for length: the instructions of b.)";
    assert_eq!(joined(&catalog_settings(), sources), quote(expected));

    let named = |id, text: &str, names: &[&str]| with_instructions(text.to_owned(), tools(id, names));
    let sources = || {
        vec![
            named("git", "Use git_log.", &["git_log", "git_add"]),
            named("db", "Use query.", &["query", "db_drop"]),
            named("x", "Use q.r.", &["q.r"]),
            plain("none", "No tools."),
        ]
    };
    let expected = concat!(
        "## git\n\nUse git_log.\n\n## db\n\nUse query.\n\nTools of this server are listed here as `db_NAME`.\n\n",
        "## x\n\nUse q.r.\n\nOther names here: `q.r` is `x_q_r`.\n\n## none\n\nNo tools.",
    );
    assert_eq!(joined(&catalog_settings(), sources()), quote(expected));

    // In the search mode, instructions of servers without a pinned tool are left out.
    let mut search = catalog_settings();
    search.exposure.mode = ExposureMode::Search;
    search.exposure.pinned = vec![Glob::new("db_*").expect("a pattern")];
    let text = joined(&search, sources());
    assert!(text.contains("`search_tools`") && text.contains("`list_servers` with a `serverId`"), "{text}");
    assert!(text.contains("## db") && text.contains("## none"), "{text}");
    assert!(!text.contains("## git") && !text.contains("## x"), "{text}");
    assert!(!joined(&search, vec![plain("none", "No tools.")]).contains("list_servers"), "nothing is left out");
}

fn offers() -> impl Strategy<Value = Vec<(String, Vec<String>, Vec<String>)>> {
    let names = proptest::collection::btree_set("[a-c_.]{1,4}", 0..5).prop_map(|names| names.into_iter().collect());
    let uris = proptest::collection::btree_set("[a-c]:[a-c/ %_]{0,4}|[a-c ]{1,3}", 0..5)
        .prop_map(|uris| uris.into_iter().collect());
    let servers = proptest::collection::btree_map("[a-c][a-c_]{0,2}", (names, uris), 1..5);
    servers.prop_map(|servers| {
        // The configuration rejects ids that are equal after folding.
        let mut folded = std::collections::HashSet::new();
        let distinct = servers
            .into_iter()
            .filter(|(id, _)| folded.insert(ServerId::new(id).expect("a valid id").folded().to_owned()));
        distinct.map(|(id, (names, uris))| (id, names, uris)).collect()
    })
}

#[test]
fn d21_equal_parts_of_two_catalogs_share_their_memory() {
    let shared = source(&tools("a", &["t", "u"]));
    let base_sources = vec![shared.clone(), source(&resources("b", &["b:1"], &["b:{x}"]))];
    let base = build(1, &catalog_settings(), base_sources.clone());
    // Another client gets one more tool from the first server.
    let mut listing = Listing::clone(&shared.listing);
    listing.lists[List::Tools as usize] = definitions(List::Tools, &owned(&["t", "u", "v"]));
    let own = Source { listing: Arc::new(listing), ..shared };
    let mut catalog = build(2, &catalog_settings(), vec![own, base_sources[1].clone()]);
    catalog.inherit(&base);
    assert!(Arc::ptr_eq(&catalog.resources, &base.resources));
    for (one, other) in base.tools.entries.iter().zip(&catalog.tools.entries) {
        assert_eq!(one.definition.as_ptr(), other.definition.as_ptr(), "{}", one.exposed);
        assert!(Arc::ptr_eq(&one.schema, &other.schema));
    }
    assert_eq!(catalog.tools.entries.len(), 3);
}

proptest! {
    /// Every tool and resource is found under its exposed name and no other. Nothing is lost.
    #[test]
    fn reg5_every_tool_and_resource_is_found_under_its_exposed_name(offers in offers()) {
        let sources: Vec<_> = offers.iter().map(|(id, names, uris)| source(&BackendFixture {
            id, settings: "", tools: names.clone(), resources: uris.clone(), templates: vec![],
        })).collect();
        let catalog = build(1, &catalog_settings(), sources);
        let view = catalog.view(CLIENT);
        let listed: usize = offers.iter().map(|(_, names, _)| names.len()).sum();
        prop_assert_eq!(catalog.tools.entries.len(), listed);
        for entry in &catalog.tools.entries {
            let (_, found) = view.tool(&entry.exposed).expect("a listed tool");
            prop_assert_eq!((found.source, &found.native), (entry.source, &entry.native));
        }
        let listed: usize = offers.iter().map(|(_, _, uris)| uris.len()).sum();
        prop_assert_eq!(catalog.resources.entries.len(), listed);
        prop_assert!(catalog.resources.entries.is_sorted_by(|one, other| one.exposed < other.exposed));
        for entry in &catalog.resources.entries {
            for name in [&entry.exposed, &entry.identifier] {
                let owner = catalog.resources.find(&catalog.sources, name).expect("a listed resource");
                prop_assert_eq!((owner.source, owner.native.as_str()), (entry.source, &*entry.native), "{}", name);
            }
        }
    }

    /// Backends keep their names if their order in the configuration changes.
    #[test]
    fn d4_names_do_not_depend_on_the_order_of_the_backends(offers in offers()) {
        let names = |offers: &[(String, Vec<String>, Vec<String>)]| {
            let sources = offers.iter().map(|(id, names, uris)| source(&BackendFixture {
                id, settings: "", tools: names.clone(), resources: uris.clone(), templates: vec![],
            }));
            let catalog = build(1, &catalog_settings(), sources.collect());
            let tools = catalog.tools.entries.iter().map(|entry| entry.definition.clone());
            let mut all: Vec<_> = tools.chain(catalog.resources.entries.iter().map(|entry| entry.definition.clone())).collect();
            all.sort();
            all
        };
        let backwards: Vec<_> = offers.iter().rev().cloned().collect();
        prop_assert_eq!(names(&offers), names(&backwards));
    }
}
