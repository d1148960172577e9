//! CEL: the rules of custom resources, and whether an expression is well formed.

use std::borrow::Cow;

use kube_cel::cel::common::ast::{EntryExpr, Expr};
use kube_cel::cel::{IdedExpr, Program};
use kube_cel::{CompiledSchema, ErrorKind as RuleError, Validator, compile_schema};
use serde_json::{Map, Number, Value};
use thiserror::Error;

use crate::field::{ErrorKind, FieldError};
use optional_old::{as_written, with_optionals};

mod optional_old;

/// An expression that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("compilation failed: {0}")]
pub struct CelError(String);

/// Whether an expression parses. Types are only known when it runs.
pub fn check(expression: &str) -> Result<(), CelError> {
    parse(expression).map(drop)
}

/// Whether an expression parses and speaks only of these names and of what it binds itself.
pub fn check_names(expression: &str, known: &[&str]) -> Result<(), CelError> {
    let program = parse(expression)?;
    match unknown(program.expression(), known, &mut Vec::new()) {
        Some(name) => Err(CelError(format!("undeclared reference to '{name}'"))),
        None => Ok(()),
    }
}

fn parse(expression: &str) -> Result<Program, CelError> {
    // The parser may not survive input it does not expect; that must not take the server down.
    match std::panic::catch_unwind(|| Program::compile(expression)) {
        Ok(result) => result.map_err(|e| CelError(e.to_string())),
        Err(_) => Err(CelError("the expression could not be parsed".into())),
    }
}

/// Names that every expression may use: types, and the first word of functions with two.
const BUILT_IN: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "duration",
    "dyn",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "timestamp",
    "type",
    "uint",
    "base64",
    "cel",
    "cidr",
    "format",
    "google",
    "ip",
    "jsonpatch",
    "lists",
    "math",
    "optional",
    "quantity",
    "regex",
    "semver",
    "sets",
    "strings",
    "url",
];

/// The first name that is neither known nor bound around it.
fn unknown<'e>(at: &'e IdedExpr, known: &[&str], bound: &mut Vec<&'e str>) -> Option<&'e str> {
    match &at.expr {
        Expr::Unspecified | Expr::Literal(_) => None,
        Expr::Ident(name) => {
            let name = name.trim_start_matches('.');
            let fine = name.starts_with('@')
                || known.contains(&name)
                || bound.contains(&name)
                || BUILT_IN.contains(&name);
            (!fine).then_some(name)
        }
        Expr::Select(select) => unknown(&select.operand, known, bound),
        Expr::List(list) => list.elements.iter().find_map(|item| unknown(item, known, bound)),
        Expr::Call(call) => {
            call.target.iter().map(|t| &**t).chain(&call.args).find_map(|part| unknown(part, known, bound))
        }
        Expr::Map(map) => map.entries.iter().find_map(|entry| unknown_entry(&entry.expr, known, bound)),
        Expr::Struct(object) => {
            object.entries.iter().find_map(|entry| unknown_entry(&entry.expr, known, bound))
        }
        Expr::Comprehension(loop_) => {
            let outside = [&loop_.iter_range, &loop_.accu_init];
            if let Some(name) = outside.into_iter().find_map(|part| unknown(part, known, bound)) {
                return Some(name);
            }
            let before = bound.len();
            bound.extend([loop_.iter_var.as_str(), loop_.accu_var.as_str()]);
            bound.extend(loop_.iter_var2.as_deref());
            let inside = [&loop_.loop_cond, &loop_.loop_step, &loop_.result];
            let found = inside.into_iter().find_map(|part| unknown(part, known, bound));
            bound.truncate(before);
            found
        }
    }
}

fn unknown_entry<'e>(entry: &'e EntryExpr, known: &[&str], bound: &mut Vec<&'e str>) -> Option<&'e str> {
    match entry {
        EntryExpr::StructField(field) => unknown(&field.value, known, bound),
        EntryExpr::MapEntry(pair) => {
            unknown(&pair.key, known, bound).or_else(|| unknown(&pair.value, known, bound))
        }
    }
}

/// How many loops lie within each other at most. What is looped over may itself be made by loops.
fn loops(at: &IdedExpr) -> u32 {
    let most = |parts: &mut dyn Iterator<Item = &IdedExpr>| parts.map(loops).max().unwrap_or(0);
    let entry = |entry: &EntryExpr| match entry {
        EntryExpr::StructField(field) => loops(&field.value),
        EntryExpr::MapEntry(pair) => loops(&pair.key).max(loops(&pair.value)),
    };
    match &at.expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => 0,
        Expr::Select(select) => loops(&select.operand),
        Expr::List(list) => most(&mut list.elements.iter()),
        Expr::Call(call) => most(&mut call.target.iter().map(|t| &**t).chain(&call.args)),
        Expr::Map(map) => map.entries.iter().map(|e| entry(&e.expr)).max().unwrap_or(0),
        Expr::Struct(object) => object.entries.iter().map(|e| entry(&e.expr)).max().unwrap_or(0),
        Expr::Comprehension(loop_) => {
            let inside = [&loop_.accu_init, &loop_.loop_cond, &loop_.loop_step, &loop_.result];
            loops(&loop_.iter_range) + 1 + most(&mut inside.into_iter())
        }
    }
}

