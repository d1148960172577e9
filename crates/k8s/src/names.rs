//! The syntax of names, labels and keys, with the messages that clients and conformance tests match on.
//!
//! Each check returns its complaints; an empty list (which does not allocate) means the value is fine.

/// Complaints about one value, without the field path.
pub type Complaints = Vec<String>;

const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS_SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS_SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
     characters, '-' or '.', and must start and end with an alphanumeric character";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_KEY_MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
     with an alphanumeric character";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

/// The longest DNS label, label value, and name part of a label key.
pub const LABEL_MAX: usize = 63;
/// The longest DNS subdomain.
pub const SUBDOMAIN_MAX: usize = 253;

/// `must be no more than 63 characters`.
pub fn max_length(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

/// A message with examples and the pattern, as every format complaint ends.
pub fn pattern_message(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    let shown: Vec<_> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{message} (e.g. {}regex used for validation is '{pattern}')", shown.join(" or "))
}

/// `must be between 1 and 65535, inclusive`.
pub fn between(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// An RFC 1123 label: most names that become host names.
pub fn dns_label(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > LABEL_MAX {
        out.push(max_length(LABEL_MAX));
    }
    if !is_dns_label(value) {
        if is_dns_subdomain(value) {
            out.push("must not contain dots".into());
        } else {
            let message = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
                           and must start and end with an alphanumeric character";
            out.push(pattern_message(message, DNS_LABEL, &["my-name", "123-abc"]));
        }
    }
    out
}

/// An RFC 1123 subdomain: the usual syntax of object names.
pub fn dns_subdomain(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        out.push(max_length(SUBDOMAIN_MAX));
    }
    if !is_dns_subdomain(value) {
        out.push(pattern_message(DNS_SUBDOMAIN_MESSAGE, DNS_SUBDOMAIN, &["example.com"]));
    }
    out
}

/// An RFC 1035 label: Service names and the names inside a CustomResourceDefinition.
pub fn dns1035_label(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > LABEL_MAX {
        out.push(max_length(LABEL_MAX));
    }
    if !is_dns_label(value) || !value.starts_with(|c: char| c.is_ascii_lowercase()) {
        let message = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                       alphabetic character, and end with an alphanumeric character";
        out.push(pattern_message(message, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    out
}

/// `*.example.com`.
pub fn wildcard_subdomain(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        out.push(max_length(SUBDOMAIN_MAX));
    }
    if !value.strip_prefix("*.").is_some_and(is_dns_subdomain) {
        let message = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which \
                       must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric \
                       character";
        out.push(pattern_message(message, &format!(r"\*\.{DNS_SUBDOMAIN}"), &["*.example.com"]));
    }
    out
}

/// A label key: `[prefix/]name`. Annotations, finalizers and many other identifiers use the same syntax.
pub fn label_key(value: &str) -> Complaints {
    let mut out = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((_, rest)) if rest.contains('/') => {
            out.push(format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                pattern_message(LABEL_KEY_MESSAGE, LABEL_KEY, &["MyName", "my.name", "123-abc"])
            ));
            return out;
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".into());
            } else {
                if prefix.len() > SUBDOMAIN_MAX {
                    out.push(format!("prefix part must be no more than {SUBDOMAIN_MAX} bytes"));
                }
                if !is_dns_subdomain(prefix) {
                    let text = pattern_message(DNS_SUBDOMAIN_MESSAGE, DNS_SUBDOMAIN, &["example.com"]);
                    out.push(format!("prefix part {text}"));
                }
            }
            name
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".into());
    } else if name.len() > LABEL_MAX {
        out.push(format!("name part must be no more than {LABEL_MAX} bytes"));
    }
    if !is_label_text(name) {
        let text = pattern_message(LABEL_KEY_MESSAGE, LABEL_KEY, &["MyName", "my.name", "123-abc"]);
        out.push(format!("name part {text}"));
    }
    out
}

pub fn label_value(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > LABEL_MAX {
        out.push(format!("must be no more than {LABEL_MAX} bytes"));
    }
    if !value.is_empty() && !is_label_text(value) {
        let message = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
                       and must start and end with an alphanumeric character";
        out.push(pattern_message(message, LABEL_VALUE, &["MyValue", "my_value", "12345"]));
    }
    out
}

/// A name that only has to be safe in a URL path (RBAC objects).
pub fn path_segment(value: &str) -> Complaints {
    match value {
        "." | ".." => vec![format!("may not be '{value}'")],
        _ => ["/", "%"]
            .iter()
            .filter(|c| value.contains(**c))
            .map(|c| format!("may not contain '{c}'"))
            .collect(),
    }
}

/// A key of a ConfigMap or Secret.
pub fn config_key(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        out.push(max_length(SUBDOMAIN_MAX));
    }
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
    if value.is_empty() || !value.bytes().all(fits) {
        let message = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        out.push(pattern_message(message, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    out.extend(dot_prefix(value));
    out
}

/// A port's service name, as IANA has it.
pub fn port_name(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > 15 {
        out.push(max_length(15));
    }
    if value.is_empty() || !value.bytes().all(|c| c == b'-' || c.is_ascii_lowercase() || c.is_ascii_digit()) {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !value.bytes().any(|c| c.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".into());
    }
    if value.contains("--") {
        out.push("must not contain consecutive hyphens".into());
    }
    if value.starts_with('-') || value.ends_with('-') {
        out.push("must not begin or end with a hyphen".into());
    }
    out
}

pub fn port_number(value: i64) -> Complaints {
    if (1..=65535).contains(&value) { Vec::new() } else { vec![between(1, 65535)] }
}

pub fn percent(value: &str) -> Complaints {
    let digits = value.strip_suffix('%').unwrap_or("");
    if !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()) {
        return Vec::new();
    }
    let message = "a valid percent string must be a numeric string followed by an ending '%'";
    vec![pattern_message(message, "[0-9]+%", &["1%", "93%"])]
}

/// An environment variable's name: anything printable but `=`.
pub fn env_var(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.is_empty() {
        out.push("environment variable name must be non-empty".into());
    }
    if !value.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=') {
        out.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='".into(),
        );
    }
    out
}

pub fn http_header(value: &str) -> Complaints {
    if !value.is_empty() && value.bytes().all(|c| c == b'-' || c.is_ascii_alphanumeric()) {
        return Vec::new();
    }
    let message = "a valid HTTP header must consist of alphanumeric characters or '-'";
    vec![pattern_message(message, "[-A-Za-z0-9]+", &["X-Header-Name"])]
}

/// A `generateName` may end in a dash because a suffix follows: the dash is checked as if it were a letter.
pub fn as_prefix(check: fn(&str) -> Complaints, value: &str) -> Complaints {
    match value.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let mut masked: String = rest.to_owned();
            masked.pop();
            masked.push('a');
            check(&masked)
        }
        _ => check(value),
    }
}

