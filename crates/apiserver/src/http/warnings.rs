//! What the client is warned of, as headers: few enough that they always fit, whatever a request made us say.

use std::collections::HashSet;

use http::HeaderValue;

/// Beyond so many characters in all, each warning is cut to `EACH`, and no more are added.
const TOGETHER: usize = 4 * 1024;
const EACH: usize = 256;

/// A warning that was given twice, because a write was tried again, is said once.
pub fn headers(warnings: &[String]) -> Vec<HeaderValue> {
    let mut seen = HashSet::new();
    let distinct: Vec<&String> = warnings.iter().filter(|text| seen.insert(text.as_str())).collect();
    let together: usize = distinct.iter().map(|text| text.chars().count()).sum();
    let each = if together > TOGETHER { EACH } else { TOGETHER };
    let mut written = 0;
    let mut headers = Vec::new();
    for text in distinct {
        if written >= TOGETHER {
            break;
        }
        let text: String = text.chars().filter(|c| !c.is_control()).take(each).collect();
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            written += text.chars().count();
            headers.push(value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_warnings_are_said_whole_and_once() {
        let long = "x".repeat(4_000);
        let said = headers(&[long.clone(), "a \"b\"\n".to_owned(), long.clone()]);
        assert_eq!(said, [format!("299 - \"{long}\""), "299 - \"a \\\"b\\\"\"".to_owned()]);
    }

    #[test]
    fn many_warnings_are_cut_and_end() {
        let warnings: Vec<String> = (0..100_000).map(|n| format!("{n}{}", "ä".repeat(300))).collect();
        let said = headers(&warnings);
        assert_eq!(said.len(), TOGETHER / EACH);
        let text = std::str::from_utf8(said[3].as_bytes()).expect("text");
        assert_eq!(text.chars().count(), EACH + "299 - \"\"".len());
    }
}
