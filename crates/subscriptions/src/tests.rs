use std::sync::Arc;

use goblin_wire::json;

use super::table::enclosing;
use super::*;
use crate::count::LimitReached;
use crate::fixture::{SubscriptionEntry, TableFixture, glob, names, names_of, settled};

#[test]
fn sub18_a_uri_is_inside_its_prefixes_that_end_at_a_boundary() {
    let check = |native: &str, expected: &[&str]| assert_eq!(enclosing(native).collect::<Vec<_>>(), expected);
    check("a:b/c", &["a:b/", "a:b"]);
    check("a:b/", &["a:b"]);
    check("a:b?q#f", &["a:b?q", "a:b"]);
    check("a:b", &[]);
}

#[test]
fn sub2_sub12_the_first_client_subscribes_and_the_last_unsubscribes() {
    let mut fixture = TableFixture::new();
    let (one, two) = (fixture.subscribe(0, "a"), fixture.subscribe(1, "a"));
    assert_eq!(fixture.reply("+a", UpstreamReply::Done), 0);
    assert_eq!((settled(one), settled(two)), ("Subscribed".to_owned(), "Subscribed".to_owned()));
    assert!(fixture.unsubscribe(0, "a"));
    assert!(fixture.next_request().is_none() && !fixture.unsubscribe(0, "a"));
    assert!(fixture.unsubscribe(1, "a"));
    fixture.reply("-a", UpstreamReply::Done);
    assert!(fixture.table.is_empty() && fixture.subscription_count.count() == 0);
}

#[test]
fn sub10_a_rejected_subscribe_fails_all_waiting_clients_and_leaves_no_entry() {
    let mut fixture = TableFixture::new();
    let (one, two) = (fixture.subscribe(0, "a"), fixture.subscribe(1, "a"));
    fixture.reply("+a", UpstreamReply::Failed("no".into()));
    assert_eq!((settled(one), settled(two)), ("Failed".to_owned(), "Failed".to_owned()));
    assert!(fixture.table.is_empty() && fixture.next_request().is_none());
}

#[test]
fn sub9_a_subscription_without_backend_support_is_tracked() {
    let mut fixture = TableFixture::new();
    let entry = fixture.subscribe(0, "a");
    fixture.reply("+a", UpstreamReply::Unknown);
    assert_eq!(settled(entry), "Tracked");
    assert_eq!(fixture.table.affected("a").len(), 1);
    assert!(fixture.unsubscribe(0, "a") && fixture.next_request().is_none() && fixture.table.is_empty());
    fixture.link_up(false);
    assert_eq!(settled(fixture.subscribe(0, "b")), "Tracked");
    assert!(fixture.next_request().is_none());
}

#[test]
fn sub2_a_change_during_an_upstream_request_ends_in_the_wanted_state() {
    let mut fixture = TableFixture::new();
    fixture.subscribe(0, "a");
    let (_, subscribe) = fixture.next_request().expect("a request");
    fixture.unsubscribe(0, "a");
    assert!(fixture.next_request().is_none(), "one request at a time");
    fixture.table.handle_reply(&subscribe, UpstreamReply::Done);
    let (text, unsubscribe) = fixture.next_request().expect("the resource is not wanted");
    assert_eq!(text, "-a");
    let entry = fixture.subscribe(1, "a");
    assert!(fixture.next_request().is_none());
    fixture.table.handle_reply(&unsubscribe, UpstreamReply::Done);
    fixture.reply("+a", UpstreamReply::Done);
    assert_eq!(settled(entry), "Subscribed");
}

#[test]
fn sub16_after_a_lost_link_all_uris_are_subscribed_again_and_notified_once() {
    let mut fixture = TableFixture::new();
    fixture.subscribe(0, "a");
    fixture.reply("+a", UpstreamReply::Done);
    fixture.link_down();
    assert_eq!(settled(fixture.subscribe(1, "a")), "Pending");
    assert_eq!(settled(fixture.subscribe(1, "b")), "Pending");
    assert!(fixture.next_request().is_none());
    assert!(fixture.link_up(true).is_empty());
    let notified: usize = (0..2)
        .map(|_| {
            let (_, request) = fixture.next_request().expect("a request");
            fixture.table.handle_reply(&request, UpstreamReply::Done).len()
        })
        .sum();
    assert_eq!(notified, 3);
    assert!(fixture.next_request().is_none());
}