/// Adds the loops of every rule below a schema.
fn collect_loops(schema: &CompiledSchema, all: &mut Vec<u32>) {
    for rule in schema.validations.iter().flatten() {
        all.push(loops(rule.program.expression()));
        all.extend(rule.message_program.as_ref().map(|message| loops(message.expression())));
    }
    let below = schema
        .properties
        .values()
        .chain(schema.items.as_deref())
        .chain(schema.additional_properties.as_deref());
    let below = below.chain(&schema.all_of).chain(&schema.any_of).chain(&schema.one_of);
    below.for_each(|schema| collect_loops(schema, all));
}

/// How much there is to walk over in a value.
fn extent(value: &Value) -> u64 {
    match value {
        Value::String(text) => 1 + text.len() as u64 / 32,
        Value::Array(list) => 1 + list.iter().map(extent).sum::<u64>(),
        Value::Object(map) => 1 + map.values().map(extent).sum::<u64>(),
        _ => 1,
    }
}

/// The `x-kubernetes-validations` of one schema, compiled.
pub struct Rules {
    compiled: CompiledSchema,
    validator: Validator,
    schema: Value,
    /// Of each rule.
    loops: Vec<u32>,
    has_numbers: bool,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rules")
    }
}

/// The schemas of what lies in a value: of its members by name, of all its other members, of its items.
struct Below<'s> {
    properties: Option<&'s Map<String, Value>>,
    additional: Option<&'s Value>,
    items: Option<&'s Value>,
}

impl<'s> Below<'s> {
    fn of(schema: &'s Value) -> Self {
        let schema_at = |name: &str| schema.get(name).filter(|schema| schema.is_object());
        let properties = schema.get("properties").and_then(Value::as_object);
        Self { properties, additional: schema_at("additionalProperties"), items: schema_at("items") }
    }

    fn property(&self, name: &str) -> Option<&'s Value> {
        self.properties.and_then(|properties| properties.get(name))
    }

    fn all(self) -> impl Iterator<Item = &'s Value> {
        self.properties.into_iter().flat_map(Map::values).chain(self.additional).chain(self.items)
    }
}

fn is_number(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "number")
}

/// Whether a schema has numbers that need not be whole, here or below.
fn has_numbers(schema: &Value) -> bool {
    is_number(schema) || Below::of(schema).all().any(has_numbers)
}

fn has_nulls(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.iter().any(has_nulls),
        Value::Object(map) => map.values().any(has_nulls),
        _ => false,
    }
}

/// Makes a value what rules see: a field that is null is not there, and a `number` is not an integer even if it is whole.
fn translate(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            let below = Below::of(schema);
            map.retain(|name, member| !(member.is_null() && below.property(name).is_some()));
            for (name, member) in map {
                let schema = below.property(name).or(below.additional);
                schema.into_iter().for_each(|schema| translate(member, schema));
            }
        }
        Value::Array(list) => {
            let items = Below::of(schema).items;
            items.into_iter().for_each(|items| list.iter_mut().for_each(|item| translate(item, items)));
        }
        Value::Number(number) if is_number(schema) => {
            if let Some(float) = number.as_f64().and_then(Number::from_f64) {
                *number = float;
            }
        }
        _ => {}
    }
}

impl Rules {
    pub fn compile(schema: &Value) -> Self {
        let mut schema = schema.clone();
        with_optionals(&mut schema);
        let compiled = compile_schema(&schema);
        let mut loops = Vec::new();
        collect_loops(&compiled, &mut loops);
        let has_numbers = has_numbers(&schema);
        Self { compiled, validator: Validator::new(), schema, loops, has_numbers }
    }

