//! The address rule for URLs that a server names: nothing may be more private than the server itself.
//!
//! A server can name any URL as its login service. Without this rule, a server on the internet could make the gateway
//! send requests into the operator's network. A server on this machine may name every address.
//!
//! An address counts as the IPv4 address that it embeds. Addresses that belong to no ordinary host are refused: links,
//! multicast, documentation, benchmarks, tunnels with hidden addresses, and the metadata services of clouds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;

use crate::connect::{is_loopback, unbracketed};

/// The addresses that a client may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    Public,
    /// Public and private networks.
    Private,
    Everything,
}

/// The class of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressClass {
    Public,
    Private,
    Loopback,
    /// Reserved for a special purpose.
    Special,
}

impl Reach {
    /// Returns the addresses that the server at `url` may name. `peer` is the address of a connection to the server. If
    /// there is none, a literal address in the URL counts, and a name counts as public.
    ///
    /// A name that resolves to loopback proves nothing over plain `http`, so the server then counts as private.
    pub fn of_server(url: &Uri, peer: Option<IpAddr>) -> Reach {
        let host = url.host().unwrap_or_default();
        let Some(address) = peer.or_else(|| literal(host)) else { return Reach::Public };
        match AddressClass::of(address) {
            AddressClass::Public => Reach::Public,
            AddressClass::Loopback if url.scheme_str() == Some("https") || is_loopback(host) => Reach::Everything,
            AddressClass::Loopback | AddressClass::Private | AddressClass::Special => Reach::Private,
        }
    }

    /// Reports whether the rule allows a connection to the address.
    pub fn allows(self, address: IpAddr) -> bool {
        match AddressClass::of(address) {
            AddressClass::Public => true,
            AddressClass::Private => self >= Reach::Private,
            AddressClass::Loopback | AddressClass::Special => self == Reach::Everything,
        }
    }

    /// Reports whether the rule allows the host of a URL. Allows each name, because its addresses are checked later.
    pub(super) fn allows_host(self, host: &str) -> bool {
        literal(host).is_none_or(|address| self.allows(address))
    }
}

fn literal(host: &str) -> Option<IpAddr> {
    unbracketed(host).parse().ok()
}

impl AddressClass {
    fn of(address: IpAddr) -> AddressClass {
        match address {
            IpAddr::V4(address) => AddressClass::of_v4(address),
            IpAddr::V6(address) => match embedded(address) {
                Some(embedded) => AddressClass::of_v4(embedded),
                None => AddressClass::of_v6(address),
            },
        }
    }

    fn of_v4(address: Ipv4Addr) -> AddressClass {
        match address.octets() {
            [127, ..] => AddressClass::Loopback,
            // Metadata services of Alibaba Cloud and Azure.
            [100, 100, 100, 200] | [168, 63, 129, 16] => AddressClass::Special,
            [10, ..] | [100, 64..=127, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressClass::Private,
            [0, ..] | [169, 254, ..] | [198, 18..=19, ..] | [224..=255, ..] => AddressClass::Special,
            [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressClass::Special,
            _ => AddressClass::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> AddressClass {
        match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Loopback,
            // The metadata service of AWS.
            [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] => AddressClass::Special,
            [0xfc00..=0xfdff, ..] => AddressClass::Private,
            // Special protocols and documentation.
            [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => AddressClass::Special,
            [0x2000..=0x3fff, ..] => AddressClass::Public,
            _ => AddressClass::Special,
        }
    }
}

/// Returns the IPv4 address that an IPv4-mapped, 6to4 or NAT64 address stands for.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let (high, low) = match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => (high, low),
        [0x2002, high, low, ..] => (high, low),
        _ => return None,
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|_| panic!("{text} is no address"))
    }

    #[test]
    fn oauth1_every_kind_of_address_has_its_class() {
        let classes = [
            (AddressClass::Public, "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.0 172.15.0.1 172.32.0.1 192.0.1.1"),
            (AddressClass::Public, "198.17.0.1 198.20.0.1 223.255.255.255 169.253.0.1 192.167.1.1 11.0.0.1"),
            (AddressClass::Public, "2606:4700::1111 2001:200::1 2a00:1450::1 64:ff9b::8.8.8.8 ::ffff:8.8.8.8"),
            (AddressClass::Public, "2002:808:808::1"),
            (AddressClass::Private, "10.0.0.1 100.64.0.1 100.127.255.255 172.16.0.1 172.31.255.255 192.168.0.1"),
            (AddressClass::Private, "fc00::1 fdff::1 ::ffff:10.0.0.1 64:ff9b::10.1.2.3 2002:a00:1::1"),
            (AddressClass::Loopback, "127.0.0.1 127.255.255.255 ::1 ::ffff:127.0.0.1 64:ff9b::127.0.0.1 2002:7f00:1::"),
            (AddressClass::Special, "0.0.0.0 0.1.2.3 169.254.169.254 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1"),
            (AddressClass::Special, "198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255"),
            (AddressClass::Special, "100.100.100.200 168.63.129.16 fd00:ec2::254 ::ffff:169.254.169.254"),
            (
                AddressClass::Special,
                ":: ::2 ::127.0.0.1 fe80::1 fec0::1 ff02::1 2001::1 2001:2::1 2001:10::1 2001:db8::1",
            ),
            (AddressClass::Special, "3fff::1 100::1 64:ff9b:1::1 64:ff9b:0:0:0:1::1 5f00::1 4000::1 2002:a9fe:a9fe::"),
        ];
        for (class, addresses) in classes {
            for text in addresses.split(' ') {
                assert_eq!(AddressClass::of(address(text)), class, "{text}");
            }
        }
    }

    #[test]
    fn oauth1_a_server_reaches_nothing_more_private_than_itself() {
        let public = ("http://mcp.example/mcp", Some("8.8.8.8"), Reach::Public);
        let cases = [
            public,
            ("https://mcp.example/mcp", None, Reach::Public),
            ("https://mcp.example/mcp", Some("10.1.1.1"), Reach::Private),
            ("https://mcp.example/mcp", Some("127.0.0.1"), Reach::Everything),
            ("http://mcp.example/mcp", Some("127.0.0.1"), Reach::Private),
            ("http://localhost:8000/mcp", Some("::1"), Reach::Everything),
            ("http://127.0.0.1:8000/mcp", None, Reach::Everything),
            ("http://[::1]:8000/mcp", None, Reach::Everything),
            ("http://192.168.1.1/mcp", None, Reach::Private),
            ("http://169.254.0.7/mcp", None, Reach::Private),
            ("http://8.8.8.8/mcp", None, Reach::Public),
        ];
        for (url, peer, expected) in cases {
            let url = url.parse().expect("a URL");
            assert_eq!(Reach::of_server(&url, peer.map(address)), expected, "{url} at {peer:?}");
        }
        let (open, private, own) = (address("8.8.8.8"), address("10.0.0.1"), address("127.0.0.1"));
        let allowed = |reach: Reach| [open, private, own, address("169.254.169.254")].map(|it| reach.allows(it));
        assert_eq!(allowed(Reach::Public), [true, false, false, false]);
        assert_eq!(allowed(Reach::Private), [true, true, false, false]);
        assert_eq!(allowed(Reach::Everything), [true, true, true, true]);
        assert!(Reach::Public.allows_host("mcp.example") && !Reach::Public.allows_host("[::ffff:10.0.0.1]"));
    }
}
