use super::*;
use crate::caller::Node;
use crate::mailbox::replay::Replay;
use crate::mailbox::tally::Tally;

#[test]
fn sub18_a_uri_is_inside_of_its_beginnings_at_a_boundary() {
    let check = |native: &str, expected: &[&str]| assert_eq!(outer(native).collect::<Vec<_>>(), expected);
    check("a:b/c", &["a:b/", "a:b"]);
    check("a:b/", &["a:b"]);
    check("a:b?q#f", &["a:b?q", "a:b"]);
    check("a:b", &[]);
}

/// Interests with clients that are numbered.
struct Stage {
    interests: Interests,
    clients: Vec<(SessionId, Arc<Mailbox>)>,
    tally: Arc<Tally>,
}

impl Stage {
    fn new() -> Stage {
        let client = |_| {
            (
                SessionId::new(Node::random()),
                Arc::new(Mailbox::new(Default::default(), Default::default(), Replay::new(0))),
            )
        };
        let mut interests = Interests::default();
        interests.link_up(true);
        Stage { interests, clients: (0..3).map(client).collect(), tally: Arc::default() }
    }

    fn subscribe(&mut self, client: usize, uri: &str) -> Entry {
        let (id, mailbox) = &self.clients[client];
        let (native, exposed) = (Arc::from(uri), Arc::from(format!("x+{uri}")));
        let wish = Wish { client: *id, mailbox: Arc::clone(mailbox), native, exposed, pace: Pace::default() };
        let tally = &self.tally;
        let place = || Place::new((tally, 99), (&Arc::default(), 99));
        self.interests.subscribe(wish, place).unwrap_or_else(|full| panic!("{full:?}"))
    }

    fn unsubscribe(&mut self, client: usize, uri: &str) -> bool {
        self.interests.unsubscribe(&self.clients[client].1, uri).is_some()
    }

    /// The next job as `+uri` or `-uri`.
    fn job(&mut self) -> Option<(String, Job)> {
        let job = self.interests.next_job()?;
        Some((format!("{}{}", if job.subscribes { '+' } else { '-' }, job.native), job))
    }

    fn answer(&mut self, expected: &str, reply: Reply) -> usize {
        let (text, job) = self.job().expect("a job");
        assert_eq!(text, expected);
        self.interests.answered(&job, reply).len()
    }
}

fn settled(mut entry: Entry) -> String {
    let outcome = match &mut entry.standing {
        Standing::Settled(outcome) => outcome.clone(),
        Standing::Asked(asked) => asked.try_recv().expect("it is settled"),
    };
    format!("{outcome:?}").chars().take_while(|character| character.is_alphabetic()).collect()
}

#[test]
fn sub2_sub12_the_first_subscribes_and_the_last_unsubscribes() {
    let mut stage = Stage::new();
    let (one, two) = (stage.subscribe(0, "a"), stage.subscribe(1, "a"));
    assert_eq!(stage.answer("+a", Reply::Done), 0);
    assert_eq!((settled(one), settled(two)), ("Subscribed".to_owned(), "Subscribed".to_owned()));
    assert!(stage.unsubscribe(0, "a"));
    assert!(stage.job().is_none() && !stage.unsubscribe(0, "a"));
    assert!(stage.unsubscribe(1, "a"));
    stage.answer("-a", Reply::Done);
    assert!(stage.interests.is_empty() && stage.tally.count() == 0);
}

#[test]
fn sub10_a_refusal_reaches_all_who_wait_and_leaves_nothing() {
    let mut stage = Stage::new();
    let (one, two) = (stage.subscribe(0, "a"), stage.subscribe(1, "a"));
    stage.answer("+a", Reply::Failed("no".into()));
    assert_eq!((settled(one), settled(two)), ("Failed".to_owned(), "Failed".to_owned()));
    assert!(stage.interests.is_empty() && stage.job().is_none());
}