#[test]
fn sub16_an_answer_of_an_earlier_link_is_ignored() {
    let mut fixture = TableFixture::new();
    let entry = fixture.subscribe(0, "a");
    let (_, old) = fixture.next_request().expect("a request");
    fixture.link_down();
    assert_eq!(settled(entry), "Pending");
    fixture.link_up(true);
    assert!(fixture.table.handle_reply(&old, UpstreamReply::Done).is_empty());
    assert_eq!(fixture.reply("+a", UpstreamReply::Done), 1);
}

#[test]
fn sub5_an_update_reaches_a_client_once_if_several_subscriptions_match() {
    let mut fixture = TableFixture::new();
    fixture.subscribe(0, "a:b");
    fixture.subscribe(0, "a:b/c");
    fixture.subscribe(1, "a:b/");
    fixture.subscribe(2, "a:x");
    let affected = |uri: &str| {
        let mut affected: Vec<_> = names_of(&fixture.table.affected(uri));
        affected.sort();
        affected.join(" ")
    };
    assert_eq!(affected("a:b/c"), "a:b/ a:b/c");
    assert_eq!(affected("a:b/d"), "a:b a:b/");
    assert_eq!(affected("a:bc"), "");
    assert_eq!(affected("a:x"), "a:x");
}

#[test]
fn sub7_the_end_of_a_client_unsubscribes_the_uris_it_alone_had() {
    let mut fixture = TableFixture::new();
    for (client, uri) in [(0, "a"), (0, "b"), (1, "b")] {
        fixture.subscribe(client, uri);
    }
    fixture.reply("+a", UpstreamReply::Done);
    fixture.reply("+b", UpstreamReply::Done);
    let client = Arc::clone(&fixture.clients[0]);
    assert_eq!(fixture.table.release(&client).len(), 2);
    fixture.reply("-a", UpstreamReply::Done);
    assert!(fixture.next_request().is_none());
    assert_eq!(fixture.table.affected("b").len(), 1);
}

#[test]
fn sub11_a_repeated_subscribe_keeps_one_subscription() {
    let mut fixture = TableFixture::new();
    let first = fixture.subscribe(0, "a").subscription.id;
    fixture.reply("+a", UpstreamReply::Done);
    let again = fixture.subscribe(0, "a");
    assert_eq!(again.subscription.id, first);
    assert_eq!(settled(again), "Subscribed");
    assert_eq!(fixture.subscription_count.count(), 1);
    assert!(fixture.next_request().is_none());
    assert_eq!(fixture.table.subscriptions_of(&fixture.clients[0]).len(), 1);
    assert!(fixture.table.subscriptions_of(&fixture.clients[1]).is_empty());
}

#[test]
fn sub10_a_subscribe_that_times_out_is_unsubscribed() {
    let mut fixture = TableFixture::new();
    let entry = fixture.subscribe(0, "a");
    fixture.reply("+a", UpstreamReply::Late(Duration::from_secs(1)));
    assert_eq!(settled(entry), "Late");
    fixture.reply("-a", UpstreamReply::Done);
    assert!(fixture.table.is_empty());
}

#[test]
fn sub10_a_late_success_is_unsubscribed_unless_a_client_subscribed_again() {
    let mut fixture = TableFixture::new();
    let late = |fixture: &mut TableFixture| {
        fixture.subscribe(0, "a");
        let (_, request) = fixture.next_request().expect("a request");
        fixture.table.handle_reply(&request, UpstreamReply::Late(Duration::from_secs(1)));
        request
    };
    let request = late(&mut fixture);
    fixture.reply("-a", UpstreamReply::Done);
    fixture.table.handle_late_reply(&request);
    fixture.reply("-a", UpstreamReply::Done);
    assert!(fixture.table.is_empty());

    // A client subscribes again. The response to its request decides.
    let request = late(&mut fixture);
    fixture.reply("-a", UpstreamReply::Done);
    fixture.subscribe(1, "a");
    let (text, again) = fixture.next_request().expect("a request");
    assert_eq!(text, "+a");
    fixture.table.handle_late_reply(&request);
    assert!(fixture.next_request().is_none());
    fixture.table.handle_reply(&again, UpstreamReply::Done);
    fixture.table.handle_late_reply(&request);
    assert!(fixture.next_request().is_none(), "it is wanted");

    // A late response over an earlier connection has no effect.
    fixture.link_up(true);
    fixture.reply("+a", UpstreamReply::Done);
    fixture.unsubscribe(1, "a");
    fixture.reply("-a", UpstreamReply::Done);
    fixture.table.handle_late_reply(&request);
    assert!(fixture.table.is_empty());
}

