use std::sync::Arc;

use goblin_wire::json;

use super::table::outer;
use super::*;
use crate::count::LimitReached;
use crate::fixture::{SubscriptionEntry, TableFixture, glob, names, names_of, settled};

#[test]
fn sub18_a_uri_is_inside_of_its_beginnings_at_a_boundary() {
    let check = |native: &str, expected: &[&str]| assert_eq!(outer(native).collect::<Vec<_>>(), expected);
    check("a:b/c", &["a:b/", "a:b"]);
    check("a:b/", &["a:b"]);
    check("a:b?q#f", &["a:b?q", "a:b"]);
    check("a:b", &[]);
}

#[test]
fn sub2_sub12_the_first_subscribes_and_the_last_unsubscribes() {
    let mut stage = TableFixture::new();
    let (one, two) = (stage.subscribe(0, "a"), stage.subscribe(1, "a"));
    assert_eq!(stage.answer("+a", UpstreamReply::Done), 0);
    assert_eq!((settled(one), settled(two)), ("Subscribed".to_owned(), "Subscribed".to_owned()));
    assert!(stage.unsubscribe(0, "a"));
    assert!(stage.job().is_none() && !stage.unsubscribe(0, "a"));
    assert!(stage.unsubscribe(1, "a"));
    stage.answer("-a", UpstreamReply::Done);
    assert!(stage.table.is_empty() && stage.tally.count() == 0);
}

#[test]
fn sub10_a_refusal_reaches_all_who_wait_and_leaves_nothing() {
    let mut stage = TableFixture::new();
    let (one, two) = (stage.subscribe(0, "a"), stage.subscribe(1, "a"));
    stage.answer("+a", UpstreamReply::Failed("no".into()));
    assert_eq!((settled(one), settled(two)), ("Failed".to_owned(), "Failed".to_owned()));
    assert!(stage.table.is_empty() && stage.job().is_none());
}

#[test]
fn sub9_what_cannot_be_asked_for_is_tracked() {
    let mut stage = TableFixture::new();
    let entry = stage.subscribe(0, "a");
    stage.answer("+a", UpstreamReply::Unknown);
    assert_eq!(settled(entry), "Tracked");
    assert_eq!(stage.table.affected("a").len(), 1);
    assert!(stage.unsubscribe(0, "a") && stage.job().is_none() && stage.table.is_empty());
    stage.link_up(false);
    assert_eq!(settled(stage.subscribe(0, "b")), "Tracked");
    assert!(stage.job().is_none());
}

#[test]
fn sub2_whoever_changes_their_mind_while_the_backend_is_asked_ends_up_right() {
    let mut stage = TableFixture::new();
    stage.subscribe(0, "a");
    let (_, asking) = stage.job().expect("a job");
    stage.unsubscribe(0, "a");
    assert!(stage.job().is_none(), "one request at a time");
    stage.table.answered(&asking, UpstreamReply::Done);
    let (text, ending) = stage.job().expect("it is not wanted");
    assert_eq!(text, "-a");
    let entry = stage.subscribe(1, "a");
    assert!(stage.job().is_none());
    stage.table.answered(&ending, UpstreamReply::Done);
    stage.answer("+a", UpstreamReply::Done);
    assert_eq!(settled(entry), "Subscribed");
}

#[test]
fn sub16_after_a_loss_all_is_asked_for_again_and_told_once() {
    let mut stage = TableFixture::new();
    stage.subscribe(0, "a");
    stage.answer("+a", UpstreamReply::Done);
    stage.link_down();
    assert_eq!(settled(stage.subscribe(1, "a")), "Pending");
    assert_eq!(settled(stage.subscribe(1, "b")), "Pending");
    assert!(stage.job().is_none());
    assert!(stage.link_up(true).is_empty());
    let told: usize = (0..2)
        .map(|_| {
            let (_, job) = stage.job().expect("a job");
            stage.table.answered(&job, UpstreamReply::Done).len()
        })
        .sum();
    assert_eq!(told, 3);
    assert!(stage.job().is_none());
}

#[test]
fn sub16_an_answer_over_a_connection_that_is_gone_means_nothing() {
    let mut stage = TableFixture::new();
    let entry = stage.subscribe(0, "a");
    let (_, old) = stage.job().expect("a job");
    stage.link_down();
    assert_eq!(settled(entry), "Pending");
    stage.link_up(true);
    assert!(stage.table.answered(&old, UpstreamReply::Done).is_empty());
    assert_eq!(stage.answer("+a", UpstreamReply::Done), 1);
}

