use goblin_config::Filter;
use goblin_config::exposure::{ClientExposure, Exposure, ExposureMode};
use goblin_config::glob::Glob;
use goblin_wire::Error;

use super::*;
use crate::build::tests::{CLIENT, Catalog, catalog, catalog_settings, owner, resources, tools, with};
use crate::listing::List;

fn globs(texts: &[&str]) -> Vec<Glob> {
    texts.iter().map(|text| Glob::new(text).expect("a glob")).collect()
}

fn only(texts: &[&str]) -> Filter {
    Filter { allow: globs(texts), deny: Vec::new() }
}

fn names(catalog: &Catalog) -> Vec<&str> {
    catalog.tools.entries.iter().map(|entry| &*entry.exposed).collect()
}

fn page(catalog: &Catalog, list: List) -> String {
    let page = catalog.view(CLIENT).page(list, 0).expect("a first page");
    String::from_utf8_lossy(&page).into_owned()
}

#[test]
fn reg5_entries_hidden_by_a_profile_are_not_found() {
    let whole = catalog(&[
        tools("a", &["read", "write"]),
        tools("b", &["read"]),
        resources("r", &["file:///open", "file:///secret/x"], &["file:///{name}", "db:///{row}"]),
        resources("s", &["file:///other"], &[]),
    ]);
    let profile = Profile {
        servers: globs(&["a", "r"]),
        tools: ProfileTools { filter: only(&["*_read"]), ..ProfileTools::default() },
        resources: UriFilter::new(only(&["r+file:///open", "r+file:///{name}", "r+file:///sh*"])),
        ..Profile::default()
    };
    let narrowed = narrow(&whole, &profile, &catalog_settings());
    assert_eq!(narrowed.sources.len(), 2);
    assert_eq!(names(&narrowed), ["a_read"]);
    assert_eq!(&*narrowed.view(CLIENT).tool("a_read").expect("a visible tool").1.native, "read");
    for hidden in ["a_write", "b_read"] {
        assert!(narrowed.view(CLIENT).tool(hidden).is_err(), "{hidden}");
    }
    assert_eq!(owner(&narrowed, "r+file:///open"), "r file:///open");
    assert_eq!(owner(&narrowed, "r+file:///shown"), "r file:///shown", "by its template");
    for hidden in [
        "r+file:///secret/x",
        "file:///secret/x",
        "r_file_secret_x",
        "r+file:///unseen",
        "r+db:///1",
        "s+file:///other",
        "file:///other",
        "s_file_other",
    ] {
        assert_eq!(owner(&narrowed, hidden), "", "{hidden}");
    }
    assert!(narrowed.resources.find_template("r+db:///{row}").is_none());
    assert!(narrowed.resources.find_template("db:///{row}").is_none());
    assert!(narrowed.resources.find_server("s+file:///*").is_err());
}

#[test]
fn d4_only_visible_candidates_are_listed() {
    let whole = catalog(&[tools("a", &["b_c"]), tools("a_b", &["c"])]);
    let candidates = |catalog: &Catalog| match catalog.view(CLIENT).tool("a_b_c") {
        Err(Error::ToolNotFound { candidates, .. }) => candidates,
        _ => panic!("the bare name has no owner"),
    };
    let all = candidates(&whole);
    assert_eq!(all.len(), 2);
    let narrowed = narrow(&whole, &Profile { servers: globs(&["a"]), ..Profile::default() }, &catalog_settings());
    assert_eq!(candidates(&narrowed), all[..1]);
    let nothing = narrow(&whole, &Profile { servers: Vec::new(), ..Profile::default() }, &catalog_settings());
    assert_eq!(candidates(&nothing), Vec::<String>::new());
}

#[test]
fn reg9_a_profile_renames_and_describes_tools_and_resolves_conflicts() {
    let whole = catalog(&[tools("a", &["t", "u", "v"])]);
    let rules = ProfileTools {
        rename: [("a_t".into(), "go".into()), ("a_u".into(), "a_v".into())].into(),
        describe: [("a_t".into(), "Goes \"there\".".into())].into(),
        ..ProfileTools::default()
    };
    let narrowed = narrow(&whole, &Profile { tools: rules, ..Profile::default() }, &catalog_settings());
    assert_eq!(names(&narrowed)[0], "go");
    assert!(narrowed.view(CLIENT).tool("a_t").is_err() && narrowed.view(CLIENT).tool("a_v").is_err());
    assert_eq!(narrowed.tools.contested["a_v"].len(), 2);
    let page = page(&narrowed, List::Tools);
    assert!(
        page.starts_with(concat!(
            r#"{"tools":[{"description":"Goes \"there\".","name":"go","x":1.0,"#,
            r#""_meta":{"dev.goblin/native":"t","dev.goblin/server":"a"}}"#
        )),
        "{page}"
    );
}

#[test]
fn res6_a_hidden_resource_is_not_confused_with_a_visible_one_of_equal_uri() {
    let none = r#","namespacing":"none""#;
    let whole =
        catalog(&[with(none, resources("a", &["file:///x"], &[])), with(none, resources("b", &["file:///x"], &[]))]);
    let profile = Profile { resources: UriFilter::new(only(&["a+file:///x"])), ..Profile::default() };
    let narrowed = narrow(&whole, &profile, &catalog_settings());
    assert_eq!(narrowed.resources.expose(1, "file:///x"), "b+file:///x");
    assert_eq!(owner(&narrowed, "b+file:///x"), "");
    assert_eq!(owner(&narrowed, "file:///x"), "a file:///x");
}