#[test]
fn sub10_a_rejected_pending_subscription_is_listed_and_retried_on_the_next_link() {
    let mut fixture = TableFixture::new();
    fixture.link_down();
    assert_eq!(settled(fixture.subscribe(0, "a")), "Pending");
    fixture.link_up(true);
    fixture.reply("+a", UpstreamReply::Failed("no".into()));
    assert!(fixture.table.all().all(|(_, state)| state == "rejected") && fixture.next_request().is_none());
    fixture.link_up(true);
    assert_eq!(fixture.reply("+a", UpstreamReply::Done), 1);
}

#[test]
fn subx1_a_pattern_covers_uris_listed_now_and_later() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["a:1", "b:1"]);
    let entry = fixture.subscribe_to(0, "a:*", Some(glob("a:*"))).expect("room");
    fixture.reply("+a:1", UpstreamReply::Done);
    assert_eq!(settled(entry), "Subscribed");
    assert!(fixture.next_request().is_none());
    assert_eq!(fixture.relist(&["a:1", "a:2", "b:1"]), (vec![], vec![]));
    assert_eq!(fixture.reply("+a:2", UpstreamReply::Done), 1, "the resource is new");
    let enclosing_of = |uri: &str| {
        let affected = fixture.table.affected(uri);
        affected.iter().map(|affected| affected.enclosing.map(|native| native.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(enclosing_of("a:1"), [None]);
    assert_eq!(enclosing_of("a:9"), [Some("a:*".to_owned())], "covered although not listed");
    assert_eq!(enclosing_of("a:2/x"), [Some("a:2".to_owned())], "inside a covered resource");
    assert!(enclosing_of("a:9/x").is_empty() && enclosing_of("b:1").is_empty());
    assert!(fixture.unsubscribe(0, "a:*"));
    let mut ended: Vec<_> = std::iter::from_fn(|| fixture.next_request()).map(|(text, _)| text).collect();
    ended.sort();
    assert_eq!(ended, ["-a:1", "-a:2"]);
}

#[test]
fn subx1_the_upstream_subscriptions_of_patterns_are_limited() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["a:1", "a:2", "a:3", "a:4", "a:5"]);
    assert!(fixture.subscribe_to(0, "a:*", Some(glob("a:*"))).is_err_and(|full| full == LimitReached::Upstream));
    assert!(fixture.table.is_empty() && fixture.subscription_count.count() == 0);
    fixture.subscribe_to(0, "a:[1-4]", Some(glob("a:[1-4]"))).expect("room");
    fixture.subscribe(1, "b");
    while let Some((_, request)) = fixture.next_request() {
        fixture.table.handle_reply(&request, UpstreamReply::Done);
    }
    assert!(fixture.subscribe_to(0, "c:*", Some(glob("c:*"))).is_ok(), "it covers nothing yet");
    fixture.relist(&["a:1", "a:2", "a:3", "a:4", "c:1"]);
    let state = |native: &str| {
        fixture.table.all().find(|(subscription, _)| *subscription.name.native == *native).map(|(_, state)| state)
    };
    assert_eq!((state("a:[1-4]"), state("c:*")), (Some("subscribed"), Some("partial")));
    assert_eq!(fixture.table.affected("c:1").len(), 1, "updates without a subscription");
}