#[test]
fn sub5_a_client_hears_an_update_once_however_many_of_its_wishes_match() {
    let mut stage = TableFixture::new();
    stage.subscribe(0, "a:b");
    stage.subscribe(0, "a:b/c");
    stage.subscribe(1, "a:b/");
    stage.subscribe(2, "a:x");
    let who = |uri: &str| {
        let mut who: Vec<_> = names_of(&stage.table.affected(uri));
        who.sort();
        who.join(" ")
    };
    assert_eq!(who("a:b/c"), "a:b/ a:b/c");
    assert_eq!(who("a:b/d"), "a:b a:b/");
    assert_eq!(who("a:bc"), "");
    assert_eq!(who("a:x"), "a:x");
}

#[test]
fn sub7_the_end_of_a_client_ends_what_it_alone_wanted() {
    let mut stage = TableFixture::new();
    for (client, uri) in [(0, "a"), (0, "b"), (1, "b")] {
        stage.subscribe(client, uri);
    }
    stage.answer("+a", UpstreamReply::Done);
    stage.answer("+b", UpstreamReply::Done);
    let gone = Arc::clone(&stage.clients[0]);
    assert_eq!(stage.table.release(&gone).len(), 2);
    stage.answer("-a", UpstreamReply::Done);
    assert!(stage.job().is_none());
    assert_eq!(stage.table.affected("b").len(), 1);
}

#[test]
fn sub11_twice_is_once_and_the_newer_wish_stands() {
    let mut stage = TableFixture::new();
    let first = stage.subscribe(0, "a").subscription.id;
    stage.answer("+a", UpstreamReply::Done);
    let again = stage.subscribe(0, "a");
    assert_eq!(again.subscription.id, first);
    assert_eq!(settled(again), "Subscribed");
    assert_eq!(stage.tally.count(), 1);
    assert!(stage.job().is_none());
    assert_eq!(stage.table.of(&stage.clients[0]).len(), 1);
    assert!(stage.table.of(&stage.clients[1]).is_empty());
}

#[test]
fn sub10_what_was_not_answered_in_time_is_taken_back() {
    let mut stage = TableFixture::new();
    let entry = stage.subscribe(0, "a");
    stage.answer("+a", UpstreamReply::Late(Duration::from_secs(1)));
    assert_eq!(settled(entry), "Late");
    stage.answer("-a", UpstreamReply::Done);
    assert!(stage.table.is_empty());
}

#[test]
fn sub10_what_is_agreed_to_too_late_is_taken_back_unless_it_is_wanted_by_then() {
    let mut stage = TableFixture::new();
    let late = |stage: &mut TableFixture| {
        stage.subscribe(0, "a");
        let (_, job) = stage.job().expect("a job");
        stage.table.answered(&job, UpstreamReply::Late(Duration::from_secs(1)));
        job
    };
    let job = late(&mut stage);
    stage.answer("-a", UpstreamReply::Done);
    stage.table.answered_late(&job);
    stage.answer("-a", UpstreamReply::Done);
    assert!(stage.table.is_empty());

    // A client subscribes again. The response to its request decides.
    let job = late(&mut stage);
    stage.answer("-a", UpstreamReply::Done);
    stage.subscribe(1, "a");
    let (text, again) = stage.job().expect("a job");
    assert_eq!(text, "+a");
    stage.table.answered_late(&job);
    assert!(stage.job().is_none());
    stage.table.answered(&again, UpstreamReply::Done);
    stage.table.answered_late(&job);
    assert!(stage.job().is_none(), "it is wanted");

    // A late response over an earlier connection has no effect.
    stage.link_up(true);
    stage.answer("+a", UpstreamReply::Done);
    stage.unsubscribe(1, "a");
    stage.answer("-a", UpstreamReply::Done);
    stage.table.answered_late(&job);
    assert!(stage.table.is_empty());
}

#[test]
fn sub10_who_was_pending_and_is_refused_is_listed_so_and_asked_for_over_the_next_connection() {
    let mut stage = TableFixture::new();
    stage.link_down();
    assert_eq!(settled(stage.subscribe(0, "a")), "Pending");
    stage.link_up(true);
    stage.answer("+a", UpstreamReply::Failed("no".into()));
    assert!(stage.table.all().all(|(_, state)| state == "refused") && stage.job().is_none());
    stage.link_up(true);
    assert_eq!(stage.answer("+a", UpstreamReply::Done), 1);
}