    fn seen_by_rules<'v>(&self, object: &'v Value) -> Cow<'v, Value> {
        if !self.has_numbers && !has_nulls(object) {
            return Cow::Borrowed(object);
        }
        let mut object = object.clone();
        translate(&mut object, &self.schema);
        Cow::Owned(object)
    }

    /// At most about so many steps are taken to evaluate all rules. Far too many for most rules: each loop is taken to walk over
    /// the whole object, and so is what each of its rounds does.
    pub fn steps(&self, object: &Value, old: Option<&Value>) -> u64 {
        // Rules see no more of the metadata than names.
        let seen = |object: &Value| match object {
            Value::Object(map) => {
                map.iter().filter(|(key, _)| *key != "metadata").fold(1, |sum, (_, v)| sum + extent(v))
            }
            other => extent(other),
        };
        let extent: u64 = seen(object).saturating_add(old.map_or(0, seen));
        self.loops.iter().fold(0, |sum, loops| sum.saturating_add(extent.saturating_pow(loops + 1)))
    }

    /// Evaluates all rules; `old` is the object before an update. A rule without `oldSelf` that fails on a value
    /// which did not change is let pass, so that old objects stay writable.
    pub fn evaluate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let written = object;
        let object = &*self.seen_by_rules(object);
        let old = old.map(|old| self.seen_by_rules(old));
        let old = old.as_deref();
        let run = || self.validator.validate_compiled(&self.compiled, object, old);
        let result = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(result) => result,
            Err(_) => {
                let detail = "a validation rule could not be evaluated";
                return vec![FieldError::invalid("<nil>", &Value::from("object"), detail)];
            }
        };
        let Err(errors) = result else { return Vec::new() };
        errors
            .into_vec()
            .into_iter()
            .filter(|e| e.rule.contains("oldSelf") || !old.is_some_and(|old| self.unchanged(e, object, old)))
            .map(|e| self.field_error(e, written))
            .collect()
    }

    /// The path of the value a rule is about; it may point at a field below that.
    fn own_path<'e>(&self, error: &'e kube_cel::ValidationError) -> &'e str {
        let path = error.field_path.as_str();
        match find_field_path(&self.schema, &error.rule) {
            Some(suffix) => path.strip_suffix(suffix).unwrap_or(path).trim_end_matches('.'),
            None => path,
        }
    }

    fn unchanged(&self, error: &kube_cel::ValidationError, object: &Value, old: &Value) -> bool {
        let path = self.own_path(error);
        let (mut new, mut before) = (Vec::new(), Vec::new());
        all_at(object, path, &mut new);
        all_at(old, path, &mut before);
        !new.is_empty() && new == before
    }

    fn field_error(&self, error: kube_cel::ValidationError, object: &Value) -> FieldError {
        let path = match error.field_path.trim_start_matches('.') {
            "" => "<nil>".to_owned(),
            path => path.to_owned(),
        };
        let mut values = Vec::new();
        all_at(object, self.own_path(&error), &mut values);
        let value = match values[..] {
            [Value::Object(_) | Value::Array(_)] => String::new(),
            [scalar] => scalar.to_string(),
            _ => String::new(),
        };
        let kind = match error.reason.as_deref() {
            Some("FieldValueForbidden") => ErrorKind::Forbidden,
            Some("FieldValueRequired") => ErrorKind::Required,
            Some("FieldValueDuplicate") => ErrorKind::Duplicate,
            _ => ErrorKind::Invalid,
        };
        let detail = match error.kind {
            RuleError::ValidationFailure => match error.message.strip_prefix("failed rule: ") {
                Some(rule) => format!("failed rule: {}", as_written(rule)),
                None => error.message.trim().to_owned(),
            },
            _ => format!("{} evaluating rule: {}", error.message, as_written(&error.rule)),
        };
        let (value, detail) = match kind {
            ErrorKind::Forbidden | ErrorKind::Required => (String::new(), detail),
            ErrorKind::Duplicate => (value, String::new()),
            _ => (value, detail),
        };
        FieldError { kind, path, value, detail }
    }
}

/// The `fieldPath` of a rule, wherever in the schema it stands.
fn find_field_path<'a>(schema: &'a Value, rule: &str) -> Option<&'a str> {
    match schema {
        Value::Object(map) => {
            if map.get("rule").and_then(Value::as_str) == Some(rule) {
                return map.get("fieldPath").and_then(Value::as_str);
            }
            map.values().find_map(|v| find_field_path(v, rule))
        }
        Value::Array(list) => list.iter().find_map(|v| find_field_path(v, rule)),
        _ => None,
    }
}