#[test]
fn subx1_a_pattern_fails_only_if_all_its_uris_are_rejected() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["a:1", "a:2"]);
    let entry = fixture.subscribe_to(0, "a:*", Some(glob("a:*"))).expect("room");
    for _ in 0..2 {
        let (_, request) = fixture.next_request().expect("a request");
        fixture.table.handle_reply(&request, UpstreamReply::Failed("no".into()));
    }
    assert_eq!(settled(entry), "Failed");
    assert!(fixture.table.is_empty() && fixture.subscription_count.count() == 0);
    let entry = fixture.subscribe_to(0, "a:*", Some(glob("a:*"))).expect("room");
    for reply in [UpstreamReply::Failed("no".into()), UpstreamReply::Done] {
        let (_, request) = fixture.next_request().expect("a request");
        fixture.table.handle_reply(&request, reply);
    }
    assert_eq!(settled(entry), "Subscribed");
    assert_eq!(fixture.table.all().next().map(|(_, state)| state), Some("partial"));
}

#[test]
fn subx1_sub16_after_a_lost_link_a_pattern_is_notified_once_as_a_whole() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["a:1", "a:2"]);
    fixture.subscribe_to(0, "a:*", Some(glob("a:*"))).expect("room");
    fixture.link_down();
    assert!(fixture.link_up(true).is_empty());
    let mut notified = Vec::new();
    while let Some((_, request)) = fixture.next_request() {
        notified.extend(names(&fixture.table.handle_reply(&request, UpstreamReply::Done)));
    }
    assert_eq!(notified, ["a:*"]);
}

#[test]
fn subx1_sub10_a_pattern_pending_before_the_first_list_is_notified_as_a_whole() {
    let mut fixture = TableFixture::new();
    fixture.link_down();
    fixture.subscribe_to(0, "a:*", Some(glob("a:*"))).expect("room");
    fixture.subscribe_to(0, "b:*", Some(glob("b:*"))).expect("room");
    let (_, notices) = fixture.table.link_up(true, false);
    assert!(notices.is_empty());
    assert_eq!(fixture.relist(&["a:1", "a:2"]).0, ["b:*"], "the pattern covers nothing");
    let mut notified = Vec::new();
    while let Some((_, request)) = fixture.next_request() {
        notified.extend(names(&fixture.table.handle_reply(&request, UpstreamReply::Done)));
    }
    assert_eq!(notified, ["a:*"]);
}

#[test]
fn sub14_a_deleted_uri_is_notified_once_and_subscribed_again_when_it_returns() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["a:1"]);
    fixture.subscribe(0, "a:1");
    fixture.subscribe_to(1, "a:*", Some(glob("a:*"))).expect("room");
    fixture.subscribe(2, "handed:1");
    while let Some((_, request)) = fixture.next_request() {
        fixture.table.handle_reply(&request, UpstreamReply::Done);
    }
    assert_eq!(
        fixture.relist(&[]),
        (vec![], vec!["a:1".to_owned()]),
        "a resource that was never listed is not a suspect"
    );
    assert_eq!(fixture.mark_deleted("a:1"), ["a:1", "a:1"]);
    assert!(fixture.mark_deleted("a:1").is_empty() && fixture.mark_deleted("handed:1").is_empty());
    assert!(fixture.table.all().any(|(_, state)| state == "missing"));
    assert_eq!(fixture.relist(&[]), (vec![], vec![]));
    assert_eq!(fixture.relist(&["a:1"]), (vec![], vec![]));
    assert_eq!(fixture.reply("+a:1", UpstreamReply::Done), 2, "one of each subscriber");
}

#[test]
fn sub14_a_missing_uri_is_not_subscribed_on_a_new_link_until_it_returns() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["a:1"]);
    fixture.subscribe(0, "a:1");
    fixture.reply("+a:1", UpstreamReply::Done);
    fixture.relist(&[]);
    assert_eq!(fixture.mark_deleted("a:1").len(), 1);
    fixture.link_up(true);
    assert!(fixture.next_request().is_none());
    fixture.relist(&["a:1"]);
    assert_eq!(fixture.reply("+a:1", UpstreamReply::Done), 1);
    assert!(fixture.unsubscribe(0, "a:1"));
    fixture.reply("-a:1", UpstreamReply::Done);
    assert!(fixture.table.is_empty());
}

#[test]
fn sub10_a_withdrawn_subscription_is_unsubscribed_after_a_success() {
    let mut fixture = TableFixture::new();
    let SubscriptionEntry { subscription, status, .. } = fixture.subscribe(0, "a");
    let (_, subscribe) = fixture.next_request().expect("a request");
    drop(status);
    fixture.table.handle_reply(&subscribe, UpstreamReply::Done);
    fixture.table.withdraw(&subscription);
    fixture.reply("-a", UpstreamReply::Done);
    assert!(fixture.table.is_empty());
}

