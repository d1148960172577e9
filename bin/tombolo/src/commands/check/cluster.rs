//! Reading certificates and clocks of clusters.

use k8s_openapi::jiff::Timestamp;
use x509_parser::pem::Pem;

/// A certificate that ends within this many days is worth a word.
pub const SOON_DAYS: i64 = 7;

/// Days until the first certificate of a PEM text ends; negative when it has.
pub fn days_left(pem: &[u8], now: Timestamp) -> Option<i64> {
    let pem = Pem::iter_from_buffer(pem).next()?.ok()?;
    let ends = pem.parse_x509().ok()?.validity().not_after.timestamp();
    Some((ends - now.as_second()).div_euclid(86_400))
}

/// The common name in the first certificate of a PEM text.
pub fn common_name(pem: &[u8]) -> Option<String> {
    let pem = Pem::iter_from_buffer(pem).next()?.ok()?;
    let certificate = pem.parse_x509().ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}

/// How far a server's clock is ahead of ours, in seconds, from the `Date` of an answer.
pub fn ahead(date: &str, now: Timestamp) -> Option<i64> {
    let server = k8s_openapi::jiff::fmt::rfc2822::parse(date).ok()?.timestamp();
    Some(server.as_second() - now.as_second())
}

/// A few of many, for a line.
pub fn some(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_clock_is_compared_with_ours() {
        let now: Timestamp = "2026-11-16T00:00:00Z".parse().expect("a time");
        assert_eq!(ahead("Mon, 16 Nov 2026 00:05:00 GMT", now), Some(300));
        assert_eq!(ahead("Sun, 15 Nov 2026 23:59:00 GMT", now), Some(-60));
        assert_eq!(ahead("noon", now), None);
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<_> = (0..7).map(|n| n.to_string()).collect();
        assert_eq!(some(&names), "0, 1, 2, 3, 4 and 2 more");
    }
}
