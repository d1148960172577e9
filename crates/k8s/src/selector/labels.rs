//! Label selectors: `a=b,c in (d,e),!f`, or `matchLabels` and `matchExpressions`.

use std::fmt;

use serde_json::{Map, Value};

use super::lexer::{Token, scan};
use super::{Operator, Requirement, SelectorError};
use crate::field::FieldError;
use crate::names;

/// A conjunction of requirements, sorted by key. The default selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    /// An absent selector object selects nothing, unlike an empty one.
    nothing: bool,
}

impl LabelSelector {
    pub fn everything() -> Self {
        Self::default()
    }

    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// The string form of a query parameter.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { tokens: scan(text), position: 0 };
        let mut requirements = parser.requirements()?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements, nothing: false })
    }

    /// The object form: `matchLabels` and `matchExpressions`; `None` or null selects nothing.
    pub fn from_object(selector: Option<&Value>) -> Result<Self, SelectorError> {
        let Some(selector) = selector.filter(|s| !s.is_null()) else { return Ok(Self::nothing()) };
        let mut requirements = Vec::new();
        if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
            for (key, value) in labels {
                let values = vec![value.as_str().unwrap_or_default().to_owned()];
                requirements.push(requirement(key.clone(), Operator::Equals, values)?);
            }
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let name = expression["operator"].as_str().unwrap_or_default();
            let operator = match name {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                _ => return Err(SelectorError(format!("{name:?} is not a valid label selector operator"))),
            };
            let key = expression["key"].as_str().unwrap_or_default().to_owned();
            let values = expression["values"].as_array().into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            requirements.push(requirement(key, operator, values)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements, nothing: false })
    }

    /// A plain map of labels, as Services and ReplicationControllers have; empty selects everything.
    pub fn from_map(labels: &Map<String, Value>) -> Self {
        let mut requirements: Vec<_> = labels
            .iter()
            .map(|(key, value)| Requirement {
                key: key.clone(),
                operator: Operator::Equals,
                values: vec![value.as_str().unwrap_or_default().to_owned()],
            })
            .collect();
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// Selects every object.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Matches `metadata.labels`; an object without labels has an empty set.
    pub fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.matches_by(|key| super::text(labels, key))
    }

    /// Matches any store of labels.
    pub fn matches_by<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(lookup(&r.key)))
    }

    /// The value a label must have, when the selector names exactly one.
    pub fn exact(&self, key: &str) -> Option<&str> {
        use Operator::*;
        let found = self.requirements.iter().find(|r| r.key == key)?;
        match (found.operator, found.values.as_slice()) {
            (Equals | DoubleEquals | In, [only]) => Some(only),
            _ => None,
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let mut values: Vec<&str> = r.values.iter().map(String::as_str).collect();
            values.sort_unstable();
            let values = values.join(",");
            match r.operator {
                Operator::DoesNotExist => write!(f, "!{}", r.key)?,
                Operator::Exists => f.write_str(&r.key)?,
                Operator::In => write!(f, "{} in ({values})", r.key)?,
                Operator::NotIn => write!(f, "{} notin ({values})", r.key)?,
                Operator::Equals => write!(f, "{}={values}", r.key)?,
                Operator::DoubleEquals => write!(f, "{}=={values}", r.key)?,
                Operator::NotEquals => write!(f, "{}!={values}", r.key)?,
                Operator::GreaterThan => write!(f, "{}>{values}", r.key)?,
                Operator::LessThan => write!(f, "{}<{values}", r.key)?,
            }
        }
        Ok(())
    }
}