#[test]
fn sub14_a_new_subscribe_restores_a_missing_uri_for_all_subscribers() {
    for can_subscribe in [true, false] {
        let mut fixture = TableFixture::new();
        fixture.link_up(can_subscribe);
        fixture.relist(&["a:1"]);
        fixture.subscribe(0, "a:1");
        while let Some((_, request)) = fixture.next_request() {
            fixture.table.handle_reply(&request, UpstreamReply::Done);
        }
        fixture.relist(&[]);
        assert_eq!(fixture.mark_deleted("a:1").len(), 1);
        let entry = fixture.subscribe(1, "a:1");
        let mut notified = names(&entry.notices);
        while let Some((_, request)) = fixture.next_request() {
            notified.extend(names(&fixture.table.handle_reply(&request, UpstreamReply::Done)));
        }
        assert_eq!(notified, ["a:1", "a:1"], "{can_subscribe}");
        assert!(fixture.table.all().all(|(_, state)| state != "missing"));
    }
}

#[test]
fn sub14_sub16_a_pattern_that_waits_for_a_deleted_uri_is_notified() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["a:1"]);
    fixture.subscribe_to(0, "a:*", Some(glob("a:*"))).expect("room");
    fixture.reply("+a:1", UpstreamReply::Done);
    fixture.link_down();
    assert!(fixture.link_up(true).is_empty());
    fixture.next_request().expect("it is requested again, without a reply");
    fixture.relist(&[]);
    let outcome = fixture.table.mark_deleted("a:1", &fixture.listed);
    assert_eq!((names(&outcome.deleted), names(&outcome.notices)), (vec!["a:1".into()], vec!["a:*".into()]));
}

#[test]
fn subx1_a_uri_without_room_is_covered_when_room_becomes_free() {
    let mut fixture = TableFixture::new();
    fixture.subscribe_to(0, "a:*", Some(glob("a:*"))).expect("room");
    fixture.relist(&["a:1", "a:2", "a:3", "a:4", "a:5"]);
    let state = |fixture: &TableFixture| fixture.table.all().next().map(|(_, state)| state);
    while let Some((_, request)) = fixture.next_request() {
        fixture.table.handle_reply(&request, UpstreamReply::Done);
    }
    assert_eq!(state(&fixture), Some("partial"));
    fixture.relist(&["a:2", "a:3", "a:4", "a:5"]);
    fixture.mark_deleted("a:1");
    fixture.reply("-a:1", UpstreamReply::Done);
    fixture.relist(&["a:2", "a:3", "a:4", "a:5"]);
    while let Some((_, request)) = fixture.next_request() {
        fixture.table.handle_reply(&request, UpstreamReply::Done);
    }
    assert_eq!(state(&fixture), Some("subscribed"));
}

#[test]
fn subx1_a_rejected_uri_makes_a_pattern_partial_until_it_vanishes() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["a:1", "a:2"]);
    fixture.subscribe_to(0, "a:*", Some(glob("a:*"))).expect("room");
    while let Some((text, request)) = fixture.next_request() {
        let reply = if text == "+a:1" { UpstreamReply::Failed("no".into()) } else { UpstreamReply::Done };
        fixture.table.handle_reply(&request, reply);
    }
    let state = |fixture: &TableFixture| fixture.table.all().next().map(|(_, state)| state);
    assert_eq!(state(&fixture), Some("partial"));
    fixture.relist(&["a:2"]);
    assert_eq!(fixture.mark_deleted("a:1"), ["a:1"]);
    assert_eq!(state(&fixture), Some("subscribed"));
}

