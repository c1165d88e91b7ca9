//! Tests [`StreamPlan`] against a simulated backend and a model of the wanted and the promised URIs.

use proptest::prelude::*;

use super::*;

const URIS: [&str; 4] = ["a:1", "a:2", "a:3", "a:4"];

/// The events, which may happen in any order.
#[derive(Clone, Debug)]
enum PlanEvent {
    Add(&'static str),
    Remove(&'static str),
    /// Adds so many URIs that they exceed a delta.
    AddMany,
    /// Performs the plan's next step.
    Act,
    /// Acknowledges the stream that is being opened. Each set bit omits one URI; the highest bit omits the lists.
    Acknowledge(u8),
    Fail,
    /// Ends all streams.
    Lose,
    Wait(u8),
}

fn event() -> impl Strategy<Value = PlanEvent> {
    let uri = || prop::sample::select(URIS.to_vec());
    prop_oneof![
        6 => uri().prop_map(PlanEvent::Add),
        5 => uri().prop_map(PlanEvent::Remove),
        1 => Just(PlanEvent::AddMany),
        10 => Just(PlanEvent::Act),
        6 => Just(PlanEvent::Acknowledge(0)),
        2 => any::<u8>().prop_map(PlanEvent::Acknowledge),
        2 => Just(PlanEvent::Fail),
        1 => Just(PlanEvent::Lose),
        4 => (1..12_u8).prop_map(PlanEvent::Wait),
    ]
}

struct PlanModel {
    plan: StreamPlan,
    now: Instant,
    has_lists: bool,
    wanted: Uris,
    /// The URIs that the plan has confirmed.
    promised: Uris,
    /// The URIs that the plan has not answered yet.
    pending: Uris,
    base: Option<ListenFilter>,
    delta: Option<ListenFilter>,
    opening: Option<(StreamRole, ListenFilter)>,
}

impl PlanModel {
    fn new(has_lists: bool) -> PlanModel {
        let lists = ListenFilter { tools: has_lists, ..ListenFilter::default() };
        PlanModel {
            plan: StreamPlan::new(lists),
            now: Instant::now(),
            has_lists,
            wanted: Uris::new(),
            promised: Uris::new(),
            pending: Uris::new(),
            base: None,
            delta: None,
            opening: None,
        }
    }

    fn apply(&mut self, event: PlanEvent) {
        match event {
            PlanEvent::Add(uri) => self.add(uri.into()),
            PlanEvent::Remove(uri) => self.remove(uri),
            PlanEvent::AddMany => (0..MAX_DELTA_URIS).for_each(|number| self.add(format!("b:{number}").into())),
            PlanEvent::Act => self.act(),
            PlanEvent::Acknowledge(bits) => self.acknowledge(bits),
            PlanEvent::Fail => self.fail(),
            PlanEvent::Lose => self.lose(),
            PlanEvent::Wait(seconds) => self.now += Duration::from_secs(seconds.into()),
        }
        self.check();
    }

    fn add(&mut self, uri: Arc<str>) {
        // Only one request per URI is in progress, but a confirmed URI may be requested again.
        if self.pending.contains(&uri) {
            return;
        }
        self.promised.remove(&uri);
        self.wanted.insert(Arc::clone(&uri));
        let target = if self.plan.add(&uri) { &mut self.promised } else { &mut self.pending };
        target.insert(uri);
    }

    fn remove(&mut self, uri: &str) {
        self.wanted.remove(uri);
        self.promised.remove(uri);
        self.pending.remove(uri);
        self.plan.remove(uri, self.now);
    }

    fn act(&mut self) {
        match self.plan.next(self.now) {
            Some(StreamAction::Open(role, filter)) => {
                assert!(self.opening.is_none(), "one stream is opened at a time");
                assert_eq!(filter.tools, self.has_lists && role == StreamRole::Base);
                assert!(!filter.is_empty() && filter.uris.is_subset(&self.wanted), "{filter:?}");
                assert!(role == StreamRole::Base || self.base.is_some());
                self.opening = Some((role, filter));
            }
            Some(StreamAction::Close) => {
                assert!(self.wanted.is_empty() && !self.has_lists);
                (self.base, self.delta) = (None, None);
            }
            Some(StreamAction::Drop) => {
                assert!(self.wanted.is_empty() && (self.base.is_some() || self.delta.is_some()));
                (self.base, self.delta) = (None, None);
                self.act();
            }
            None => {}
        }
    }

    fn acknowledge(&mut self, bits: u8) {
        let Some((role, mut filter)) = self.opening.take() else { return };
        let omitted =
            |uri: &Arc<str>| URIS.iter().position(|known| **known == **uri).is_some_and(|at| bits & 1 << at != 0);
        filter.uris.retain(|uri| !omitted(uri));
        filter.tools &= bits & 0x80 == 0;
        let settled = self.plan.opened(&filter, self.now);
        let stream = Some(filter.clone()).filter(|filter| !filter.is_empty());
        match role {
            StreamRole::Base => {
                self.has_lists &= stream.is_some();
                (self.base, self.delta) = (stream, None);
            }
            StreamRole::Delta => self.delta = stream,
        }
        assert_eq!(settled.served, filter.uris.into_iter().collect::<Vec<_>>());
        self.settle(settled);
    }

    fn fail(&mut self) {
        let Some((role, _)) = self.opening.take() else { return };
        let settled = self.plan.failed(self.now);
        assert!(settled.unserved.is_empty() || role == StreamRole::Delta || self.base.is_none());
        self.settle(settled);
    }

    /// Records an outcome. Ignores URIs that are no longer wanted.
    fn settle(&mut self, settled: StreamOutcome) {
        for uri in settled.served {
            if self.pending.remove(&uri) {
                self.promised.insert(uri);
            }
        }
        for uri in settled.unserved {
            self.wanted.remove(&uri);
            self.promised.remove(&uri);
            self.pending.remove(&uri);
        }
    }

    fn lose(&mut self) {
        (self.base, self.delta, self.opening) = (None, None, None);
        self.plan.reset();
        self.promised.clear();
        self.pending.clear();
        for uri in std::mem::take(&mut self.wanted) {
            self.add(uri);
        }
    }

    fn served(&self) -> Uris {
        self.base.iter().chain(&self.delta).flat_map(|filter| filter.uris.iter().cloned()).collect()
    }

    fn check(&self) {
        let served = self.served();
        assert!(self.promised.is_subset(&served), "{:?} is promised, but only {served:?} is served", self.promised);
        let answered_or_pending = &self.promised | &self.pending;
        assert_eq!(answered_or_pending, self.wanted, "every wanted URI is promised or pending");
        let due = self.plan.due();
        assert!(due.is_none_or(|due| due <= self.now + MERGE_AFTER));
        let is_settled = served.is_subset(&self.wanted) && self.delta.is_none();
        assert!(is_settled || due.is_some() || self.opening.is_some(), "an unwanted URI is served for ever");
    }

    /// Acknowledges every stream and lets time pass until nothing is left to do.
    fn finish(&mut self) {
        for _ in 0..9 {
            self.apply(PlanEvent::Act);
            self.apply(PlanEvent::Acknowledge(0));
            self.apply(PlanEvent::Act);
            if self.opening.is_none() && self.plan.due().is_none() {
                break;
            }
            if self.opening.is_none() {
                assert!(self.pending.is_empty(), "no pending URI waits for time to pass");
                self.apply(PlanEvent::Wait(10));
            }
        }
        assert!(self.opening.is_none() && self.pending.is_empty() && self.delta.is_none());
        assert_eq!(self.served(), self.wanted);
        assert_eq!(self.base.is_some(), self.has_lists || !self.wanted.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    #[test]
    fn srv2_sub2_no_interleaving_leaves_a_gap_or_an_unwanted_subscription(
        has_lists in any::<bool>(),
        events in prop::collection::vec(event(), 0..200),
    ) {
        let mut model = PlanModel::new(has_lists);
        for event in events {
            model.apply(event);
        }
        model.finish();
        for uri in model.wanted.clone() {
            model.remove(&uri);
        }
        model.finish();
        prop_assert!(model.served().is_empty());
    }
}
