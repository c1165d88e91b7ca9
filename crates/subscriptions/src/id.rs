//! The id of a subscription: `urn:uuid:` and a version 7 UUID. Ids sort by creation time.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PREFIX: &str = "urn:uuid:";
const NANOS_PER_MILLI: u128 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(u128);

impl SubscriptionId {
    /// Returns a new id with the present time.
    #[expect(clippy::disallowed_methods, reason = "an id has the time of its creation")]
    pub(crate) fn new() -> SubscriptionId {
        let mut random = [0; 16];
        getrandom::fill(&mut random).expect("the system has a random source");
        SubscriptionId::at(SystemTime::now(), random)
    }

    /// Returns the time of creation, with a precision of one millisecond.
    pub fn created(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(u64::try_from(self.0 >> 80).unwrap_or(u64::MAX))
    }

    fn at(now: SystemTime, random: [u8; 16]) -> SubscriptionId {
        let nanos = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let millis = (nanos / NANOS_PER_MILLI) & 0xffff_ffff_ffff;
        // The 12 bits after the version hold the fraction of the millisecond (RFC 9562, section 6.2, method 3).
        let fraction = ((nanos % NANOS_PER_MILLI) << 12) / NANOS_PER_MILLI;
        let random = u128::from_ne_bytes(random) & ((1 << 62) - 1);
        SubscriptionId(millis << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | random)
    }
}

impl fmt::Display for SubscriptionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        write!(formatter, "{PREFIX}{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

impl fmt::Debug for SubscriptionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for SubscriptionId {
    type Err = ();

    fn from_str(text: &str) -> Result<SubscriptionId, ()> {
        let hex: String = text.strip_prefix(PREFIX).ok_or(())?.split('-').collect();
        let id = SubscriptionId(u128::from_str_radix(&hex, 16).map_err(|_| ())?);
        // Accepts only the spelling that `Display` writes.
        if id.to_string() == text { Ok(id) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub4_ids_are_version_7_uuids_sort_by_time_and_read_back() {
        let begin = UNIX_EPOCH + Duration::from_millis(1_763_000_000_123);
        let at = |number: u8| begin + Duration::from_micros(50 * u64::from(number));
        let ids: Vec<_> = (0..100).map(|number| SubscriptionId::at(at(number), [255 - number; 16])).collect();
        assert_eq!(ids[70].created(), begin + Duration::from_millis(3));
        assert!(ids.is_sorted());
        for id in ids {
            let text = id.to_string();
            assert_eq!(&text[PREFIX.len() + 14..PREFIX.len() + 15], "7");
            assert!("89ab".contains(&text[PREFIX.len() + 19..PREFIX.len() + 20]));
            assert_eq!(text.parse(), Ok(id));
            assert!(text.to_uppercase().parse::<SubscriptionId>().is_err());
            assert!(text[PREFIX.len()..].parse::<SubscriptionId>().is_err());
        }
    }
}