#[test]
fn subx1_a_pattern_covers_what_is_listed_now_and_later() {
    let mut stage = TableFixture::new();
    stage.relist(&["a:1", "b:1"]);
    let entry = stage.wish(0, "a:*", Some(glob("a:*"))).expect("room");
    stage.answer("+a:1", UpstreamReply::Done);
    assert_eq!(settled(entry), "Subscribed");
    assert!(stage.job().is_none());
    assert_eq!(stage.relist(&["a:1", "a:2", "b:1"]), (vec![], vec![]));
    assert_eq!(stage.answer("+a:2", UpstreamReply::Done), 1, "it is news");
    let within = |uri: &str| {
        let affected = stage.table.affected(uri);
        affected.iter().map(|it| it.within.map(|name| name.native.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(within("a:1"), [None]);
    assert_eq!(within("a:9"), [Some("a:*".to_owned())], "not listed, and covered all the same");
    assert_eq!(within("a:2/x"), [Some("a:2".to_owned())], "inside of what is covered");
    assert!(within("a:9/x").is_empty() && within("b:1").is_empty());
    assert!(stage.unsubscribe(0, "a:*"));
    let mut ended: Vec<_> = std::iter::from_fn(|| stage.job()).map(|(text, _)| text).collect();
    ended.sort();
    assert_eq!(ended, ["-a:1", "-a:2"]);
}

#[test]
fn subx1_what_a_pattern_covers_is_bounded() {
    let mut stage = TableFixture::new();
    stage.relist(&["a:1", "a:2", "a:3", "a:4", "a:5"]);
    assert!(stage.wish(0, "a:*", Some(glob("a:*"))).is_err_and(|full| full == LimitReached::Upstream));
    assert!(stage.table.is_empty() && stage.tally.count() == 0);
    stage.wish(0, "a:[1-4]", Some(glob("a:[1-4]"))).expect("room");
    stage.subscribe(1, "b");
    while let Some((_, job)) = stage.job() {
        stage.table.answered(&job, UpstreamReply::Done);
    }
    assert!(stage.wish(0, "c:*", Some(glob("c:*"))).is_ok(), "it covers nothing yet");
    stage.relist(&["a:1", "a:2", "a:3", "a:4", "c:1"]);
    let state = |native: &str| stage.table.all().find(|(it, _)| *it.name.native == *native).map(|(_, state)| state);
    assert_eq!((state("a:[1-4]"), state("c:*")), (Some("subscribed"), Some("partial")));
    assert_eq!(stage.table.affected("c:1").len(), 1, "what the backend says of its own accord");
}

#[test]
fn subx1_a_pattern_is_refused_where_all_of_it_is() {
    let mut stage = TableFixture::new();
    stage.relist(&["a:1", "a:2"]);
    let entry = stage.wish(0, "a:*", Some(glob("a:*"))).expect("room");
    for _ in 0..2 {
        let (_, job) = stage.job().expect("a job");
        stage.table.answered(&job, UpstreamReply::Failed("no".into()));
    }
    assert_eq!(settled(entry), "Failed");
    assert!(stage.table.is_empty() && stage.tally.count() == 0);
    let entry = stage.wish(0, "a:*", Some(glob("a:*"))).expect("room");
    for reply in [UpstreamReply::Failed("no".into()), UpstreamReply::Done] {
        let (_, job) = stage.job().expect("a job");
        stage.table.answered(&job, reply);
    }
    assert_eq!(settled(entry), "Subscribed");
    assert_eq!(stage.table.all().next().map(|(_, state)| state), Some("partial"));
}

#[test]
fn subx1_sub16_after_a_loss_a_pattern_is_told_once_as_a_whole() {
    let mut stage = TableFixture::new();
    stage.relist(&["a:1", "a:2"]);
    stage.wish(0, "a:*", Some(glob("a:*"))).expect("room");
    stage.link_down();
    assert!(stage.link_up(true).is_empty());
    let mut told = Vec::new();
    while let Some((_, job)) = stage.job() {
        told.extend(names(&stage.table.answered(&job, UpstreamReply::Done)));
    }
    assert_eq!(told, ["x+a:*"]);
}

#[test]
fn subx1_sub10_before_the_first_list_a_pattern_is_not_told_in_parts() {
    let mut stage = TableFixture::new();
    stage.link_down();
    stage.wish(0, "a:*", Some(glob("a:*"))).expect("room");
    stage.wish(0, "b:*", Some(glob("b:*"))).expect("room");
    let (_, notices) = stage.table.link_up(true, false);
    assert!(notices.is_empty());
    assert_eq!(stage.relist(&["a:1", "a:2"]).0, ["x+b:*"], "nothing of it is listed");
    let mut told = Vec::new();
    while let Some((_, job)) = stage.job() {
        told.extend(names(&stage.table.answered(&job, UpstreamReply::Done)));
    }
    assert_eq!(told, ["x+a:*"]);
}

#[test]
fn sub14_what_is_gone_is_told_once_and_asked_for_again_when_it_is_back() {
    let mut stage = TableFixture::new();
    stage.relist(&["a:1"]);
    stage.subscribe(0, "a:1");
    stage.wish(1, "a:*", Some(glob("a:*"))).expect("room");
    stage.subscribe(2, "handed:1");
    while let Some((_, job)) = stage.job() {
        stage.table.answered(&job, UpstreamReply::Done);
    }
    assert_eq!(stage.relist(&[]), (vec![], vec!["a:1".to_owned()]), "what was never listed is not missed");
    assert_eq!(stage.vanish("a:1"), ["x+a:1", "x+a:1"]);
    assert!(stage.vanish("a:1").is_empty() && stage.vanish("handed:1").is_empty());
    assert!(stage.table.all().any(|(_, state)| state == "missing"));
    assert_eq!(stage.relist(&[]), (vec![], vec![]));
    assert_eq!(stage.relist(&["a:1"]), (vec![], vec![]));
    assert_eq!(stage.answer("+a:1", UpstreamReply::Done), 2, "one of each subscriber");
}

#[test]
fn sub14_what_is_missing_is_not_asked_for_over_a_new_connection_until_it_is_back() {
    let mut stage = TableFixture::new();
    stage.relist(&["a:1"]);
    stage.subscribe(0, "a:1");
    stage.answer("+a:1", UpstreamReply::Done);
    stage.relist(&[]);
    assert_eq!(stage.vanish("a:1").len(), 1);
    stage.link_up(true);
    assert!(stage.job().is_none());
    stage.relist(&["a:1"]);
    assert_eq!(stage.answer("+a:1", UpstreamReply::Done), 1);
    assert!(stage.unsubscribe(0, "a:1"));
    stage.answer("-a:1", UpstreamReply::Done);
    assert!(stage.table.is_empty());
}

#[test]
fn sub10_a_wish_that_was_given_up_is_taken_back_though_the_answer_came_first() {
    let mut stage = TableFixture::new();
    let SubscriptionEntry { subscription, standing, .. } = stage.subscribe(0, "a");
    let (_, asking) = stage.job().expect("a job");
    drop(standing);
    stage.table.answered(&asking, UpstreamReply::Done);
    stage.table.withdraw(&subscription);
    stage.answer("-a", UpstreamReply::Done);
    assert!(stage.table.is_empty());
}

#[test]
fn sub14_whoever_asks_for_what_was_missing_brings_it_back_for_all() {
    for can_subscribe in [true, false] {
        let mut stage = TableFixture::new();
        stage.link_up(can_subscribe);
        stage.relist(&["a:1"]);
        stage.subscribe(0, "a:1");
        while let Some((_, job)) = stage.job() {
            stage.table.answered(&job, UpstreamReply::Done);
        }
        stage.relist(&[]);
        assert_eq!(stage.vanish("a:1").len(), 1);
        let entry = stage.subscribe(1, "a:1");
        let mut told = names(&entry.notices);
        while let Some((_, job)) = stage.job() {
            told.extend(names(&stage.table.answered(&job, UpstreamReply::Done)));
        }
        assert_eq!(told, ["x+a:1", "x+a:1"], "{can_subscribe}");
        assert!(stage.table.all().all(|(_, state)| state != "missing"));
    }
}

#[test]
fn sub14_sub16_who_waits_for_what_is_gone_hears_that_something_may_have_been_missed() {
    let mut stage = TableFixture::new();
    stage.relist(&["a:1"]);
    stage.wish(0, "a:*", Some(glob("a:*"))).expect("room");
    stage.answer("+a:1", UpstreamReply::Done);
    stage.link_down();
    assert!(stage.link_up(true).is_empty());
    stage.job().expect("it is asked for again, and not answered");
    stage.relist(&[]);
    let vanished = stage.table.vanished("a:1", &stage.listed);
    assert_eq!((names(&vanished.deleted), names(&vanished.notices)), (vec!["x+a:1".into()], vec!["x+a:*".into()]));
}

#[test]
fn subx1_what_had_no_room_is_covered_when_there_is_some() {
    let mut stage = TableFixture::new();
    stage.wish(0, "a:*", Some(glob("a:*"))).expect("room");
    stage.relist(&["a:1", "a:2", "a:3", "a:4", "a:5"]);
    let state = |stage: &TableFixture| stage.table.all().next().map(|(_, state)| state);
    while let Some((_, job)) = stage.job() {
        stage.table.answered(&job, UpstreamReply::Done);
    }
    assert_eq!(state(&stage), Some("partial"));
    stage.relist(&["a:2", "a:3", "a:4", "a:5"]);
    stage.vanish("a:1");
    stage.answer("-a:1", UpstreamReply::Done);
    stage.relist(&["a:2", "a:3", "a:4", "a:5"]);
    while let Some((_, job)) = stage.job() {
        stage.table.answered(&job, UpstreamReply::Done);
    }
    assert_eq!(state(&stage), Some("subscribed"));
}

#[test]
fn subx1_a_refusal_counts_as_long_as_it_stands() {
    let mut stage = TableFixture::new();
    stage.relist(&["a:1", "a:2"]);
    stage.wish(0, "a:*", Some(glob("a:*"))).expect("room");
    while let Some((text, job)) = stage.job() {
        let reply = if text == "+a:1" { UpstreamReply::Failed("no".into()) } else { UpstreamReply::Done };
        stage.table.answered(&job, reply);
    }
    let state = |stage: &TableFixture| stage.table.all().next().map(|(_, state)| state);
    assert_eq!(state(&stage), Some("partial"));
    stage.relist(&["a:2"]);
    assert_eq!(stage.vanish("a:1"), ["x+a:1"]);
    assert_eq!(state(&stage), Some("subscribed"));
}

#[test]
fn subx2_sub5_chosen_fields_of_one_subscription_do_not_silence_another() {
    let mut stage = TableFixture::new();
    stage.relist(&["a:1"]);
    let fields = r#"["size"]"#;
    let selection = || Selection::parse(fields, json::whole(fields)).ok();
    stage.wish_on(0, "a:1", None, SubscriptionOptions::new(DeliveryOptions::default(), selection())).expect("room");
    stage
        .wish_on(0, "a:*", Some(glob("a:*")), SubscriptionOptions::new(DeliveryOptions::default(), selection()))
        .expect("room");
    stage.wish(0, "a:?", Some(glob("a:?"))).expect("room");
    stage.wish(0, "a:[0-9]", Some(glob("a:[0-9]"))).expect("room");
    stage.subscribe(1, "a:1");
    let client = &stage.clients[0];
    let affected = stage.table.affected("a:1");
    let own: Vec<_> = affected.iter().filter(|it| Arc::ptr_eq(&it.subscription.subscriber, client)).collect();
    assert!(!own[0].is_next && own[1..].iter().all(|it| it.is_next));
    let plain = own.iter().filter(|it| !it.subscription.is_selective()).count();
    assert_eq!((plain, affected.len() - own.len()), (1, 1), "whoever is told in any case is asked for nothing more");
    assert_eq!(&*own[0].subscription.name.native, "a:1");
}

#[test]
fn sub18_what_is_too_long_is_not_taken_apart() {
    let mut stage = TableFixture::new();
    stage.subscribe(0, "a:/");
    stage.wish(1, "a:/**", Some(glob("a:/**"))).expect("room");
    let long = format!("a:{}", "/".repeat(4 * 1024 * 1024));
    assert!(stage.table.affected(&long).is_empty());
    assert_eq!(stage.table.affected("a:/b").len(), 2);
}

#[test]
fn sub10_who_waits_when_a_late_answer_comes_has_it() {
    let mut stage = TableFixture::new();
    stage.subscribe(0, "a");
    let (_, late) = stage.job().expect("a job");
    stage.table.answered(&late, UpstreamReply::Late(Duration::from_secs(1)));
    stage.answer("-a", UpstreamReply::Done);
    let entry = stage.subscribe(1, "a");
    stage.table.answered_late(&late);
    assert_eq!(settled(entry), "Subscribed");
    assert!(stage.job().is_none());
}

#[test]
fn sub10_what_is_agreed_to_while_it_is_taken_back_is_taken_back_once_more() {
    let mut stage = TableFixture::new();
    stage.subscribe(0, "a");
    let (_, late) = stage.job().expect("a job");
    stage.table.answered(&late, UpstreamReply::Late(Duration::from_secs(1)));
    let (text, ending) = stage.job().expect("it is taken back");
    assert_eq!(text, "-a");
    stage.table.answered_late(&late);
    stage.table.answered(&ending, UpstreamReply::Done);
    stage.answer("-a", UpstreamReply::Done);
    assert!(stage.job().is_none() && stage.table.is_empty());
}
