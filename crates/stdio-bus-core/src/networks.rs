//! Networks in CIDR notation: `10.0.0.0/8`, `2001:db8::/32`, or a single address (RFC 4632).

use alloc::string::String;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses with a common prefix. IPv4 and IPv6 are separate: `::/0` holds no IPv4 address, in any notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its lowest address.
    first: IpAddr,
    /// Length of the prefix in bits.
    prefix: u32,
}

impl Network {
    /// Parses a network.
    ///
    /// # Errors
    /// What is wrong with it and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("{text:?} is not a network; write 10.0.0.0/8, 2001:db8::/32 or 192.0.2.7"))?;
        let width = width(address);
        let prefix = match bits {
            None => width,
            Some(bits) => {
                // `u32::from_str` alone would take "+8".
                let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
                let prefix = bits.parse().ok().filter(|prefix| digits && *prefix <= width);
                prefix.ok_or_else(|| format!("the number behind the slash must be from 0 to {width}, not {bits:?}"))?
            }
        };
        let first = first(address, prefix);
        if first != address {
            return Err(format!(
                "{address} has bits beyond the first {prefix}; write {first}/{prefix}, or {address} alone"
            ));
        }
        // An IPv4 address mapped into IPv6 is IPv4.
        let canonical = first.to_canonical();
        let mapped = width - self::width(canonical);
        Ok(match prefix.checked_sub(mapped) {
            Some(prefix) => Self { first: canonical, prefix },
            None => Self { first, prefix },
        })
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        width(address) == width(self.first) && first(address, self.prefix) == self.first
    }
}

/// Number of bits of such an address.
fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS }
}

/// The lowest address with the same `prefix` first bits.
fn first(address: IpAddr, prefix: u32) -> IpAddr {
    let mask = u128::MAX.checked_shl(width(address) - prefix).unwrap_or(0);
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & mask as u32).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & mask).into(),
    }
}

impl core::fmt::Display for Network {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(network: &str, address: &str) -> bool {
        let network = Network::parse(network).expect("a network");
        network.contains(address.parse().expect("an address"))
    }

    #[test]
    fn a_network_holds_the_addresses_that_begin_like_it() {
        assert!(holds("10.0.0.0/8", "10.255.255.255") && !holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("192.0.2.128/25", "192.0.2.128") && !holds("192.0.2.128/25", "192.0.2.127"));
        assert!(holds("2001:db8::/32", "2001:db8:ffff::1") && !holds("2001:db8::/32", "2001:db9::"));
        assert!(holds("192.0.2.7", "192.0.2.7") && !holds("192.0.2.7", "192.0.2.6"));
        assert!(holds("::1", "::1") && !holds("::1", "::2"));
    }

    #[test]
    fn every_address_is_in_the_network_of_its_kind_alone() {
        assert!(holds("0.0.0.0/0", "203.0.113.9") && !holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("::/0", "2001:db8::1") && !holds("::/0", "203.0.113.9"));
    }

    #[test]
    fn an_ipv4_address_that_is_mapped_into_ipv6_is_one_of_ipv4() {
        assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3") && !holds("::/0", "::ffff:10.1.2.3"));
        assert!(holds("::ffff:10.0.0.0/104", "10.1.2.3") && !holds("::ffff:10.0.0.0/104", "11.1.2.3"));
        assert!(holds("::ffff:0:0/96", "10.1.2.3"));
    }

    #[test]
    fn the_error_for_an_invalid_network_says_what_to_write() {
        let wrong = |text: &str| Network::parse(text).expect_err("it is none");
        assert_eq!(wrong("10.0.0.1/8"), "10.0.0.1 has bits beyond the first 8; write 10.0.0.0/8, or 10.0.0.1 alone");
        assert_eq!(wrong("10.0.0.0/33"), "the number behind the slash must be from 0 to 32, not \"33\"");
        assert_eq!(wrong("::/129"), "the number behind the slash must be from 0 to 128, not \"129\"");
        for text in ["10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8"] {
            assert!(wrong(text).starts_with("the number behind the slash must be from 0 to 32"), "{text}");
        }
        for text in ["", "10.0.0/8", "localhost", "[::1]", "10.0.0.0:80", "*"] {
            assert!(wrong(text).contains("is not a network; write 10.0.0.0/8"), "{text}");
        }
    }

    #[test]
    fn a_network_is_written_as_it_is_read() {
        for text in ["10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0", "::/0", "192.0.2.7/32"] {
            assert_eq!(Network::parse(text).map(|network| network.to_string()), Ok(text.to_owned()));
        }
    }
}
