//! String formats that a schema may name. Unknown ones are ignored, as upstream does.

use std::net::Ipv6Addr;
use std::sync::LazyLock;

use base64::Engine;
use regex::Regex;

use crate::names;

/// Whether `text` has the format; `None` when nothing is known about it.
pub(super) fn matches(format: &str, text: &str) -> Option<bool> {
    let format = format.replace('-', "");
    Some(match format.as_str() {
        "ipv4" => ipv4(text),
        "ipv6" => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => cidr(text),
        "mac" => mac(text),
        "uuid" => uuid(text, None),
        "uuid3" => uuid(text, Some('3')),
        "uuid4" => uuid(text, Some('4')),
        "uuid5" => uuid(text, Some('5')),
        "email" => email(text),
        "hostname" => hostname(text),
        "uri" => uri(text),
        "byte" => !text.is_empty() && base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "datetime" => datetime(text),
        "duration" => duration(text),
        "hexcolor" => pattern(&HEX_COLOR, text),
        "rgbcolor" => pattern(&RGB_COLOR, text),
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|c| c.is_ascii_hexdigit()),
        "ssn" => pattern(&SSN, text),
        "password" => true,
        "k8sshortname" => names::dns_label(text).is_empty(),
        "k8slongname" => names::dns_subdomain(text).is_empty(),
        _ => return None,
    })
}

type Lazy = LazyLock<Option<Regex>>;

static EMAIL: Lazy = LazyLock::new(|| Regex::new(r#"^([^@\s"<>]+|"[^"]+")@[^@\s"<>]+$"#).ok());
static HOSTNAME: Lazy = LazyLock::new(|| {
    let word = r"[0-9\p{L}\p{S}]";
    let label = format!(r"{word}([-0-9\p{{L}}\p{{S}}]*{word})?");
    Regex::new(&format!(r"^({word}-?{word}*|({label}\.)+\p{{L}}{{2,}})$")).ok()
});
static HEX_COLOR: Lazy = LazyLock::new(|| Regex::new("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$").ok());
static RGB_COLOR: Lazy =
    LazyLock::new(|| Regex::new(r"^rgb\(\s*\d{1,3}\s*,\s*\d{1,3}\s*,\s*\d{1,3}\s*\)$").ok());
static SSN: Lazy = LazyLock::new(|| Regex::new(r"^\d{3}[- ]?\d{2}[- ]?\d{4}$").ok());
static DURATION: Lazy =
    LazyLock::new(|| Regex::new(r"^[+-]?(0|(\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+$").ok());
static WORDS: Lazy = LazyLock::new(|| {
    let units = "nanoseconds?|nanos?|nano|ns|microseconds?|micros?|us|µs|milliseconds?|millis?|milli|ms|seconds?|secs?|s|\
                 minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|wks?|w";
    Regex::new(&format!(r"^\d+\s*({units})$")).ok()
});

fn pattern(regex: &Lazy, text: &str) -> bool {
    regex.as_ref().is_some_and(|r| r.is_match(text))
}

/// Leading zeros do not matter.
fn ipv4(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let part = |part: &&str| part.bytes().all(|c| c.is_ascii_digit()) && part.parse::<u8>().is_ok();
    parts.len() == 4 && parts.iter().all(part)
}

/// 6, 8 or 20 bytes: pairs of digits between colons or hyphens, or fours between dots.
fn mac(text: &str) -> bool {
    let groups = |mark: char, width: usize, counts: [usize; 3]| {
        let parts: Vec<&str> = text.split(mark).collect();
        let whole = |part: &&str| part.len() == width && part.bytes().all(|c| c.is_ascii_hexdigit());
        counts.contains(&parts.len()) && parts.iter().all(whole)
    };
    groups(':', 2, [6, 8, 20]) || groups('-', 2, [6, 8, 20]) || groups('.', 4, [3, 4, 10])
}

/// An address, or one in angle brackets after a name.
fn email(text: &str) -> bool {
    let bracketed = text.split_once('<').and_then(|(_, rest)| rest.trim_end().strip_suffix('>'));
    let address = bracketed.unwrap_or(text.trim());
    pattern(&EMAIL, address)
        && !address.starts_with('.')
        && !address.contains(".@")
        && !address.contains("..")
}

/// Leading zeros do not matter.
fn cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let digits = !bits.is_empty() && bits.bytes().all(|c| c.is_ascii_digit());
    let bits = |max: u32| digits && bits.parse::<u32>().is_ok_and(|b| b <= max);
    (ipv4(address) && bits(32)) || (address.parse::<Ipv6Addr>().is_ok() && bits(128))
}

fn uuid(text: &str, version: Option<char>) -> bool {
    let plain: String = text.chars().filter(|c| *c != '-').collect();
    let shaped = plain.len() == 32 && plain.bytes().all(|c| c.is_ascii_hexdigit()) && text.len() <= 36;
    let variant = |c: char| matches!(c.to_ascii_lowercase(), '8' | '9' | 'a' | 'b');
    shaped
        && version.is_none_or(|v| {
            let mut chars = plain.chars();
            chars.nth(12) == Some(v) && (v == '3' || chars.nth(3).is_some_and(variant))
        })
}

/// One word, in which a hyphen may only stand second, or several between dots, the last of letters only.
fn hostname(text: &str) -> bool {
    text.len() <= 255 && text.split('.').all(|label| label.len() <= 63) && pattern(&HOSTNAME, text)
}

/// A request URI: absolute, or an absolute path.
fn uri(text: &str) -> bool {
    if text.bytes().any(|c| c <= b' ' || c == 0x7f) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    match text.split_once(':') {
        Some((scheme, rest)) => {
            !rest.is_empty()
                && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'-' | b'.'))
        }
        None => false,
    }
}

fn datetime(text: &str) -> bool {
    text.len() >= 11
        && matches!(text.as_bytes()[10], b'T' | b't' | b' ')
        && text.parse::<jiff::Timestamp>().is_ok()
}

fn duration(text: &str) -> bool {
    pattern(&DURATION, text) || pattern(&WORDS, text)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn host_names_are_short_and_may_have_symbols() {
        let dots = |count: usize| format!("{}com", "abcdefghi.".repeat(count));
        let word = |length: usize| "a".repeat(length);
        for good in [
            "i❤.ws".to_owned(),
            "a".into(),
            "a-".into(),
            "a-b".into(),
            "a--b.example".into(),
            "0.example".into(),
            "münchen.de".into(),
            dots(25),
            word(63),
            format!("{}.com", word(63)),
        ] {
            assert_eq!(matches("hostname", &good), Some(true), "{good}");
        }
        for bad in [
            String::new(),
            "-a".into(),
            "ab-c".into(),
            "a.".into(),
            "a.b".into(),
            "a-.com".into(),
            "a.c0m".into(),
            "²".into(),
            "٣.com".into(),
            dots(26),
            word(64),
            format!("{}.com", word(64)),
            format!("{}.com", "ü".repeat(32)),
        ] {
            assert_eq!(matches("hostname", &bad), Some(false), "{bad}");
        }
    }

    #[test]
    fn ranges_of_addresses_may_have_leading_zeros() {
        for good in ["10.0.0.1/8", "010.0.0.0/08", "::/0", "::ffff:1.2.3.4/96", "fd00::1/128"] {
            assert_eq!(matches("cidr", good), Some(true), "{good}");
        }
        for bad in ["10.0.0.0", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "/8"] {
            assert_eq!(matches("cidr", bad), Some(false), "{bad}");
        }
    }
}
