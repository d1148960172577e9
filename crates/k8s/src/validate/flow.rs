//! Flow schemas and priority levels.

use super::at::{At, Errors};
use crate::names;

const MOST_QUEUES: i64 = 10_000_000;
/// A request is dealt to its queues with this many bits of a hash.
const HASH_BITS: u32 = 60;

pub(super) fn flow_schema(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let precedence = spec.get("matchingPrecedence");
    if precedence.int().is_some_and(|p| p <= 0) {
        e.invalid(&precedence, "must be a positive value");
    }
    if precedence.int().is_some_and(|p| p > 10_000) {
        e.invalid(&precedence, "must not be greater than 10000");
    }
    let level = spec.get("priorityLevelConfiguration");
    e.name(&level.get("name"), names::dns_subdomain);
}

pub(super) fn priority_level(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let kind = spec.get("type");
    let metadata = object.get("metadata");
    if (metadata.get("name").str() == "exempt") != (kind.str() == "Exempt") {
        e.invalid(&kind, "must be 'Exempt' if and only if `name` is 'exempt'");
    }
    let (limited, exempt) = (spec.get("limited"), spec.get("exempt"));
    match kind.str() {
        "Exempt" => {
            if limited.is_set() {
                e.forbidden(&limited, "must be nil if the type is not Limited");
            }
            shares(e, &exempt);
        }
        "Limited" => {
            if exempt.is_set() {
                e.forbidden(&exempt, "must be nil if the type is Limited");
            }
            if limited.is_set() {
                shares(e, &limited);
                limit_response(e, &limited.get("limitResponse"));
                let borrowing = limited.get("borrowingLimitPercent");
                e.at_least(&borrowing, 0, "if specified, must be a non-negative integer");
            } else {
                e.required(&limited, "must not be empty when type is Limited");
            }
        }
        _ => e.one_of(&kind, &["Exempt", "Limited"]),
    }
}

fn shares(e: &mut Errors, level: &At<'_, '_>) {
    e.at_least(&level.get("nominalConcurrencyShares"), 0, "must be a non-negative integer");
    let lendable = level.get("lendablePercent");
    if lendable.int().is_some_and(|percent| !(0..=100).contains(&percent)) {
        e.invalid(&lendable, "must be between 0 and 100, inclusive");
    }
}

fn limit_response(e: &mut Errors, response: &At<'_, '_>) {
    let (kind, queuing) = (response.get("type"), response.get("queuing"));
    match kind.str() {
        "Reject" => {
            if queuing.is_set() {
                e.forbidden(&queuing, "must be nil if limited.limitResponse.type is not Limited");
            }
        }
        "Queue" if queuing.is_set() => queues(e, &queuing),
        "Queue" => e.required(&queuing, "must not be empty if limited.limitResponse.type is Limited"),
        _ => e.one_of(&kind, &["Queue", "Reject"]),
    }
}

fn queues(e: &mut Errors, queuing: &At<'_, '_>) {
    let number = |name| queuing.get(name).int().unwrap_or_default();
    let (queues, hand) = (number("queues"), number("handSize"));
    let at = queuing.get("queueLengthLimit");
    e.at_least(&at, 1, "must be positive");
    let at = queuing.get("queues");
    e.at_least(&at, 1, "must be positive");
    if queues > MOST_QUEUES {
        e.invalid(&at, format!("must not be greater than {MOST_QUEUES}"));
    }
    let at = queuing.get("handSize");
    e.at_least(&at, 1, "must be positive");
    if hand > queues {
        e.invalid(&at, format!("should not be greater than queues ({queues})"));
    } else if hand > 0 {
        let bits = entropy(queues, hand);
        if bits > HASH_BITS {
            let detail = format!(
                "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
            );
            e.invalid(&at, detail);
        }
    }
}

/// How many bits of a hash it takes to pick a hand of queues.
fn entropy(queues: i64, hand: i64) -> u32 {
    ((queues as f64).log2() * hand as f64).ceil() as u32
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn said(spec: Value) -> Vec<String> {
        let level = json!({"metadata": {"name": "work"}, "spec": spec});
        let group = "flowcontrol.apiserver.k8s.io";
        let errors = crate::validate::create(group, "PriorityLevelConfiguration", false, &level);
        errors.into_iter().map(|e| e.path).collect()
    }

    #[test]
    fn a_limited_level_says_what_happens_beyond_its_limit() {
        assert_eq!(said(json!({"type": "Limited"})), ["spec.limited"]);
        assert_eq!(said(json!({"type": "Limited", "limited": {}})), ["spec.limited.limitResponse.type"]);
        let queue =
            json!({"type": "Queue", "queuing": {"queues": 64, "handSize": 6, "queueLengthLimit": 50}});
        assert!(said(json!({"type": "Limited", "limited": {"limitResponse": queue}})).is_empty());
    }

    #[test]
    fn a_hand_larger_than_the_hash_can_deal_is_refused() {
        let queue =
            json!({"type": "Queue", "queuing": {"queues": 1024, "handSize": 8, "queueLengthLimit": 5}});
        let refused = said(json!({"type": "Limited", "limited": {"limitResponse": queue}}));
        assert_eq!(refused, ["spec.limited.limitResponse.queuing.handSize"]);
    }
}
