//! `optionalOldSelf`: rules that see the value before an update as an optional, which the evaluator does not know.

use serde_json::Value;

/// The value before an update as an optional: the evaluator gives rules the bare value, or null.
const OPTIONAL: &str = "(oldSelf == null ? optional.none() : optional.of(oldSelf))";

/// Has rules that ask for it see the value before as an optional.
pub(super) fn with_optionals(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("optionalOldSelf") == Some(&Value::Bool(true)) {
                for part in ["rule", "messageExpression"] {
                    if let Some(Value::String(expression)) = map.get_mut(part) {
                        *expression = with_optional(expression);
                    }
                }
            }
            map.values_mut().for_each(with_optionals);
        }
        Value::Array(list) => list.iter_mut().for_each(with_optionals),
        _ => {}
    }
}

/// An expression as its author wrote it.
pub(super) fn as_written(expression: &str) -> String {
    expression.replace(OPTIONAL, "oldSelf").trim().to_owned()
}

/// Puts the optional wherever an expression names `oldSelf`: not within a text or a comment, nor as the name of a field.
fn with_optional(expression: &str) -> String {
    let mut out = String::new();
    let mut rest = expression;
    // What was read last but for spaces and comments, to know a field by the dot before it.
    let mut before = "";
    while let Some(first) = rest.chars().next() {
        let (token, kind) = next_token(rest, first);
        match kind {
            Token::Name if token == "oldSelf" && before != "." && before != ".?" => out.push_str(OPTIONAL),
            _ => out.push_str(token),
        }
        rest = &rest[token.len()..];
        before = match kind {
            Token::Space => before,
            Token::Mark if before == "." && token == "?" => ".?",
            _ => token,
        };
    }
    out
}

#[derive(Clone, Copy)]
enum Token {
    Name,
    Text,
    /// Also comments.
    Space,
    Mark,
}

fn next_token(rest: &str, first: char) -> (&str, Token) {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    let until = |end: Option<usize>| &rest[..end.unwrap_or(rest.len())];
    if rest.starts_with("//") {
        return (until(rest.find('\n')), Token::Space);
    }
    if first.is_whitespace() {
        return (until(rest.find(|c: char| !c.is_whitespace())), Token::Space);
    }
    let name = until(rest.find(|c: char| !in_name(c)));
    let is_prefix = name.len() <= 2 && name.chars().all(|c| matches!(c, 'r' | 'R' | 'b' | 'B'));
    if is_prefix && rest[name.len()..].starts_with(['"', '\'', '`']) {
        let raw = name.contains(['r', 'R']) || rest.starts_with('`');
        return (&rest[..name.len() + quoted(&rest[name.len()..], raw)], Token::Text);
    }
    match name.is_empty() {
        true => (&rest[..first.len_utf8()], Token::Mark),
        false => (name, Token::Name),
    }
}

/// How long the text is that starts with a quote, with both its quotes. A raw text has no escapes.
fn quoted(rest: &str, raw: bool) -> usize {
    let one = &rest[..1];
    let triple = one.repeat(3);
    let quote = if rest.starts_with(&triple) && one != "`" { triple.as_str() } else { one };
    let mut at = quote.len();
    while let Some(c) = rest[at..].chars().next() {
        if rest[at..].starts_with(quote) {
            return at + quote.len();
        }
        at += c.len_utf8();
        if c == '\\' && !raw {
            at += rest[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_itself_becomes_an_optional() {
        for (written, expected) in [
            ("oldSelf.hasValue()", "OLD.hasValue()"),
            (
                "self in oldSelf.value() // it's oldSelf\n && oldSelf == 1",
                "self in OLD.value() // it's oldSelf\n && OLD == 1",
            ),
            (r"r'\' + oldSelf", r"r'\' + OLD"),
            (r#"R"\" + oldSelf + bR'oldSelf\'"#, r#"R"\" + OLD + bR'oldSelf\'"#),
            (r"'\'oldSelf' + oldSelf", r"'\'oldSelf' + OLD"),
            (r"'\\' + oldSelf", r"'\\' + OLD"),
            (r"b'\'oldSelf' == oldSelf", r"b'\'oldSelf' == OLD"),
            (r#""""a"oldSelf""" + oldSelf"#, r#""""a"oldSelf""" + OLD"#),
            ("'''it's oldSelf\n''' + oldSelf + '' + oldSelf", "'''it's oldSelf\n''' + OLD + '' + OLD"),
            ("r'''\\''' + oldSelf", "r'''\\''' + OLD"),
            ("'//' + oldSelf", "'//' + OLD"),
            (
                "self.oldSelf + self . oldSelf + self.?oldSelf",
                "self.oldSelf + self . oldSelf + self.?oldSelf",
            ),
            ("self.`oldSelf` + a[?oldSelf] + (b ?oldSelf : c)", "self.`oldSelf` + a[?OLD] + (b ?OLD : c)"),
            ("myoldSelf + oldSelfs + oldSelf1 + ü", "myoldSelf + oldSelfs + oldSelf1 + ü"),
            ("'oldSelf", "'oldSelf"),
            (r"'\", r"'\"),
        ] {
            assert_eq!(with_optional(written), expected.replace("OLD", OPTIONAL), "{written}");
        }
        assert_eq!(as_written(&with_optional(" oldSelf + 'oldSelf' ")), "oldSelf + 'oldSelf'");
    }
}