/// Checks a requirement; several complaints are joined as upstream joins them.
fn requirement(key: String, operator: Operator, values: Vec<String>) -> Result<Requirement, SelectorError> {
    use Operator::*;
    let shown = || Value::from(values.clone());
    let mut errors = Vec::new();
    let complaints = names::label_key(&key);
    if !complaints.is_empty() {
        errors.push(FieldError::invalid("key", &Value::from(key.as_str()), complaints.join("; ")));
    }
    match operator {
        In | NotIn if values.is_empty() => {
            let detail = "for 'in', 'notin' operators, values set can't be empty";
            errors.push(FieldError::invalid("values", &shown(), detail));
        }
        Equals | DoubleEquals | NotEquals if values.len() != 1 => {
            let detail = "exact-match compatibility requires one single value";
            errors.push(FieldError::invalid("values", &shown(), detail));
        }
        Exists | DoesNotExist if !values.is_empty() => {
            let detail = "values set must be empty for exists and does not exist";
            errors.push(FieldError::invalid("values", &shown(), detail));
        }
        GreaterThan | LessThan => {
            if values.len() != 1 {
                let detail = "for 'Gt', 'Lt' operators, exactly one value is required";
                errors.push(FieldError::invalid("values", &shown(), detail));
            }
            for (i, value) in values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err()) {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                let path = format!("values[{i}]");
                errors.push(FieldError::invalid(path, &Value::from(value.as_str()), detail));
            }
        }
        _ => {}
    }
    for (i, value) in values.iter().enumerate() {
        let complaints = names::label_value(value);
        if !complaints.is_empty() {
            let path = format!("values[{i}][{key}]");
            errors.push(FieldError::invalid(path, &Value::from(value.as_str()), complaints.join("; ")));
        }
    }
    match errors.as_slice() {
        [] => Ok(Requirement { key, operator, values }),
        [one] => Err(SelectorError(one.to_string())),
        many => {
            let all: Vec<_> = many.iter().map(ToString::to_string).collect();
            Err(SelectorError(format!("[{}]", all.join(", "))))
        }
    }
}

struct Parser {
    tokens: Vec<(Token, String)>,
    position: usize,
}

impl Parser {
    /// `in` and `notin` are ordinary words except right after a key.
    fn peek(&self) -> (Token, &str) {
        let (token, text) = &self.tokens[self.position.min(self.tokens.len() - 1)];
        match token {
            Token::In | Token::NotIn => (Token::Word, text),
            _ => (*token, text),
        }
    }

    fn take(&mut self) -> (Token, String) {
        let (token, text) = self.peek();
        let out = (token, text.to_owned());
        self.position += 1;
        out
    }

    fn take_operator(&mut self) -> (Token, String) {
        let out = self.tokens[self.position.min(self.tokens.len() - 1)].clone();
        self.position += 1;
        out
    }

    fn requirements(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut out = Vec::new();
        loop {
            match self.peek() {
                (Token::Word | Token::Not, _) => {
                    let next = self
                        .requirement()
                        .map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?;
                    out.push(next);
                    match self.take() {
                        (Token::End, _) => return Ok(out),
                        (Token::Comma, _) => match self.peek() {
                            (Token::Word | Token::Not, _) => {}
                            (_, text) => return fail(text, "identifier after ','"),
                        },
                        (_, text) => return fail(&text, "',' or 'end of string'"),
                    }
                }
                (Token::End, _) => return Ok(out),
                (_, text) => return fail(text, "!, identifier, or 'end of string'"),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let (mut token, mut key) = self.take();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.take();
        }
        if token != Token::Word {
            return fail(&key, "identifier");
        }
        let complaints = names::label_key(&key);
        if !complaints.is_empty() {
            let error = FieldError::invalid("<nil>", &Value::from(key), complaints.join("; "));
            return Err(SelectorError(error.to_string()));
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            let operator = if negated { Operator::DoesNotExist } else { Operator::Exists };
            return requirement(key, operator, Vec::new());
        }
        if negated {
            return requirement(key, Operator::DoesNotExist, Vec::new());
        }
        let (token, text) = self.take_operator();
        let operator = match token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => return fail(&text, "in, notin, =, ==, !=, gt, lt"),
        };
        let mut values = match operator {
            Operator::In | Operator::NotIn => self.set()?,
            _ => vec![self.single()?],
        };
        values.sort_unstable();
        values.dedup();
        requirement(key, operator, values)
    }

