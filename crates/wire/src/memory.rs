//! Accounts for the buffers that clients and backends make the gateway hold.
//!
//! A [`Reservation`] counts bytes until it is dropped. `gateway.maxMemory` limits the sum of all reservations. New work
//! above the maximum is rejected. Accepted work is counted without a check.
//!
//! Messages below [`SMALL`] are not counted. The limits on calls bound their number, and a small call must succeed
//! while large ones wait.
//!
//! A message is counted for as long as any slice of its bytes lives, because the reservation belongs to the buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::{Error, Limit};

/// The size from which a message is counted, in bytes.
pub const SMALL: usize = 16 * 1024;
/// The limit for the request bodies of all clients together, in bytes.
pub const MAX_BODY_BYTES: usize = 128 * 1024 * 1024;

crate::labels! {
    /// A kind of buffer.
    BufferKind {
        Bodies = "bodies",
        Answers = "answers",
        Listings = "listings",
        KnownUris = "known_uris",
        Replay = "replay",
        Logs = "logs",
        Calls = "calls",
    }
}

impl BufferKind {
    fn limit(self) -> Option<(Limit, usize)> {
        match self {
            BufferKind::Bodies => Some((Limit::BodyBytes, MAX_BODY_BYTES)),
            BufferKind::Answers
            | BufferKind::Listings
            | BufferKind::KnownUris
            | BufferKind::Replay
            | BufferKind::Logs
            | BufferKind::Calls => None,
        }
    }
}

/// Counts the reserved bytes of one gateway.
#[derive(Debug)]
pub struct Memory {
    max: AtomicUsize,
    total: AtomicUsize,
    kinds: [AtomicUsize; BufferKind::ALL.len()],
}

/// The error of a limit without room for a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationError {
    pub limit: Limit,
    pub value: usize,
}

impl From<ReservationError> for Error {
    fn from(error: ReservationError) -> Error {
        Error::NoRoom { limit: error.limit.as_str(), value: error.value }
    }
}

impl Default for Memory {
    /// Returns an account without a maximum.
    fn default() -> Memory {
        let (max, total) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
        Memory { max, total, kinds: std::array::from_fn(|_| AtomicUsize::new(0)) }
    }
}

impl Memory {
    pub fn set_max(&self, bytes: usize) {
        self.max.store(bytes, Ordering::Relaxed);
    }

    pub fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Returns the reserved bytes of every kind.
    pub fn read(&self) -> Vec<(&'static str, usize)> {
        let bytes = self.kinds.iter().map(|bytes| bytes.load(Ordering::Relaxed));
        BufferKind::ALL.iter().map(|kind| kind.as_str()).zip(bytes).collect()
    }

    /// Returns an error if the reservations have reached the maximum.
    pub fn check(&self) -> Result<(), ReservationError> {
        let max = self.max();
        if self.total.load(Ordering::Relaxed) < max {
            Ok(())
        } else {
            Err(ReservationError { limit: Limit::MaxMemory, value: max })
        }
    }