/// The values at a path such as `spec.items[2].name`: several where names have dots or brackets themselves.
fn all_at<'a>(value: &'a Value, path: &str, found: &mut Vec<&'a Value>) {
    if path.is_empty() {
        return found.push(value);
    }
    match value {
        Value::Array(list) => {
            let Some((index, rest)) = path.strip_prefix('[').and_then(|path| path.split_once(']')) else {
                return;
            };
            if let Some(item) = index.parse::<usize>().ok().and_then(|index| list.get(index)) {
                all_at(item, rest, found);
            }
        }
        Value::Object(map) => {
            let path = path.strip_prefix('.').unwrap_or(path);
            let ends = path.match_indices(['.', '[']).map(|(end, _)| end).chain([path.len()]);
            for end in ends {
                if let Some(member) = map.get(&path[..end]) {
                    all_at(member, &path[end..], found);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_with_the_object_and_with_loops_within_loops() {
        let steps = |rule: &str| {
            let schema = serde_json::json!({"type": "object", "properties": {"l": {
                "type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": rule}],
            }}});
            let list: Vec<&str> = vec!["a"; 98];
            let metadata = serde_json::json!({"managedFields": vec!["m"; 100]});
            Rules::compile(&schema).steps(&serde_json::json!({"l": list, "metadata": metadata}), None)
        };
        assert_eq!(steps("size(self) > 1"), 100);
        assert_eq!(steps("self.all(x, x in self) && self.exists(x, x == 'a')"), 10_000);
        assert_eq!(steps("self.all(x, self.all(y, x == y))"), 1_000_000);
        assert_eq!(steps("self.map(x, self.map(y, y)).all(z, size(z) > 0)"), 100_000_000);
    }

    #[test]
    fn numbers_that_need_not_be_whole_are_floats_to_rules() {
        let number = serde_json::json!({"type": "number"});
        let schema = serde_json::json!({"type": "object", "properties": {
            "a": number, "b": number, "i": {"type": "integer"},
            "list": {"type": "array", "items": number},
            "map": {"type": "object", "additionalProperties": number},
        }, "x-kubernetes-validations": [
            {"rule": "self.a / self.b <= 2.0"},
            {"rule": "self.i / 2 == 2 && self.a > 4"},
            {"rule": "self.list.all(n, n / 2.0 > 2.0) && self.map.k / 2.0 > 2.0"},
            {"rule": "oldSelf.a / oldSelf.b == 2.5"},
        ]});
        let rules = Rules::compile(&schema);
        let object = |b: i64| serde_json::json!({"a": 5, "b": b, "i": 5, "list": [5], "map": {"k": 5}});
        let complaints = |new: &Value, old: Option<&Value>| -> Vec<String> {
            rules.evaluate(new, old).into_iter().map(|error| error.detail).collect()
        };
        assert_eq!(complaints(&object(2), None), ["failed rule: self.a / self.b <= 2.0"]);
        assert!(complaints(&object(4), Some(&object(2))).is_empty());
    }

    #[test]
    fn a_complaint_shows_a_number_as_it_was_written() {
        let schema = serde_json::json!({"type": "object", "properties": {
            "a": {"type": "number", "x-kubernetes-validations": [{"rule": "self < 2.0"}]},
        }});
        let errors = Rules::compile(&schema).evaluate(&serde_json::json!({"a": 5}), None);
        assert_eq!(errors[0].value, "5");
    }

    #[test]
    fn a_rule_may_see_the_value_before_as_an_optional() {
        let schema = serde_json::json!({"type": "object", "properties": {"a": {
            "type": "string",
            "x-kubernetes-validations": [
                {"rule": "oldSelf.hasValue() || self == 'new'", "optionalOldSelf": true},
                {"rule": "self != 'no oldSelf' && oldSelf.orValue('x') != 'last'", "optionalOldSelf": true},
                {"rule": "// it's about oldSelf\nself != r'\\' && oldSelf.orValue('x') != 'last'",
                    "optionalOldSelf": true},
            ],
        }}});
        let rules = Rules::compile(&schema);
        let of = |text: &str| serde_json::json!({"a": text});
        let complaints = |new: &str, old: Option<&str>| {
            let errors = rules.evaluate(&of(new), old.map(of).as_ref());
            errors.into_iter().map(|error| error.detail).collect::<Vec<_>>()
        };
        assert!(complaints("new", None).is_empty() && complaints("other", Some("new")).is_empty());
        assert_eq!(complaints("other", None), ["failed rule: oldSelf.hasValue() || self == 'new'"]);
        assert_eq!(complaints("other", Some("last")).len(), 2);
    }

    #[test]
    fn an_expression_may_only_speak_of_what_is_there() {
        for good in [
            "object.spec.replicas <= 5",
            "object.spec.list.all(x, x > 0 && object.a == x)",
            "type(object.a) == int && has(object.b)",
            "{'a': object.a}.b == optional.none()",
            "ip.isCanonical(object.a)",
        ] {
            assert_eq!(check_names(good, &["object"]), Ok(()), "{good}");
        }
        for (bad, name) in [
            ("params.max > 1", "params"),
            ("object.list.exists(x, x == y)", "y"),
            ("object.list.all(x, true) && x", "x"),
            ("[object, {'a': b}]", "b"),
        ] {
            let error = check_names(bad, &["object"]).unwrap_err().to_string();
            assert!(error.contains(&format!("'{name}'")), "{bad}: {error}");
        }
        assert!(check_names("Not_Valid!", &["object"]).is_err());
    }
}
