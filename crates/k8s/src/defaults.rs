//! Built-in defaulting: what upstream fills in before it validates and stores an object.
//!
//! Upstream defaults by type, outside in: wherever a `Container` stands, in a Pod or deep in a CronJob, the same
//! values are filled in. So do we: [`rules`] says field by field what is put where nothing stands, [`hooks`] holds
//! what depends on other fields. Types that lead to no default are not walked.

mod hooks;
mod resources;
mod rules;

use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::schema::{Field, Shape, TYPES, Type};

/// Fills in defaults of a decoded object of a built-in kind.
pub fn apply(value: &mut Value, type_: &'static Type, now: Timestamp) {
    if let Value::Object(object) = value
        && let Ok(index) = TYPES.binary_search_by(|t| t.name.cmp(type_.name))
    {
        walk(object, index, now);
    }
}

type Object = Map<String, Value>;
type Hook = fn(&mut Object, Timestamp);

/// What applies to one type.
#[derive(Default)]
struct Plan {
    /// Runs before the rules and before what is inside.
    hook: Option<Hook>,
    rules: Vec<(&'static Field, Value)>,
    /// Fields through which other defaults are reached.
    inner: Vec<&'static Field>,
}

static PLANS: LazyLock<Vec<Plan>> = LazyLock::new(plans);

fn plans() -> Vec<Plan> {
    let mut plans: Vec<Plan> = TYPES.iter().map(|_| Plan::default()).collect();
    for (i, type_) in TYPES.iter().enumerate() {
        plans[i].hook = hooks::HOOKS.iter().find(|(name, _)| *name == type_.name).map(|(_, hook)| *hook);
        let published = type_.fields.iter().filter(|f| !f.default.is_empty()).map(|f| (f.name, f.default));
        let declared = rules::RULES
            .iter()
            .filter(|(name, _)| *name == type_.name)
            .flat_map(|(_, rows)| rows.iter().copied());
        for (name, text) in published.chain(declared) {
            let (Some(field), Ok(value)) = (type_.field(name), serde_json::from_str(text)) else { continue };
            plans[i].rules.push((field, value));
        }
    }
    // A type matters when it has a default or holds a type that matters.
    let mut matters: Vec<bool> = plans.iter().map(|p| p.hook.is_some() || !p.rules.is_empty()).collect();
    let leads = |field: &Field, matters: &[bool]| target(&field.shape).is_some_and(|i| matters[i]);
    loop {
        let more: Vec<usize> = (0..TYPES.len())
            .filter(|&i| !matters[i] && TYPES[i].fields.iter().any(|f| leads(f, &matters)))
            .collect();
        if more.is_empty() {
            break;
        }
        more.into_iter().for_each(|i| matters[i] = true);
    }
    for (plan, type_) in plans.iter_mut().zip(TYPES) {
        plan.inner = type_.fields.iter().filter(|f| leads(f, &matters)).collect();
    }
    plans
}

/// The struct type that a field leads to, through lists and maps.
fn target(shape: &Shape) -> Option<usize> {
    match shape {
        Shape::Object(i) => Some(*i as usize),
        Shape::List(inner) | Shape::Map(inner) => target(inner),
        _ => None,
    }
}

fn walk(object: &mut Object, index: usize, now: Timestamp) {
    let plan = &PLANS[index];
    if let Some(hook) = plan.hook {
        hook(object, now);
    }
    for (field, value) in &plan.rules {
        if unset(object.get(field.name), field) {
            object.insert(field.name.to_owned(), value.clone());
        }
    }
    for field in &plan.inner {
        if let Some(value) = object.get_mut(field.name) {
            descend(value, &field.shape, now);
        }
    }
}

fn descend(value: &mut Value, shape: &Shape, now: Timestamp) {
    match (shape, value) {
        (Shape::Object(i), Value::Object(object)) => walk(object, *i as usize, now),
        (Shape::List(inner), Value::Array(items)) => items.iter_mut().for_each(|v| descend(v, inner, now)),
        (Shape::Map(inner), Value::Object(entries)) => {
            entries.values_mut().for_each(|v| descend(v, inner, now))
        }
        _ => {}
    }
}

/// Whether Go would see nil or, where the field is held by value, zero.
fn unset(value: Option<&Value>, field: &Field) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => !field.pointer && s.is_empty(),
        Some(Value::Number(n)) => !field.pointer && n.as_i64() == Some(0),
        Some(Value::Array(items)) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