    /// `(a,b)`; commas next to each other or to a parenthesis stand for the empty string.
    fn set(&mut self) -> Result<Vec<String>, SelectorError> {
        let (token, text) = self.take();
        if token != Token::Open {
            return Err(SelectorError(format!("found '{text}' expected: '('")));
        }
        let mut values = Vec::new();
        let mut want_value = true;
        loop {
            match self.take() {
                (Token::Word, text) if want_value => {
                    values.push(text);
                    want_value = false;
                    match self.peek() {
                        (Token::Comma | Token::Close, _) => {}
                        (_, text) => return fail(text, "',' or ')'"),
                    }
                }
                (Token::Comma, _) => {
                    if want_value {
                        values.push(String::new());
                    }
                    want_value = true;
                }
                (Token::Close, _) => {
                    if want_value {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                (_, text) if values.is_empty() => return fail(&text, "',', ')' or identifier"),
                (_, text) => return fail(&text, "',', or identifier"),
            }
        }
    }

    fn single(&mut self) -> Result<String, SelectorError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.take() {
            (Token::Word, text) => Ok(text),
            (_, text) => fail(&text, "identifier"),
        }
    }
}

fn fail<T>(found: &str, expected: &str) -> Result<T, SelectorError> {
    Err(SelectorError(format!("found '{found}', expected: {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn selects(text: &str, labels: Value) -> bool {
        LabelSelector::parse(text).unwrap().matches(labels.as_object())
    }

    #[test]
    fn string_selectors_match_like_upstream() {
        assert!(selects("", json!({})));
        assert!(selects("a=b,c!=d", json!({"a": "b"})));
        assert!(!selects("a==b", json!({"a": "c"})));
        assert!(selects("a in (x, y),!z", json!({"a": "y"})));
        assert!(selects("a notin (x)", json!({})));
        assert!(selects("in in (in,notin)", json!({"in": "notin"})));
        assert!(selects("a", json!({"a": ""})));
        assert!(selects("a=", json!({"a": ""})));
        assert!(selects("n>3", json!({"n": "4"})) && !selects("n<3", json!({"n": "x"})));
        assert!(selects("a in (,b)", json!({"a": ""})) && selects("a in ()", json!({"a": ""})));
    }

    #[test]
    fn printing_sorts_keys_and_values() {
        let selector = LabelSelector::parse(" z in (b,a),!y ,x=1").unwrap();
        assert_eq!(selector.to_string(), "x=1,!y,z in (a,b)");
        assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector);
    }

    #[test]
    fn bad_selectors_say_what_was_found() {
        let error = |text| LabelSelector::parse(text).unwrap_err().to_string();
        assert_eq!(error("a,"), "found '', expected: identifier after ','");
        assert_eq!(error(",a"), "found ',', expected: !, identifier, or 'end of string'");
        assert_eq!(
            error("a b"),
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"
        );
        assert!(error("a/b/c=d").starts_with(
            "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key must consist"
        ));
        assert!(error("a=-").starts_with("unable to parse requirement: values[0][a]: Invalid value: \"-\""));
    }

    #[test]
    fn an_absent_object_selects_nothing_and_an_empty_one_everything() {
        assert!(!LabelSelector::from_object(None).unwrap().matches(None));
        assert!(LabelSelector::from_object(Some(&json!({}))).unwrap().matches(None));
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "c", "operator": "NotIn", "values": ["d"]}, {"key": "e", "operator": "Exists"}]});
        let selector = LabelSelector::from_object(Some(&selector)).unwrap();
        assert!(selector.matches(json!({"a": "b", "e": ""}).as_object()));
        assert!(!selector.matches(json!({"a": "b", "c": "d", "e": ""}).as_object()));
        assert_eq!(selector.exact("a"), Some("b"));
        let bad = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
        let error = LabelSelector::from_object(Some(&bad)).unwrap_err();
        assert_eq!(error.to_string(), "\"Near\" is not a valid label selector operator");
    }
}
