//! Field selectors: `metadata.name=web,status.phase!=Running`.

use std::fmt;

use super::SelectorError;

/// One condition on one field; a field that is absent is the empty string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRequirement {
    pub field: String,
    pub equal: bool,
    pub value: String,
}

/// A conjunction of equalities and inequalities. The default selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    pub fn everything() -> Self {
        Self::default()
    }

    /// The string form of a query parameter. Which fields exist is for the caller to check.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = split_terms(text);
        terms.sort_unstable();
        let mut requirements = Vec::new();
        for term in terms.into_iter().filter(|t| !t.is_empty()) {
            let Some((field, equal, value)) = split_term(term) else {
                return Err(SelectorError(format!("invalid selector: '{text}'; can't understand '{term}'")));
            };
            requirements.push(FieldRequirement { field: field.to_owned(), equal, value: unescape(value)? });
        }
        Ok(Self { requirements })
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// `lookup` gives a field's value as text.
    pub fn matches<T: AsRef<str>>(&self, lookup: impl Fn(&str) -> Option<T>) -> bool {
        self.requirements.iter().all(|r| {
            let value = lookup(&r.field);
            (value.as_ref().map_or("", |v| v.as_ref()) == r.value) == r.equal
        })
    }

    /// The value a field must have, when the selector names one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.requirements.iter().find(|r| r.equal && r.field == field).map(|r| r.value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.requirements.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let operator = if r.equal { "=" } else { "!=" };
            let value = r.value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
            write!(f, "{comma}{}{operator}{value}", r.field)?;
        }
        Ok(())
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|c| {
        let ends = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })
    .collect()
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = (0..term.len()).find(|&i| {
        let rest = &term.as_bytes()[i..];
        rest.starts_with(b"!=") || rest.starts_with(b"=")
    })?;
    let (field, rest) = term.split_at(at);
    let (equal, value) = match rest.strip_prefix("!=") {
        Some(value) => (false, value),
        None => (true, rest.strip_prefix("==").unwrap_or(&rest[1..])),
    };
    Some((field, equal, value))
}

fn unescape(text: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                next => {
                    let sequence: String = std::iter::once('\\').chain(next).collect();
                    let text = format!("invalid field selector: invalid escape sequence: {sequence}");
                    return Err(SelectorError(text));
                }
            },
            ',' | '=' => {
                let text = format!("invalid field selector: unescaped character in value: {}", c as u32);
                return Err(SelectorError(text));
            }
            _ => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_equalities_and_inequalities() {
        let selector = FieldSelector::parse("status.phase!=Running,metadata.name==web").unwrap();
        let pod = |field: &str| match field {
            "metadata.name" => Some("web"),
            _ => None,
        };
        assert!(selector.matches(pod));
        assert_eq!(selector.exact("metadata.name"), Some("web"));
        assert_eq!(selector.to_string(), "metadata.name=web,status.phase!=Running");
        assert!(FieldSelector::parse("").unwrap().is_everything());
    }

    #[test]
    fn escapes_and_nonsense() {
        assert_eq!(FieldSelector::parse(r"a=b\,c\=d").unwrap().exact("a"), Some("b,c=d"));
        let error = |text| FieldSelector::parse(text).unwrap_err().to_string();
        assert_eq!(error("abc"), "invalid selector: 'abc'; can't understand 'abc'");
        assert_eq!(error("a=b=c"), "invalid field selector: unescaped character in value: 61");
        assert_eq!(error(r"a=b\c"), r"invalid field selector: invalid escape sequence: \c");
    }
}