#[test]
fn subx2_sub5_selected_fields_of_one_subscription_do_not_suppress_another() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["a:1"]);
    let fields = r#"["size"]"#;
    let selection = || Selection::parse(fields, json::whole(fields)).ok();
    fixture
        .subscribe_with(0, "a:1", None, SubscriptionOptions::new(DeliveryOptions::default(), selection()))
        .expect("room");
    fixture
        .subscribe_with(0, "a:*", Some(glob("a:*")), SubscriptionOptions::new(DeliveryOptions::default(), selection()))
        .expect("room");
    fixture.subscribe_to(0, "a:?", Some(glob("a:?"))).expect("room");
    fixture.subscribe_to(0, "a:[0-9]", Some(glob("a:[0-9]"))).expect("room");
    fixture.subscribe(1, "a:1");
    let client = &fixture.clients[0];
    let affected = fixture.table.affected("a:1");
    let own: Vec<_> =
        affected.iter().filter(|affected| Arc::ptr_eq(&affected.subscription.subscriber, client)).collect();
    assert!(!own[0].is_next && own[1..].iter().all(|affected| affected.is_next));
    let plain = own.iter().filter(|affected| !affected.subscription.is_selective()).count();
    assert_eq!((plain, affected.len() - own.len()), (1, 1), "one subscription without a selection is enough");
    assert_eq!(&*own[0].subscription.name.native, "a:1");
}

#[test]
fn sub18_an_update_with_a_too_long_uri_matches_no_subscription() {
    let mut fixture = TableFixture::new();
    fixture.subscribe(0, "a:/");
    fixture.subscribe_to(1, "a:/**", Some(glob("a:/**"))).expect("room");
    let long = format!("a:{}", "/".repeat(4 * 1024 * 1024));
    assert!(fixture.table.affected(&long).is_empty());
    assert_eq!(fixture.table.affected("a:/b").len(), 2);
}

#[test]
fn sub10_a_late_success_settles_a_waiting_subscribe() {
    let mut fixture = TableFixture::new();
    fixture.subscribe(0, "a");
    let (_, late) = fixture.next_request().expect("a request");
    fixture.table.handle_reply(&late, UpstreamReply::Late(Duration::from_secs(1)));
    fixture.reply("-a", UpstreamReply::Done);
    let entry = fixture.subscribe(1, "a");
    fixture.table.handle_late_reply(&late);
    assert_eq!(settled(entry), "Subscribed");
    assert!(fixture.next_request().is_none());
}

#[test]
fn sub10_a_late_success_during_an_unsubscribe_is_unsubscribed_again() {
    let mut fixture = TableFixture::new();
    fixture.subscribe(0, "a");
    let (_, late) = fixture.next_request().expect("a request");
    fixture.table.handle_reply(&late, UpstreamReply::Late(Duration::from_secs(1)));
    let (text, unsubscribe) = fixture.next_request().expect("an unsubscribe request");
    assert_eq!(text, "-a");
    fixture.table.handle_late_reply(&late);
    fixture.table.handle_reply(&unsubscribe, UpstreamReply::Done);
    fixture.reply("-a", UpstreamReply::Done);
    assert!(fixture.next_request().is_none() && fixture.table.is_empty());
}

#[test]
fn d13_forwarded_resources_are_limited_and_never_deleted() {
    let mut fixture = TableFixture::new();
    fixture.is_forwarding = true;
    for number in 0..4 {
        fixture.subscribe(0, &format!("far:{number}"));
    }
    fixture.subscribe(1, "far:0");
    assert!(matches!(fixture.subscribe_to(1, "far:4", None), Err(LimitReached::Upstream)));
    assert_eq!(fixture.subscription_count.count(), 5, "a rejected subscription leaves no trace");
    fixture.is_forwarding = false;
    fixture.subscribe(1, "listed:0");
    assert_eq!(fixture.relist(&["other:1"]), (vec![], vec![]));
    assert!(fixture.mark_deleted("far:0").is_empty());
    // A replaced backend does not change this.
    let subscriptions = fixture.table.drain();
    fixture.table.restore(subscriptions, &fixture.listed);
    fixture.link_up(true);
    let (_, suspects) = fixture.relist(&["other:2"]);
    assert_eq!(suspects, ["listed:0"]);
    // A resource that becomes listed is offered from then on.
    fixture.relist(&["far:0"]);
    let (_, mut suspects) = fixture.relist(&[]);
    suspects.sort();
    assert_eq!(suspects, ["far:0", "listed:0"]);
    // The configuration can hide a forwarded resource.
    let hidden = fixture.table.mark_hidden("far:1", &fixture.listed);
    assert_eq!(hidden.deleted.len(), 1);
}