fn dot_prefix(value: &str) -> Option<String> {
    match value {
        "." | ".." => Some(format!("must not be '{value}'")),
        _ if value.starts_with("..") => Some("must not start with '..'".into()),
        _ => None,
    }
}

fn is_dns_label(value: &str) -> bool {
    let bytes = value.as_bytes();
    let word = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            word(first) && word(last) && bytes.iter().all(|&c| word(c) || c == b'-')
        }
        _ => false,
    }
}

fn is_dns_subdomain(value: &str) -> bool {
    value.split('.').all(is_dns_label)
}

fn is_label_text(value: &str) -> bool {
    let bytes = value.as_bytes();
    let word = |c: u8| c.is_ascii_alphanumeric();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            word(first) && word(last) && bytes.iter().all(|&c| word(c) || matches!(c, b'-' | b'_' | b'.'))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains_accept_what_dns_accepts() {
        assert!(dns_label("a--1").is_empty());
        assert!(dns_label(&"a".repeat(63)).is_empty());
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns_label(&"a".repeat(64)), ["must be no more than 63 characters"]);
        assert!(dns_label("-a")[0].ends_with(
            "(e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
        ));
        assert!(dns_subdomain("1.2.a").is_empty());
        assert!(!dns_subdomain("a..b").is_empty());
        assert!(dns1035_label("abc-1").is_empty());
        assert!(!dns1035_label("1a").is_empty());
    }

    #[test]
    fn label_keys_have_an_optional_prefix_and_a_short_name() {
        assert!(label_key("app.kubernetes.io/name").is_empty());
        assert!(label_key("App_1").is_empty());
        assert_eq!(label_key("/x"), ["prefix part must be non-empty"]);
        assert_eq!(label_key("")[0], "name part must be non-empty");
        assert_eq!(label_key("a/b/c").len(), 1);
        assert!(label_value("").is_empty());
        assert!(!label_value("-").is_empty());
    }

    #[test]
    fn a_generated_name_may_end_in_a_dash() {
        assert!(as_prefix(dns_label, "web-").is_empty());
        assert!(!as_prefix(dns_label, "-").is_empty());
        assert!(as_prefix(dns_label, "é-").len() <= 1);
    }
}