#[test]
fn hard1_a_hidden_resource_is_found_in_no_spelling_under_any_naming() {
    let alias = r#","resources":{"rename":{"file:///secret":"vault:one"}}"#;
    let identifier = r#","namespacing":{"resources":"identifier"}"#;
    for (settings, pattern) in [("", "a+file:///secret"), (alias, "vault:*"), (identifier, "a_file_secret")] {
        let whole = catalog(&[with(settings, resources("a", &["file:///secret", "file:///open"], &["file:{+path}"]))]);
        let deny = Filter { deny: globs(&[pattern]), ..Filter::default() };
        let profile = Profile { resources: UriFilter::new(deny), ..Profile::default() };
        let narrowed = narrow(&whole, &profile, &catalog_settings());
        assert_eq!(narrowed.resources.entries.len(), 1, "{pattern}");
        assert_eq!(owner(&narrowed, "a+file:///o%70en"), "a file:///o%70en", "{pattern}");
        for spelling in
            ["file:///secret", "file:///s%65cret", "file:/secret", "file:///public/../secret", "file:///secret?x"]
        {
            assert_ne!(owner(&whole, &format!("a+{spelling}")), "", "{pattern} {spelling}");
            assert_eq!(owner(&narrowed, &format!("a+{spelling}")), "", "{pattern} {spelling}");
            assert_eq!(owner(&narrowed, spelling), "", "{pattern} {spelling}");
        }
    }
}

#[test]
fn use9_a_narrower_filter_hides_a_uri_of_a_template_although_the_lists_stay_equal() {
    let whole = catalog(&[resources("db", &[], &["db://{table}/{id}"])]);
    let narrowed = |filter: Filter| {
        let profile = Profile { resources: UriFilter::new(filter), ..Profile::default() };
        narrow(&whole, &profile, &catalog_settings())
    };
    let uri = "db+db://salaries/1";
    let before = narrowed(Filter::default());
    assert_eq!(owner(&before, uri), "db db://salaries/1");
    let mut after = narrowed(Filter { deny: globs(&["db+db://salaries/*"]), ..Filter::default() });
    after.inherit(&before);
    assert_eq!(owner(&after, uri), "");
    let mut restored = narrowed(Filter::default());
    restored.inherit(&after);
    assert_eq!(owner(&restored, uri), "db db://salaries/1");
    let mut equal = narrowed(Filter::default());
    equal.inherit(&before);
    assert!(Arc::ptr_eq(&equal.resources, &before.resources), "equal tables share their memory");
}

#[test]
fn reg8_use12_a_list_of_tools_is_compared_with_those_of_all_exposures() {
    use crate::EqualTools::{Before, Now};
    let whole = catalog(&[tools("a", &["t", "u"])]);
    let narrowed = |mode, clients: &[(&str, ExposureMode)]| {
        let rule = |(client, mode): &(&str, ExposureMode)| ClientExposure {
            client: Glob::new(client).expect("a pattern"),
            mode: Some(*mode),
            pinned: None,
            auto_above: None,
            reveal: None,
        };
        let clients = clients.iter().map(rule).collect();
        let exposure = Exposure { mode, pinned: globs(&["*_u"]), auto_above: 9, reveal: false, clients };
        narrow(&whole, &Profile::default(), &CatalogSettings { exposure, ..catalog_settings() })
    };
    use ExposureMode::{All, Auto, Search};
    let plain = narrowed(Search, &[]);
    let ruled = narrowed(Search, &[("cursor", All)]);
    assert_eq!(ruled.equal_tools(&plain), [Before(0), Now(1)], "a new rule changes no other list");
    assert_eq!(plain.equal_tools(&ruled), [Before(0)]);
    assert_eq!(narrowed(All, &[("other", Search)]).equal_tools(&ruled), [Before(1), Before(0)]);
    assert_eq!(narrowed(All, &[("other", Auto)]).equal_tools(&plain), [Now(0), Now(0)], "equal lists, other exposures");
    // The definitions are equal, but clients must not defer the tools of the second list.
    let pinned = |mode| Exposure { mode, pinned: globs(&["*"]), ..Exposure::default() };
    let all_pinned = |mode| CatalogSettings { exposure: pinned(mode), ..catalog_settings() };
    let [one, other] = [All, Search].map(|mode| narrow(&whole, &Profile::default(), &all_pinned(mode)));
    assert_eq!(other.equal_tools(&one), [Now(0)]);
}

#[test]
fn reg6_search_exposure_lists_pinned_tools_and_keeps_all_callable() {
    let whole = catalog(&[tools("a", &["t", "u", "v"])]);
    let check = |mode, auto_above, expected: &[&str]| {
        let exposure = Exposure { mode, pinned: globs(&["*_u"]), auto_above, reveal: true, clients: Vec::new() };
        let settings = CatalogSettings { exposure, ..catalog_settings() };
        let narrowed = narrow(&whole, &Profile::default(), &settings);
        let page = page(&narrowed, List::Tools);
        let value: serde_json::Value = serde_json::from_str(&page).expect("JSON");
        let listed: Vec<_> = value["tools"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|tool| tool["name"].as_str().expect("a name"))
            .collect();
        assert_eq!(listed, expected, "{mode:?} {auto_above}");
        assert_eq!(names(&narrowed).len(), 3, "all can be called");
    };
    check(ExposureMode::All, 0, &["a_t", "a_u", "a_v"]);
    check(ExposureMode::Search, 99, &["a_u"]);
    check(ExposureMode::Auto, 3, &["a_t", "a_u", "a_v"]);
    check(ExposureMode::Auto, 2, &["a_u"]);
}
