//! The JSONPath that printer columns use: fields, indexes, wildcards and filters by equality.

use serde_json::Value;

/// A parsed path such as `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// Negative counts from the end.
    Index(i64),
    All,
    Filter(JsonPath, bool, Value),
}

impl JsonPath {
    /// `None` when the text is not a path we read.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let end = closing(inside)?;
                steps.push(bracket(inside[..end].trim())?);
                rest = &inside[end + 1..];
                continue;
            }
            rest = rest.strip_prefix('.').unwrap_or(rest);
            let (name, after) = field(rest);
            match name.as_str() {
                "" if after.starts_with('[') || after.is_empty() => {}
                "" => return None,
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Field(name)),
            }
            rest = after;
        }
        Some(Self(steps))
    }

    /// The first value the path leads to.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        walk(&self.0, value)
    }
}

fn walk<'a>(steps: &[Step], value: &'a Value) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value).filter(|v| !v.is_null()) };
    match step {
        Step::Field(name) => walk(rest, value.get(name)?),
        Step::Index(i) => {
            let items = value.as_array()?;
            let at = if *i < 0 { items.len().checked_sub(i.unsigned_abs() as usize)? } else { *i as usize };
            walk(rest, items.get(at)?)
        }
        Step::All => match value {
            Value::Array(items) => items.iter().find_map(|v| walk(rest, v)),
            Value::Object(fields) => fields.values().find_map(|v| walk(rest, v)),
            _ => None,
        },
        Step::Filter(path, equal, wanted) => value
            .as_array()?
            .iter()
            .filter(|v| path.first(v).is_some_and(|found| (found == wanted) == *equal))
            .find_map(|v| walk(rest, v)),
    }
}

/// A name up to the next dot or bracket; a backslash takes the next character as it is.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => return (name, &text[at..]),
            _ => name.push(c),
        }
    }
    (name, "")
}

/// Where the bracket closes, outside of quotes and inner brackets.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(name) = unquote(text) {
        return Some(Step::Field(name.to_owned()));
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|t| t.strip_suffix(')')) {
        let (left, equal, right) = match filter.split_once("==") {
            Some((left, right)) => (left, true, right),
            None => {
                let (left, right) = filter.split_once("!=")?;
                (left, false, right)
            }
        };
        let path = JsonPath::parse(left.trim().strip_prefix('@')?)?;
        let right = right.trim();
        let wanted = match unquote(right) {
            Some(text) => text.into(),
            None => serde_json::from_str(right).ok()?,
        };
        return Some(Step::Filter(path, equal, wanted));
    }
    text.parse().ok().map(Step::Index)
}

fn unquote(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    text.strip_prefix(quote)?.strip_suffix(quote)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_printer_columns_are_followed() {
        let object = json!({"metadata": {"labels": {"a.b/c": "x"}}, "spec": {"list": [{"n": 1}, {"n": 2}]},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        let cases = [
            (r".metadata.labels.a\.b/c", json!("x")),
            (".metadata.labels['a.b/c']", json!("x")),
            (".spec.list[1].n", json!(2)),
            (".spec.list[-1].n", json!(2)),
            (".spec.list[*].n", json!(1)),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!("True")),
            (".status.conditions[?(@.type=='A')].status", json!("False")),
            (".status.conditions[?(@.type!='A')].status", json!("True")),
            ("{.spec.list[0].n}", json!(1)),
        ];
        for (path, wanted) in cases {
            assert_eq!(JsonPath::parse(path).unwrap().first(&object), Some(&wanted), "{path}");
        }
        assert_eq!(JsonPath::parse(".a.b").unwrap().first(&object), None);
        assert_eq!(JsonPath::parse(".a[").map(|_| ()), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _ = JsonPath::parse(&text).and_then(|p| p.first(&json!({"a": [1]})).cloned());
        }
    }
}
