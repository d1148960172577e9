//! Pages of proxied pods and services: a link to `/x` there is one to `<proxy>/x` for who reads the page here.

use http::response::Parts;
use http::{Method, header};

/// Pages are read as a whole; larger ones stay as they are would be wrong, so they fail.
pub const LARGEST: usize = 8 << 20;

/// Attributes whose value is an address.
const ATTRIBUTES: &[&str] = &[
    "action",
    "archive",
    "background",
    "cite",
    "classid",
    "codebase",
    "data",
    "formaction",
    "href",
    "icon",
    "longdesc",
    "manifest",
    "poster",
    "profile",
    "src",
    "usemap",
];

/// Whether an answer is a page with links that can be read.
pub fn are_in(answer: &Parts) -> bool {
    let html = answer.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    html.is_some_and(|kind| kind.starts_with("text/html"))
        && !answer.headers.contains_key(header::CONTENT_ENCODING)
}

/// What stands before the path that was asked of the pod: `/api/v1/namespaces/…/proxy`.
pub fn prefix(path: &str, rest: &str) -> String {
    path.strip_suffix(rest).unwrap_or(path).trim_end_matches('/').to_owned()
}

/// Where a page is read whose address lacks the slash that its relative links need. As upstream, only pages at the root.
pub fn with_slash(method: &Method, path: &str, rest: &str) -> Option<String> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    (reads && rest.is_empty() && !path.ends_with('/')).then(|| format!("{path}/"))
}

/// Puts `prefix` before every absolute path in a link. All else stays as it is, byte for byte.
pub fn rewrite(page: &str, prefix: &str) -> String {
    let mut out = String::with_capacity(page.len() + page.len() / 8);
    let mut rest = page;
    while let Some(open) = rest.find('<') {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let end = tag.find('>').map_or(tag.len(), |at| at + 1);
        rewrite_tag(&tag[..end], prefix, &mut out);
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

fn rewrite_tag(tag: &str, prefix: &str, out: &mut String) {
    let mut rest = tag;
    while let Some(equals) = rest.find('=') {
        let (name, value) = rest.split_at(equals + 1);
        out.push_str(name);
        let attribute = name.trim_end_matches('=').trim_end();
        let attribute = attribute.rsplit(|c: char| c.is_whitespace() || c == '"' || c == '\'').next();
        let is_link = attribute.is_some_and(|a| ATTRIBUTES.contains(&a.to_ascii_lowercase().as_str()));
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
        let start = quote.map_or(0, char::len_utf8);
        let end = match quote {
            Some(quote) => value[start..].find(quote).map_or(value.len(), |at| start + at),
            None => value.find(|c: char| c.is_whitespace() || c == '>').unwrap_or(value.len()),
        };
        out.push_str(&value[..start]);
        let address = &value[start..end];
        // `//host/…` leads elsewhere.
        if is_link && address.starts_with('/') && !address.starts_with("//") {
            out.push_str(prefix);
        }
        out.push_str(address);
        rest = &value[end..];
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_links_lead_through_the_proxy_and_nothing_else_changes() {
        let prefix = "/api/v1/namespaces/n/pods/p/proxy";
        let rewritten = |page: &str| rewrite(page, prefix);
        assert_eq!(
            rewritten(r#"<a href="/rewriteme">test</a>"#),
            format!(r#"<a href="{prefix}/rewriteme">test</a>"#)
        );
        assert_eq!(rewritten("<img alt=x src='/a/b'>"), format!("<img alt=x src='{prefix}/a/b'>"));
        assert_eq!(rewritten("<a href=/a>"), format!("<a href={prefix}/a>"));
        for same in [
            "<a href=\"b/c\">",
            "<a href=\"//host/x\">",
            "<p title=\"/a\"> a = /b </p>",
            "a < b",
            "<",
            "<a href=\"",
        ] {
            assert_eq!(rewritten(same), same);
        }
    }

    #[test]
    fn who_reads_the_root_without_a_slash_is_sent_to_the_one_with_it() {
        let root = "/api/v1/namespaces/n/pods/p/proxy";
        assert_eq!(with_slash(&Method::HEAD, root, ""), Some(format!("{root}/")));
        assert_eq!(with_slash(&Method::POST, root, ""), None, "a body is not sent twice");
        assert_eq!(with_slash(&Method::GET, &format!("{root}/"), ""), None);
        assert_eq!(with_slash(&Method::GET, &format!("{root}/a"), "a"), None);
    }

    #[test]
    fn the_prefix_is_the_path_up_to_what_was_asked_of_the_pod() {
        assert_eq!(
            prefix("/api/v1/namespaces/n/pods/http:p:80/proxy/a/b", "a/b"),
            "/api/v1/namespaces/n/pods/http:p:80/proxy"
        );
        assert_eq!(prefix("/api/v1/namespaces/n/pods/p/proxy/", ""), "/api/v1/namespaces/n/pods/p/proxy");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(page in "[<>a-z=\"'/ é]{0,60}") {
            let out = rewrite(&page, "");
            proptest::prop_assert_eq!(out, page, "an empty prefix changes nothing");
        }
    }
}
