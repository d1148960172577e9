//! Duplicate keys of a YAML text with their lines, for the one message that names lines. Runs only after the decoder
//! has seen a duplicate, so it may be simple: it reads block mappings by indent and JSON-like flow by brackets.

use std::collections::HashSet;

/// `line 6: key "name" already set in map`, in order of appearance.
pub fn duplicates(text: &str) -> Vec<String> {
    let mut scan = Scan::default();
    for (number, line) in text.lines().enumerate() {
        if number > 0 && line.starts_with("---") {
            break;
        }
        scan.line(line, number + 1);
    }
    scan.found
}

#[derive(Default)]
struct Scan {
    /// Open block mappings: indent and keys so far.
    blocks: Vec<(usize, HashSet<String>)>,
    /// Open flow collections: keys so far, or `None` inside a list.
    flows: Vec<Option<HashSet<String>>>,
    /// Lines deeper than this belong to a block scalar.
    scalar: Option<usize>,
    found: Vec<String>,
}

impl Scan {
    fn line(&mut self, line: &str, number: usize) {
        let indent = line.len() - line.trim_start().len();
        let mut rest = line.trim();
        if rest.is_empty() || rest.starts_with('#') {
            return;
        }
        if self.scalar.is_some_and(|parent| indent > parent) {
            return;
        }
        self.scalar = None;
        let mut column = indent;
        if self.flows.is_empty() {
            while let Some(item) = rest.strip_prefix("- ") {
                // A new list item closes what the item before had open.
                self.blocks.retain(|(open, _)| *open <= column);
                column += 2 + item.len() - item.trim_start().len();
                rest = item.trim_start();
            }
            if let Some((key, value)) = split_key(rest) {
                self.blocks.retain(|(open, _)| *open <= column);
                if line.trim_start().starts_with('-') {
                    self.blocks.retain(|(open, _)| *open < column);
                }
                self.block_key(column, key, number);
                let value = value.trim();
                if value.starts_with(['|', '>']) {
                    self.scalar = Some(indent);
                    return;
                }
                rest = value;
            }
        }
        if !self.flows.is_empty() || rest.starts_with(['{', '[']) {
            self.flow(rest, number);
        }
    }

    fn block_key(&mut self, column: usize, key: String, number: usize) {
        if self.blocks.last().is_none_or(|(open, _)| *open != column) {
            self.blocks.push((column, HashSet::new()));
        }
        if let Some((_, keys)) = self.blocks.last_mut() {
            note(keys, key, number, &mut self.found);
        }
    }

    fn flow(&mut self, text: &str, number: usize) {
        let mut chars = text.char_indices().peekable();
        let mut word = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' | '\'' => {
                    word.clear();
                    let mut escaped = false;
                    for (_, inner) in chars.by_ref() {
                        match inner {
                            _ if escaped => escaped = false,
                            '\\' if c == '"' => escaped = true,
                            _ if inner == c => break,
                            _ => {}
                        }
                        word.push(inner);
                    }
                }
                '{' => self.flows.push(Some(HashSet::new())),
                '[' => self.flows.push(None),
                '}' | ']' => {
                    self.flows.pop();
                    word.clear();
                }
                ',' => word.clear(),
                '#' if at > 0 && text[..at].ends_with(' ') => return,
                ':' => {
                    let key = std::mem::take(&mut word).trim().to_owned();
                    if let Some(Some(keys)) = self.flows.last_mut() {
                        note(keys, key, number, &mut self.found);
                    }
                }
                _ => word.push(c),
            }
        }
    }
}

fn note(keys: &mut HashSet<String>, key: String, number: usize, found: &mut Vec<String>) {
    if keys.contains(&key) {
        found.push(format!("line {number}: key {key:?} already set in map"));
    } else {
        keys.insert(key);
    }
}

/// The key and what follows its colon, for a line that starts a mapping entry.
fn split_key(text: &str) -> Option<(String, &str)> {
    if text.starts_with(['{', '[']) {
        return None;
    }
    if let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        let end = text[1..].find(quote)? + 1;
        let rest = text[end + 1..].trim_start().strip_prefix(':')?;
        return Some((text[1..end].to_owned(), rest));
    }
    let at = text
        .match_indices(':')
        .map(|(at, _)| at)
        .find(|at| matches!(text.as_bytes().get(at + 1), None | Some(b' ')))?;
    Some((text[..at].trim().to_owned(), &text[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::duplicates;

    #[test]
    fn block_mappings_are_read_by_indent() {
        let text = "a: 1\nb:\n  c: 1\n  d: |\n    c: x\n    c: y\n  c: 2\nl:\n- x: 1\n  y: 1\n- x: 2\n  x: 3\na: 2\n";
        let found = duplicates(text);
        assert_eq!(
            found,
            [
                r#"line 7: key "c" already set in map"#,
                r#"line 12: key "x" already set in map"#,
                r#"line 13: key "a" already set in map"#
            ]
        );
    }

    #[test]
    fn json_is_yaml_too() {
        let found =
            duplicates("{\"a\": [{\"b\":1},{\"b\":2}],\n \"b\": {\"c\": \"b: b\", \"c\": 1}, \"a\": 1}");
        assert_eq!(found, [r#"line 2: key "c" already set in map"#, r#"line 2: key "a" already set in map"#]);
    }

    #[test]
    fn many_keys_are_told_apart() {
        let many = 200_000;
        let mut text: String = (0..many).map(|i| format!("key{i}: 1\n")).collect();
        text.push_str("key0: 2\nflow: {");
        text.extend((0..many).map(|i| format!("\"key{i}\": 1, ")));
        text.push_str("\"key1\": 2}\n");
        let found = duplicates(&text);
        assert_eq!(
            found,
            [
                r#"line 200001: key "key0" already set in map"#,
                r#"line 200002: key "key1" already set in map"#
            ]
        );
    }
}