#[test]
fn d10_a_template_does_not_keep_a_resource_that_left_the_list() {
    let mut fixture = TableFixture::new();
    fixture.relist(&["t:1"]);
    // A dropped entry would count as a cancelled request.
    let mut entries = Vec::new();
    for (client, uri) in [(0, "t:1"), (1, "t:2")] {
        entries.push(fixture.subscribe(client, uri));
        fixture.reply(&format!("+{uri}"), UpstreamReply::Done);
    }
    assert_eq!(fixture.relist(&[]).1, ["t:1"], "the other was never listed");
    assert_eq!(fixture.mark_deleted("t:1"), ["t:1"]);
    assert_eq!(fixture.mark_deleted("t:1"), [""; 0]);
    assert_eq!(fixture.relist(&[]).1, [""; 0]);
    // The backend reports a change of the missing resource, and a read finds it.
    assert!(fixture.table.affected("t:1").is_empty() && fixture.table.note_change("t:1"));
    assert_eq!(fixture.relist(&[]).1, ["t:1"]);
    assert!(fixture.table.mark_readable("t:1").is_empty());
    assert_eq!(fixture.reply("+t:1", UpstreamReply::Done), 1);
    // The backend reports the end of a resource that was never listed.
    assert!(fixture.table.note_end("t:2"));
    assert_eq!(fixture.relist(&["t:1"]).1, ["t:2"]);
    assert_eq!(fixture.mark_deleted("t:2"), ["t:2"]);
    assert_eq!(fixture.relist(&["t:1"]).1, [""; 0]);
    // A rejected subscribe request does not end the deletion.
    entries.push(fixture.subscribe(0, "t:2"));
    assert_eq!(fixture.reply("+t:2", UpstreamReply::Failed("no".into())), 0);
    assert!(fixture.table.is_missing("t:2"));
    assert_eq!(fixture.table.all().count(), 2, "the other client stays");
    fixture.relist(&["t:1", "t:2"]);
    assert_eq!(fixture.reply("+t:2", UpstreamReply::Done), 1);
}

#[test]
fn d10_a_deletion_has_the_name_of_the_subscription_to_the_resource_itself() {
    for is_pattern_first in [false, true] {
        let mut fixture = TableFixture::new();
        fixture.relist(&["a:1"]);
        let mut entries = Vec::new();
        let order = if is_pattern_first { ["a:*", "a:1"] } else { ["a:1", "a:*"] };
        for uri in order {
            let pattern = (uri == "a:*").then(|| glob("a:*"));
            entries.push(fixture.subscribe_to(0, uri, pattern).unwrap_or_else(|limit| panic!("{limit:?}")));
        }
        fixture.reply("+a:1", UpstreamReply::Done);
        fixture.relist(&[]);
        let deleted = fixture.table.mark_deleted("a:1", &fixture.listed).deleted;
        let subscriptions: Vec<_> = deleted.iter().map(|notice| &*notice.subscription.name.native).collect();
        assert_eq!(subscriptions, ["a:1"], "one notice for the client");
    }
}

#[test]
fn d1_a_subscription_has_the_name_of_its_request_and_equal_names_are_shared() {
    for pattern in [None, Some(glob("a:*"))] {
        let mut fixture = TableFixture::new();
        let mut subscribe = |client: usize, exposed: &str| {
            let request = SubscribeRequest {
                subscriber: Arc::clone(&fixture.clients[client]),
                native: "a:*".into(),
                exposed: exposed.into(),
                pattern: pattern.clone(),
                is_forwarded: false,
                options: SubscriptionOptions::default(),
            };
            let count = Arc::default();
            let permit = || SubscriptionPermit::new((&count, 9), (&count, 9));
            fixture.table.subscribe(request, &fixture.listed, permit).map(|entry| entry.subscription).expect("room")
        };
        let first = subscribe(0, "x+a:*");
        assert!(Arc::ptr_eq(&first.name, &subscribe(1, "x+a:*").name));
        assert!(Arc::ptr_eq(&first.name, &subscribe(0, "other").name), "the same subscription");
        assert_eq!(&*subscribe(2, "other").name.exposed, "other");
    }
}