#[test]
fn sub9_what_cannot_be_asked_for_is_tracked() {
    let mut stage = Stage::new();
    let entry = stage.subscribe(0, "a");
    stage.answer("+a", Reply::Unknown);
    assert_eq!(settled(entry), "Tracked");
    assert_eq!(stage.interests.affected("a").len(), 1);
    assert!(stage.unsubscribe(0, "a") && stage.job().is_none() && stage.interests.is_empty());
    stage.interests.link_up(false);
    assert_eq!(settled(stage.subscribe(0, "b")), "Tracked");
    assert!(stage.job().is_none());
}

#[test]
fn sub2_whoever_changes_their_mind_while_the_backend_is_asked_ends_up_right() {
    let mut stage = Stage::new();
    stage.subscribe(0, "a");
    let (_, asking) = stage.job().expect("a job");
    stage.unsubscribe(0, "a");
    assert!(stage.job().is_none(), "one request at a time");
    stage.interests.answered(&asking, Reply::Done);
    let (text, ending) = stage.job().expect("it is not wanted");
    assert_eq!(text, "-a");
    let entry = stage.subscribe(1, "a");
    assert!(stage.job().is_none());
    stage.interests.answered(&ending, Reply::Done);
    stage.answer("+a", Reply::Done);
    assert_eq!(settled(entry), "Subscribed");
}

#[test]
fn sub16_after_a_loss_all_is_asked_for_again_and_told_once() {
    let mut stage = Stage::new();
    stage.subscribe(0, "a");
    stage.answer("+a", Reply::Done);
    stage.interests.link_down();
    assert_eq!(settled(stage.subscribe(1, "a")), "Pending");
    assert_eq!(settled(stage.subscribe(1, "b")), "Pending");
    assert!(stage.job().is_none());
    assert!(stage.interests.link_up(true).is_empty());
    let told: usize = (0..2)
        .map(|_| {
            let (_, job) = stage.job().expect("a job");
            stage.interests.answered(&job, Reply::Done).len()
        })
        .sum();
    assert_eq!(told, 3);
    assert!(stage.job().is_none());
}

#[test]
fn sub16_an_answer_over_a_connection_that_is_gone_means_nothing() {
    let mut stage = Stage::new();
    let entry = stage.subscribe(0, "a");
    let (_, old) = stage.job().expect("a job");
    stage.interests.link_down();
    assert_eq!(settled(entry), "Pending");
    stage.interests.link_up(true);
    assert!(stage.interests.answered(&old, Reply::Done).is_empty());
    assert_eq!(stage.answer("+a", Reply::Done), 1);
}

#[test]
fn sub5_a_client_hears_an_update_once_however_many_of_its_wishes_match() {
    let mut stage = Stage::new();
    stage.subscribe(0, "a:b");
    stage.subscribe(0, "a:b/c");
    stage.subscribe(1, "a:b/");
    stage.subscribe(2, "a:x");
    let who = |uri: &str| {
        let mut who: Vec<_> = stage.interests.affected(uri).iter().map(|found| found.name.native.to_string()).collect();
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
    let mut stage = Stage::new();
    for (client, uri) in [(0, "a"), (0, "b"), (1, "b")] {
        stage.subscribe(client, uri);
    }
    stage.answer("+a", Reply::Done);
    stage.answer("+b", Reply::Done);
    let gone = Arc::clone(&stage.clients[0].1);
    assert_eq!(stage.interests.release(&gone).len(), 2);
    stage.answer("-a", Reply::Done);
    assert!(stage.job().is_none());
    assert_eq!(stage.interests.affected("b").len(), 1);
}

#[test]
fn sub11_twice_is_once_and_the_newer_wish_stands() {
    let mut stage = Stage::new();
    let first = stage.subscribe(0, "a").subscription.id;
    stage.answer("+a", Reply::Done);
    let again = stage.subscribe(0, "a");
    assert_eq!(again.subscription.id, first);
    assert_eq!(settled(again), "Subscribed");
    assert_eq!(stage.tally.count(), 1);
    assert!(stage.job().is_none());
    assert_eq!(stage.interests.of(&stage.clients[0].1).len(), 1);
    assert!(stage.interests.of(&stage.clients[1].1).is_empty());
}
