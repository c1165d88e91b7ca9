//! [`Interests`] against a model that keeps nothing but who wants what, and against an upstream that keeps what it was told.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::caller::Node;
use crate::mailbox::replay::Replay;
use crate::mailbox::tally::Tally;

const CLIENTS: usize = 3;
const URIS: [&str; 3] = ["a:1", "a:2", "a:3"];

/// What may happen, in any order.
#[derive(Clone, Debug)]
enum Step {
    Subscribe(usize, usize),
    Unsubscribe(usize, usize),
    /// A client goes; another one takes its number.
    Release(usize),
    /// Nobody waits any more for the oldest open answer of a client.
    Cancel(usize),
    /// Something is said upstream.
    Say,
    /// The answer to one of the jobs that are on their way.
    Answer(usize, Verdict),
    /// The answer to one that was said over a connection that is gone.
    AnswerLate(Verdict),
    Down,
    Up(bool),
}

#[derive(Clone, Copy, Debug)]
enum Verdict {
    Done,
    Unknown,
    Refused,
}

impl Verdict {
    fn reply(self) -> Reply {
        match self {
            Verdict::Done => Reply::Done,
            Verdict::Unknown => Reply::Unknown,
            Verdict::Refused => Reply::Failed("no".into()),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let pair = || (0..CLIENTS, 0..URIS.len());
    let verdict = || prop_oneof![4 => Just(Verdict::Done), 1 => Just(Verdict::Unknown), 1 => Just(Verdict::Refused)];
    prop_oneof![
        6 => pair().prop_map(|(client, uri)| Step::Subscribe(client, uri)),
        4 => pair().prop_map(|(client, uri)| Step::Unsubscribe(client, uri)),
        1 => (0..CLIENTS).prop_map(Step::Release),
        1 => (0..CLIENTS).prop_map(Step::Cancel),
        6 => Just(Step::Say),
        6 => (0..8_usize, verdict()).prop_map(|(which, verdict)| Step::Answer(which, verdict)),
        1 => verdict().prop_map(Step::AnswerLate),
        1 => Just(Step::Down),
        2 => any::<bool>().prop_map(Step::Up),
    ]
}

/// One subscribe of a client that is not answered.
struct Open {
    client: usize,
    uri: &'static str,
    is_new: bool,
    asked: oneshot::Receiver<Outcome>,
}

struct World {
    interests: Interests,
    clients: Vec<(SessionId, Arc<Mailbox>)>,
    tally: Arc<Tally>,
    /// The model: who wants what.
    wanted: BTreeSet<(usize, &'static str)>,
    open: Vec<Open>,
    /// Said, and not answered.
    jobs: Vec<Job>,
    /// Said over connections that are gone.
    late: Vec<Job>,
    /// What the upstream would tell of, by what it was told.
    upstream: BTreeSet<String>,
    /// What it would not be asked for: refused to somebody who stays, or not known.
    excused: BTreeSet<String>,
    is_up: bool,
}

impl World {
    fn new() -> World {
        World {
            interests: Interests::default(),
            clients: (0..CLIENTS).map(|_| client()).collect(),
            tally: Arc::default(),
            wanted: BTreeSet::new(),
            open: Vec::new(),
            jobs: Vec::new(),
            late: Vec::new(),
            upstream: BTreeSet::new(),
            excused: BTreeSet::new(),
            is_up: false,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Subscribe(client, uri) => self.subscribe(client, URIS[uri]),
            Step::Unsubscribe(client, uri) => {
                let ended = self.interests.unsubscribe(&self.clients[client].1, URIS[uri]).is_some();
                assert_eq!(ended, self.wanted.remove(&(client, URIS[uri])));
            }
            Step::Release(client) => {
                let ended = self.interests.release(&self.clients[client].1).len();
                let before = self.wanted.len();
                self.wanted.retain(|(other, _)| *other != client);
                assert_eq!(ended, before - self.wanted.len());
                self.settle();
                self.clients[client] = self::client();
            }
            Step::Cancel(client) => self.cancel(client),
            Step::Say => drop(self.say()),
            Step::Answer(which, verdict) if !self.jobs.is_empty() => self.answer(which % self.jobs.len(), verdict),
            Step::Answer(..) => {}
            Step::AnswerLate(verdict) => {
                let missed = self.late.pop().map(|job| self.interests.answered(&job, verdict.reply()));
                assert!(missed.is_none_or(|missed| missed.is_empty()));
            }
            Step::Down => self.down(),
            Step::Up(can_subscribe) => self.up(can_subscribe),
        }
        self.settle();
        self.check();
    }

    fn subscribe(&mut self, client: usize, uri: &'static str) {
        let (session, mailbox) = &self.clients[client];
        let (native, exposed) = (Arc::from(uri), Arc::from(format!("x+{uri}")));
        let wish = Wish { client: *session, mailbox: Arc::clone(mailbox), native, exposed, pace: Pace::default() };
        let tally = &self.tally;
        let entry = self.interests.subscribe(wish, || Place::new((tally, 99), (&Arc::default(), 99)));
        let is_new = self.wanted.insert((client, uri));
        match entry.unwrap_or_else(|full| panic!("{full:?}")).standing {
            Standing::Settled(outcome) => {
                assert!(matches!(outcome, Outcome::Subscribed | Outcome::Tracked | Outcome::Pending), "{outcome:?}");
            }
            Standing::Asked(asked) => self.open.push(Open { client, uri, is_new, asked }),
        }
    }

    fn cancel(&mut self, client: usize) {
        let Some(at) = self.open.iter().position(|open| open.client == client) else { return };
        let Open { uri, is_new, asked, .. } = self.open.remove(at);
        drop(asked);
        self.interests.withdraw(&self.clients[client].1, uri);
        match self.open.iter_mut().find(|open| open.client == client && open.uri == uri) {
            Some(other) => other.is_new |= is_new,
            None if is_new => drop(self.wanted.remove(&(client, uri))),
            None => {}
        }
    }

    /// The next job, which the upstream hears.
    fn say(&mut self) -> Option<Job> {
        let job = self.interests.next_job()?;
        assert!(self.is_up, "nothing is said without a connection");
        assert!(self.jobs.iter().all(|other| other.native != job.native), "one request per URI at a time");
        assert_eq!(self.upstream.contains(&*job.native), !job.subscribes, "nothing is said twice: {job:?}");
        self.jobs.push(job.clone());
        Some(job)
    }

    fn answer(&mut self, which: usize, verdict: Verdict) {
        let job = self.jobs.remove(which);
        let uri = job.native.to_string();
        match (job.subscribes, verdict) {
            (true, Verdict::Done) => drop(self.upstream.insert(uri.clone())),
            // Whatever it says, it was told.
            (false, _) => drop(self.upstream.remove(&uri)),
            (true, _) => {}
        }
        self.interests.answered(&job, verdict.reply());
        if job.subscribes {
            self.excused.remove(&uri);
            if !matches!(verdict, Verdict::Done) {
                self.excused.insert(uri);
            }
        }
    }

    fn down(&mut self) {
        self.interests.link_down();
        self.is_up = false;
        self.late.append(&mut self.jobs);
        self.upstream.clear();
        self.excused.clear();
    }

    fn up(&mut self, can_subscribe: bool) {
        // As the owner of a link does it.
        self.down();
        self.interests.link_up(can_subscribe);
        self.is_up = can_subscribe;
    }

    /// Takes the answers that are there. Who was entered for what was refused wants it no more.
    fn settle(&mut self) {
        let wanted = &mut self.wanted;
        self.open.retain_mut(|open| match open.asked.try_recv() {
            Ok(Outcome::Refused(_) | Outcome::Failed(_)) => {
                if open.is_new {
                    wanted.remove(&(open.client, open.uri));
                }
                false
            }
            Ok(_) => {
                assert!(wanted.contains(&(open.client, open.uri)));
                false
            }
            Err(oneshot::error::TryRecvError::Closed) => false,
            Err(oneshot::error::TryRecvError::Empty) => true,
        });
    }

    /// The tables say what the model says.
    fn check(&self) {
        assert_eq!(self.tally.count(), self.wanted.len());
        for (number, (_, mailbox)) in self.clients.iter().enumerate() {
            let own: BTreeSet<_> = self.interests.of(mailbox).iter().map(|it| it.name.native.to_string()).collect();
            let wanted = self.wanted.iter().filter(|(client, _)| *client == number);
            assert_eq!(own, wanted.map(|(_, uri)| (*uri).to_owned()).collect());
        }
        for uri in URIS {
            let count = self.wanted.iter().filter(|(_, wanted)| *wanted == uri).count();
            assert_eq!(self.interests.affected(uri).len(), count, "{uri}");
        }
        assert_eq!(self.interests.all().count(), self.wanted.len());
    }

    /// Says and answers until there is nothing left to say.
    fn finish(&mut self) {
        loop {
            while self.say().is_some() {}
            if self.jobs.is_empty() {
                break;
            }
            self.answer(0, Verdict::Done);
            self.settle();
            self.check();
        }
        assert!(self.open.is_empty(), "nobody waits for ever");
        if self.is_up {
            let mut expected: BTreeSet<_> = self.wanted.iter().map(|(_, uri)| (*uri).to_owned()).collect();
            expected.retain(|uri| !self.excused.contains(uri));
            assert_eq!(self.upstream, expected);
        }
    }
}

fn client() -> (SessionId, Arc<Mailbox>) {
    (SessionId::new(Node::random()), Arc::new(Mailbox::new(Default::default(), Default::default(), Replay::new(0))))
}

proptest! {
    #[test]
    fn sub2_sub12_sub16_no_interleaving_leaves_the_upstream_wrong(steps in prop::collection::vec(step(), 0..60)) {
        let mut world = World::new();
        world.up(true);
        for step in steps {
            world.take(step);
        }
        world.finish();
        for number in 0..CLIENTS {
            world.take(Step::Release(number));
        }
        world.finish();
        prop_assert!(world.interests.is_empty() && world.upstream.is_empty() && world.tally.count() == 0);
    }
}
