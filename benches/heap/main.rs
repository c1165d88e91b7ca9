//! Measures the subscriptions of one backend: the heap bytes while they exist, and the CPU time when their client ends.
//!
//! This is a separate process because it replaces the global allocator. It prints one line of JSON for `goblin-bench`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use goblin_config::exposure::Profile;
use goblin_subscriptions::count::{SubscriptionCount, SubscriptionPermit};
use goblin_subscriptions::table::SubscriptionTable;
use goblin_subscriptions::{ClientId, OfferedResources, SubscribeRequest, Subscriber, SubscriptionOptions};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// The length of a backend's URI.
const URI_LENGTH: usize = 60;
const CLIENTS: usize = 1000;
const URIS: usize = 100;
/// The subscriptions of each client that ends.
const OWN: usize = 10;
/// The number of clients that end.
const ENDS: usize = 101;

/// The system's allocator with a count of the bytes in use.
struct Counted;

static HEAP: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counted = Counted;

// SAFETY: every call is passed on unchanged, and the counting does not touch the memory.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HEAP.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn main() -> io::Result<()> {
    let memory = [kept(|_, number| number), kept(|client, number| client * URIS + number)];
    let ends = [1000, 100_000].map(end);
    writeln!(io::stdout(), "{}", json!({ "memory": memory, "ends": ends }))
}

/// Measures the heap bytes of the subscriptions of many clients. `uri` maps a client's number and a subscription's
/// number to the number of a URI.
fn kept(uri: impl Fn(usize, usize) -> usize) -> Value {
    let clients = clients(CLIENTS);
    let mut book = Book::default();
    let before = HEAP.load(Ordering::Relaxed);
    for (number, client) in clients.iter().enumerate() {
        for own in 0..URIS {
            book.subscribe(client, uri(number, own));
        }
    }
    let bytes = HEAP.load(Ordering::Relaxed) - before;
    let uris = uri(CLIENTS - 1, URIS - 1) + 1;
    json!({ "clients": CLIENTS, "uris": uris, "subscriptions": CLIENTS * URIS, "bytes": bytes })
}

/// Measures the CPU time of releasing a client, while other clients have `others` subscriptions to the same resources.
fn end(others: usize) -> Value {
    let (clients, ending) = (clients(others / OWN), clients(ENDS));
    let mut book = Book::default();
    for client in clients.iter().chain(&ending) {
        for uri in 0..OWN {
            book.subscribe(client, uri);
        }
    }
    let mut times: Vec<_> = ending
        .iter()
        .map(|client| {
            let before = cpu_nanoseconds();
            drop(book.table.release(client));
            cpu_nanoseconds() - before
        })
        .collect();
    times.sort_unstable();
    json!({ "own": OWN, "others": others, "nanoseconds": times[ENDS / 2] })
}

struct Book {
    table: SubscriptionTable<Client>,
    all: Arc<SubscriptionCount>,
}

impl Default for Book {
    fn default() -> Book {
        Book { table: SubscriptionTable::new(usize::MAX), all: Arc::default() }
    }
}

/// The offers of a backend without a list. Every URI is accepted.
struct Nothing;

impl OfferedResources for Nothing {
    fn listed(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(std::iter::empty())
    }

    fn lists(&self, _: &str) -> bool {
        true
    }

    fn has(&self, _: &str) -> bool {
        true
    }

    fn is_shown(&self, _native: &str, _profile: &Profile) -> bool {
        true
    }
}

impl Book {
    fn subscribe(&mut self, client: &Arc<Client>, uri: usize) {
        let native = format!("note:///{uri:0width$}", width = URI_LENGTH - "note:///".len());
        let request = SubscribeRequest {
            subscriber: Arc::clone(client),
            exposed: format!("backend+{native}").into(),
            native: native.into(),
            pattern: None,
            is_forwarded: false,
            options: SubscriptionOptions::default(),
        };
        let room = (&client.subscriptions, usize::MAX);
        let place = || SubscriptionPermit::new(room, (&self.all, usize::MAX));
        self.table.subscribe(request, &Nothing, place).map(drop).expect("there is room for all");
    }
}

struct Client {
    id: ClientId,
    subscriptions: Arc<SubscriptionCount>,
}

impl Subscriber for Client {
    fn id(&self) -> ClientId {
        self.id
    }

    fn profile(&self) -> Option<Arc<Profile>> {
        None
    }
}

fn clients(count: usize) -> Vec<Arc<Client>> {
    (0..count).map(|_| Arc::new(Client { id: ClientId::next(), subscriptions: Arc::default() })).collect()
}

fn cpu_nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
