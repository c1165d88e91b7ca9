use goblin_client::lineage::Lineage;
use goblin_config::exposure::ClientExposure;
use goblin_config::glob::Glob;
use goblin_config::{Policies, Server, ServerId, Transport};

use super::*;
use crate::client::call::Call;
use crate::client::caller::Introduction;
use crate::upstream::events::BackendEvents;

fn profile(name: &str) -> ProfileName {
    ProfileName::new(name).expect("a valid name")
}

fn store(profiles: &[ProfileName]) -> Arc<CatalogStore> {
    let profiles = profiles.iter().map(|name| (name.clone(), Arc::default())).collect();
    let config = Config { profiles, ..Config::default() };
    Arc::new(CatalogStore::new(&config, &Lineage::of_process(None).id))
}

fn caller(profile: &ProfileName) -> Caller {
    Caller { profile: Some(profile.clone()), ..Call::example().caller.clone() }
}

fn source() -> Source {
    let id = ServerId::new("a").expect("a valid id");
    let transport = Transport::Files(goblin_config::Files::at("/".into()));
    let config = Arc::new(Server::new("a", transport, Default::default()));
    let events = BackendEvents::new(id.clone(), Arc::default(), Arc::default(), Arc::default());
    let backend = Arc::new(Backend::new(id, config, &Policies::default(), events));
    Source { listing: backend.listing(), backend }
}

#[test]
fn use9_a_client_of_a_profile_that_the_settings_do_not_have_sees_nothing() {
    let store = store(&[profile("known")]);
    let inputs = store.inputs.load_full();
    let sources = |name: Option<&ProfileName>| {
        let whole = build(1, &inputs.views.whole, vec![source()]);
        inputs.views.narrow(whole, name).sources.len()
    };
    assert_eq!((sources(None), sources(Some(&profile("known"))), sources(Some(&profile("new")))), (1, 1, 0));
    assert!(store.live_profile(None).is_none());
    let unknown = store.live_profile(Some(&profile("new"))).expect("rules");
    assert!(unknown.load().servers.is_empty(), "the rules of an unknown profile admit nothing");
}

#[test]
fn use9_a_removed_profile_stays_known_while_a_stream_of_a_client_with_own_links_watches_it() {
    const WATCHED: usize = 50;
    let names: Vec<_> = (0..MAX_REMOVED_PROFILES + 2 * WATCHED).map(|number| profile(&format!("p{number}"))).collect();
    let (watched, idle) = names.split_at(WATCHED);
    let (store, client) = (store(&names), Client::stateless(Introduction::default()));
    let registry: Arc<dyn ClientRegistry> = Arc::<CatalogStore>::clone(&store);
    let watch = |name: &ProfileName| {
        let start = || store.with_slot(Some(name), |slot| slot.successor());
        assert!(store.own.add(&caller(name), &client, &registry, start));
        store.watch_of(&caller(name))
    };
    let streams: Vec<_> = watched.iter().map(watch).collect();
    store.set_views(&Config::default(), Vec::new());
    let is_known = |name: &&ProfileName| store.inputs.load().views.profiles.contains_key(*name);
    assert_eq!(watched.iter().filter(is_known).count(), WATCHED);
    assert_eq!(idle.iter().filter(is_known).count(), MAX_REMOVED_PROFILES, "the others are limited");
    drop(streams);
    store.set_views(&Config::default(), Vec::new());
    assert_eq!(names.iter().filter(is_known).count(), MAX_REMOVED_PROFILES);
}

#[test]
fn use12_rules_for_client_programs_are_known_before_the_first_publication() {
    let rule = ClientExposure {
        client: Glob::new("cursor").expect("a pattern"),
        mode: None,
        pinned: Some(Vec::new()),
        auto_above: None,
        reveal: None,
    };
    let exposure = Exposure { clients: vec![rule], ..Exposure::default() };
    let ruled = Profile { exposure: exposure.clone(), ..Profile::default() };
    let in_profile = Config { profiles: [(profile("p"), Arc::new(ruled))].into(), ..Config::default() };
    let has_rules = |config: Config| CatalogStore::new(&config, &Lineage::of_process(None).id).has_client_rules();
    let in_whole = Config { exposure, ..Config::default() };
    assert_eq!([Config::default(), in_whole, in_profile].map(has_rules), [false, true, true]);
}
