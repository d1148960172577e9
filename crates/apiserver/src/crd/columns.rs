//! Printer columns of custom resources: simple JSON paths over the object.

use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub struct Column {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: String,
}

pub fn of(version: &Value) -> Vec<Column> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let given = version["additionalPrinterColumns"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut columns: Vec<Column> = given
        .iter()
        .map(|c| Column {
            name: text(&c["name"]),
            kind: text(&c["type"]),
            format: text(&c["format"]),
            description: text(&c["description"]),
            priority: c["priority"].as_i64().unwrap_or(0),
            path: text(&c["jsonPath"]),
        })
        .collect();
    if given.is_empty() {
        columns.push(Column {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description: "How long ago the object was created".into(),
            priority: 0,
            path: ".metadata.creationTimestamp".into(),
        });
    }
    columns
}

pub fn definitions(columns: &[Column]) -> Value {
    let mut out = vec![json!({
        "name": "Name", "type": "string", "format": "name", "priority": 0,
        "description": "The name of the object, unique among its kind in its namespace",
    })];
    out.extend(columns.iter().map(|c| {
        json!({"name": c.name, "type": c.kind, "format": c.format, "description": c.description, "priority": c.priority})
    }));
    out.into()
}

pub fn cells(columns: &[Column], object: &Value, now: i64) -> Vec<Value> {
    let mut out = vec![object.pointer("/metadata/name").cloned().unwrap_or_default()];
    out.extend(columns.iter().map(|column| cell(column, object, now)));
    out
}

fn cell(column: &Column, object: &Value, now: i64) -> Value {
    let found = find(object, &column.path);
    let Some(first) = found.first() else { return Value::Null };
    match (column.kind.as_str(), first) {
        ("date", Value::String(text)) => match text.parse::<jiff::Timestamp>() {
            Ok(at) => age(now - at.as_second()).into(),
            Err(_) => "<invalid>".into(),
        },
        ("integer", value) => value.as_i64().map_or(Value::Null, Value::from),
        ("number", value) => value.as_f64().map_or(Value::Null, Value::from),
        ("boolean", value) => value.as_bool().map_or(Value::Null, Value::from),
        ("string", _) if found.len() > 1 => {
            let texts: Vec<String> = found.iter().map(|v| plain(v)).collect();
            texts.join(" ").into()
        }
        ("string", value) => plain(value).into(),
        (_, value) => (*value).clone(),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The values at a path such as `.status.conditions[?(@.type=="Ready")].status` or `.spec.ports[*].port`.
fn find<'a>(object: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![object];
    let mut rest = path.trim_start_matches('$').trim_start_matches('{').trim_end_matches('}');
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let Some(end) = closing(after) else { return Vec::new() };
            let inside = &after[..end];
            rest = &after[end + 1..];
            found = found.into_iter().flat_map(|v| select(v, inside)).collect();
            continue;
        }
        let after = rest.strip_prefix('.').unwrap_or(rest);
        let (name, next) = member(after);
        rest = next;
        if !name.is_empty() {
            found = found
                .into_iter()
                .flat_map(|v| match (name.as_str(), v) {
                    ("*", Value::Array(list)) => list.iter().collect(),
                    ("*", Value::Object(map)) => map.values().collect(),
                    _ => v.get(&name).into_iter().collect::<Vec<_>>(),
                })
                .collect();
        }
    }
    found.retain(|v| !v.is_null());
    found
}

/// The next member name; dots in names are written `\.`.
fn member(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => {
                if let Some((_, escaped)) = chars.next() {
                    name.push(escaped);
                }
            }
            '.' | '[' => return (name, &text[i..]),
            c => name.push(c),
        }
    }
    (name, "")
}

fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (None, ']') => return Some(i),
            (None, '"' | '\'') => quote = Some(c),
            (Some(q), c) if q == c => quote = None,
            _ => {}
        }
    }
    None
}

fn select<'a>(value: &'a Value, inside: &str) -> Vec<&'a Value> {
    let list = || value.as_array().map(Vec::as_slice).unwrap_or_default();
    if inside == "*" {
        return match value {
            Value::Object(map) => map.values().collect(),
            _ => list().iter().collect(),
        };
    }
    if let Some(quoted) = inside.strip_prefix(['\'', '"']).and_then(|t| t.strip_suffix(['\'', '"'])) {
        return value.get(quoted).into_iter().collect();
    }
    if let Ok(index) = inside.parse::<i64>() {
        let len = list().len() as i64;
        let at = if index < 0 { len + index } else { index };
        return usize::try_from(at).ok().and_then(|i| list().get(i)).into_iter().collect();
    }
    // A filter: ?(@.path OP literal)
    let Some(test) = inside.strip_prefix("?(").and_then(|t| t.strip_suffix(')')) else { return Vec::new() };
    let (path, equal, literal) = match (test.split_once("=="), test.split_once("!=")) {
        (Some((path, literal)), _) => (path, true, literal),
        (_, Some((path, literal))) => (path, false, literal),
        _ => (test, false, "null"),
    };
    let path = path.trim().trim_start_matches('@');
    let literal = literal.trim().trim_matches(['"', '\'']);
    list()
        .iter()
        .filter(|item| {
            let have = find(item, path).first().map_or("null".to_owned(), |v| plain(v));
            (have == literal) == equal
        })
        .collect()
}

/// How kubectl writes an age.
fn age(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        i64::MIN..-1 => "<invalid>".into(),
        -1..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 == 0 => format!("{minutes}m"),
        120..600 => format!("{minutes}m{}s", seconds % 60),
        600..10800 => format!("{minutes}m"),
        10800..28800 if minutes % 60 == 0 => format!("{hours}h"),
        10800..28800 => format!("{hours}h{}m", minutes % 60),
        28800..172800 => format!("{hours}h"),
        172800..691200 if hours % 24 == 0 => format!("{days}d"),
        172800..691200 => format!("{days}d{}h", hours % 24),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 && days % 365 == 0 => format!("{}y", days / 365),
        _ if days < 2920 => format!("{}y{}d", days / 365, days % 365),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_filters_wildcards_and_escapes_find_their_values() {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "d"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
            "spec": {"ports": [{"port": 1}, {"port": 2}]},
        });
        let texts = |path: &str| find(&object, path).iter().map(|v| plain(v)).collect::<Vec<_>>();
        assert_eq!(texts(".status.conditions[?(@.type==\"Ready\")].status"), ["True"]);
        assert_eq!(texts(".spec.ports[*].port"), ["1", "2"]);
        assert_eq!(texts(".spec.ports[-1].port"), ["2"]);
        assert_eq!(texts(".metadata.labels.a\\.b/c"), ["d"]);
        assert_eq!(texts(".metadata.labels['a.b/c']"), ["d"]);
        assert!(texts(".nothing.here").is_empty());
    }

    #[test]
    fn ages_are_written_as_kubectl_writes_them() {
        let cases = [(5, "5s"), (125, "2m5s"), (3600, "60m"), (10860, "3h1m"), (90000, "25h"), (86400 * 3, "3d")];
        for (seconds, text) in cases {
            assert_eq!(age(seconds), text);
        }
    }
}