    /// Reserves bytes for new work. Returns an error if a limit has no room for them.
    pub fn reserve(self: &Arc<Memory>, kind: BufferKind, bytes: usize) -> Result<Reservation, ReservationError> {
        let mut reservation = self.hold(kind, 0);
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// Counts bytes of work that has already been accepted.
    pub fn hold(self: &Arc<Memory>, kind: BufferKind, bytes: usize) -> Reservation {
        self.add(kind, bytes);
        Reservation { memory: Arc::clone(self), kind, bytes }
    }

    /// Counts a message of accepted work until its last slice is dropped. Ignores messages below [`SMALL`].
    pub fn hold_message(self: &Arc<Memory>, kind: BufferKind, message: Bytes) -> Bytes {
        if message.len() < SMALL {
            return message;
        }
        self.hold(kind, message.len()).keep(message)
    }

    /// Adds bytes without a check. The caller must remove them with [`Memory::sub`].
    pub fn add(&self, kind: BufferKind, bytes: usize) {
        self.kinds[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn sub(&self, kind: BufferKind, bytes: usize) {
        self.kinds[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn try_add(&self, kind: BufferKind, bytes: usize) -> Result<(), ReservationError> {
        let of_kind = &self.kinds[kind as usize];
        let (limit, value) = kind.limit().unwrap_or((Limit::MaxMemory, usize::MAX));
        add_within(of_kind, bytes, value).ok_or(ReservationError { limit, value })?;
        let max = self.max();
        add_within(&self.total, bytes, max).ok_or_else(|| {
            of_kind.fetch_sub(bytes, Ordering::Relaxed);
            ReservationError { limit: Limit::MaxMemory, value: max }
        })
    }
}

fn add_within(sum: &AtomicUsize, bytes: usize, max: usize) -> Option<()> {
    let add = |sum: usize| sum.checked_add(bytes).filter(|sum| *sum <= max);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok().map(drop)
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    memory: Arc<Memory>,
    kind: BufferKind,
    bytes: usize,
}

impl Reservation {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves more bytes. Returns an error and keeps the current bytes if a limit has no room.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ReservationError> {
        self.memory.try_add(self.kind, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts more bytes of work that has already been accepted.
    pub fn add(&mut self, bytes: usize) {
        self.memory.add(self.kind, bytes);
        self.bytes += bytes;
    }

    /// Releases a part of the bytes.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.memory.sub(self.kind, bytes);
        self.bytes -= bytes;
    }

    /// Attaches this reservation to a buffer. The bytes are released when the last slice of the buffer is dropped.
    pub fn keep(self, buffer: Bytes) -> Bytes {
        Bytes::from_owner(ReservedBuffer { buffer, _reservation: self })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.sub(self.kind, self.bytes);
    }
}

struct ReservedBuffer {
    buffer: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for ReservedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(memory: &Memory, kind: BufferKind) -> usize {
        memory.kinds[kind as usize].load(Ordering::Relaxed)
    }

    #[test]
    fn hard3_the_maximum_bounds_the_sum_of_all_kinds() {
        let memory = Arc::new(Memory::default());
        memory.set_max(100);
        let listings = memory.reserve(BufferKind::Listings, 60).expect("there is room");
        let full = ReservationError { limit: Limit::MaxMemory, value: 100 };
        assert_eq!(memory.reserve(BufferKind::Bodies, 41).map(drop), Err(full));
        assert_eq!(reserved(&memory, BufferKind::Bodies), 0, "a rejected reservation counts nothing");
        let mut bodies = memory.reserve(BufferKind::Bodies, 40).expect("the maximum fits");
        assert_eq!(memory.check(), Err(full));
        assert_eq!(bodies.grow(1), Err(full));
        bodies.shrink(10);
        assert_eq!(memory.check(), Ok(()));
        let answer = memory.hold(BufferKind::Answers, 1000);
        assert_eq!(memory.check(), Err(full), "accepted work is counted without a check");
        drop((listings, bodies, answer));
        assert_eq!(memory.read().iter().map(|(_, bytes)| bytes).sum::<usize>(), 0);
        assert_eq!(memory.total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn hard2_bodies_have_a_maximum_of_their_own() {
        let memory = Arc::new(Memory::default());
        let _bodies = memory.reserve(BufferKind::Bodies, MAX_BODY_BYTES).expect("the maximum fits");
        let full = ReservationError { limit: Limit::BodyBytes, value: MAX_BODY_BYTES };
        assert_eq!(memory.reserve(BufferKind::Bodies, 1).map(drop), Err(full));
        assert!(memory.reserve(BufferKind::Listings, 1).is_ok());
    }

    #[test]
    fn a_message_counts_until_its_last_slice_is_dropped() {
        let memory = Arc::new(Memory::default());
        let message = memory.hold_message(BufferKind::Answers, vec![b'x'; SMALL].into());
        let slice = message.slice(1..2);
        drop(message);
        assert_eq!((&slice[..], reserved(&memory, BufferKind::Answers)), (&b"x"[..], SMALL));
        drop(slice);
        assert_eq!(reserved(&memory, BufferKind::Answers), 0);
        let small = memory.hold_message(BufferKind::Answers, vec![b'x'; SMALL - 1].into());
        assert_eq!((small.len(), reserved(&memory, BufferKind::Answers)), (SMALL - 1, 0));
    }
}
