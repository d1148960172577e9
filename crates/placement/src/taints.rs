//! Taints repel, tolerations permit: the same for pods on nodes and for workloads on sites.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing new comes here; what is here stays.
    NoSchedule,
    /// Rather not here, when there is a choice.
    PreferNoSchedule,
    /// Nothing new comes here, and what is here leaves.
    NoExecute,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: Effect,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TolerationOperator {
    #[default]
    Equal,
    Exists,
    /// The taint's value is an integer greater than the toleration's.
    Gt,
    /// The taint's value is an integer less than the toleration's.
    Lt,
}

/// An empty `key` with `Exists` tolerates everything; no `effect` means every effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Toleration {
    pub key: String,
    pub operator: TolerationOperator,
    pub value: String,
    pub effect: Option<Effect>,
}

impl Toleration {
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect) {
            return false;
        }
        if !self.key.is_empty() && self.key != taint.key {
            return false;
        }
        let compare = || Some((taint.value.parse::<i64>().ok()?, self.value.parse::<i64>().ok()?));
        match self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal => self.value == taint.value,
            TolerationOperator::Gt => compare().is_some_and(|(taint, own)| taint > own),
            TolerationOperator::Lt => compare().is_some_and(|(taint, own)| taint < own),
        }
    }
}

/// The first taint with one of `effects` that none of `tolerations` permits.
pub fn untolerated<'t>(
    taints: &'t [Taint],
    tolerations: &[Toleration],
    effects: &[Effect],
) -> Option<&'t Taint> {
    taints.iter().find(|taint| {
        effects.contains(&taint.effect) && !tolerations.iter().any(|toleration| toleration.tolerates(taint))
    })
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}: {}}}", self.key, self.value)
    }
}
