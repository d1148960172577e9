//! Amounts of compute: what a replica asks for, what a node or a site has free.

use std::fmt;
use std::sync::Arc;

/// A vector of amounts. Missing means zero. Amounts are plain integers: thousandths of a core for `cpu`,
/// bytes for `memory` and `storage`, a count for `pods` and for extended resources (which Kubernetes
/// allows only as whole numbers).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Thousandths of a core.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of `ephemeral-storage`.
    pub storage: i64,
    /// How many pods; a request for one replica has `1` here, set by [`Resources::replica`].
    pub pods: i64,
    /// Everything else by name (`nvidia.com/gpu`, `hugepages-2Mi`), sorted by name, no zero entries.
    extended: Vec<(Arc<str>, i64)>,
}

/// One line of a comparison that failed: `asked` of `name` did not fit into `free`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shortage {
    pub name: Arc<str>,
    pub asked: i64,
    pub free: i64,
}

impl Resources {
    /// A request of one replica: cores in thousandths and bytes of memory, and one pod.
    pub fn replica(cpu_milli: i64, memory_bytes: i64) -> Self {
        Self { cpu: cpu_milli, memory: memory_bytes, pods: 1, ..Self::default() }
    }

    /// The same with another number of pods: what a node has free is not one pod.
    pub fn with_pods(mut self, pods: i64) -> Self {
        self.pods = pods;
        self
    }

    /// Sets an extended resource; zero removes it.
    pub fn set_extended(&mut self, name: &str, amount: i64) {
        match self.extended.binary_search_by(|(n, _)| (**n).cmp(name)) {
            Ok(at) if amount == 0 => drop(self.extended.remove(at)),
            Ok(at) => self.extended[at].1 = amount,
            Err(_) if amount == 0 => {}
            Err(at) => self.extended.insert(at, (name.into(), amount)),
        }
    }

    /// The amount of an extended resource, zero when there is none.
    pub fn extended(&self, name: &str) -> i64 {
        self.extended.binary_search_by(|(n, _)| (**n).cmp(name)).map_or(0, |at| self.extended[at].1)
    }

    /// All extended resources, by name.
    pub fn extended_iter(&self) -> impl Iterator<Item = (&Arc<str>, i64)> {
        self.extended.iter().map(|(name, amount)| (name, *amount))
    }

    /// Adds `other` to this, saturating.
    pub fn add(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_add);
    }

    /// Takes `other` away. The result may be negative: a node can be overcommitted by static pods.
    pub fn sub(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_sub);
    }

    /// Takes the larger of the two for every resource (init containers against app containers).
    pub fn max_with(&mut self, other: &Resources) {
        self.combine(other, i64::max);
    }

    fn combine(&mut self, other: &Resources, f: impl Fn(i64, i64) -> i64) {
        self.cpu = f(self.cpu, other.cpu);
        self.memory = f(self.memory, other.memory);
        self.storage = f(self.storage, other.storage);
        self.pods = f(self.pods, other.pods);
        for (name, amount) in &other.extended {
            let value = f(self.extended(name), *amount);
            self.set_extended(name, value);
        }
    }

    /// How many times `each` fits into this. `None` when `each` asks for nothing at all, i.e. without limit.
    pub fn times(&self, each: &Resources) -> Option<u64> {
        let mut fits: Option<u64> = None;
        let mut limit = |free: i64, asked: i64| {
            if asked > 0 {
                let n = (free.max(0) / asked) as u64;
                fits = Some(fits.map_or(n, |f| f.min(n)));
            }
        };
        limit(self.cpu, each.cpu);
        limit(self.memory, each.memory);
        limit(self.storage, each.storage);
        limit(self.pods, each.pods);
        for (name, asked) in &each.extended {
            limit(self.extended(name), *asked);
        }
        fits
    }

    /// Everything of `each` that does not fit into this; empty when it fits.
    pub fn shortages(&self, each: &Resources) -> Vec<Shortage> {
        let mut short = Vec::new();
        let mut check = |name: &str, free: i64, asked: i64| {
            if asked > 0 && asked > free {
                short.push(Shortage { name: name.into(), asked, free });
            }
        };
        check("pods", self.pods, each.pods);
        check("cpu", self.cpu, each.cpu);
        check("memory", self.memory, each.memory);
        check("ephemeral-storage", self.storage, each.storage);
        for (name, asked) in &each.extended {
            check(name, self.extended(name), *asked);
        }
        short
    }

    /// Whether `each` fits once; the allocation-free form of `shortages().is_empty()`.
    pub fn holds(&self, each: &Resources) -> bool {
        let fits = |free: i64, asked: i64| asked <= 0 || asked <= free;
        fits(self.cpu, each.cpu)
            && fits(self.memory, each.memory)
            && fits(self.storage, each.storage)
            && fits(self.pods, each.pods)
            && each.extended.iter().all(|(name, asked)| fits(self.extended(name), *asked))
    }
}

/// The amount as a person would write it: `500m` or `2` cores, `1.5Gi`, a plain count.
pub fn amount(name: &str, value: i64) -> String {
    match name {
        "cpu" if value % 1000 == 0 => (value / 1000).to_string(),
        "cpu" => format!("{value}m"),
        "memory" | "ephemeral-storage" => bytes(value),
        _ if name.starts_with("hugepages-") => bytes(value),
        _ => value.to_string(),
    }
}

fn bytes(value: i64) -> String {
    const UNITS: [(&str, i64); 4] = [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    for (unit, size) in UNITS {
        if value.unsigned_abs() >= size as u64 {
            let tenths = (value as i128 * 10 / size as i128) as i64;
            return match tenths % 10 {
                0 => format!("{}{unit}", tenths / 10),
                rest => format!("{}.{}{unit}", tenths / 10, rest.abs()),
            };
        }
    }
    value.to_string()
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut any = false;
        let mut part = |f: &mut fmt::Formatter<'_>, name: &str, value: i64| -> fmt::Result {
            if value != 0 {
                write!(f, "{}{name} {}", if any { ", " } else { "" }, amount(name, value))?;
                any = true;
            }
            Ok(())
        };
        part(f, "cpu", self.cpu)?;
        part(f, "memory", self.memory)?;
        part(f, "ephemeral-storage", self.storage)?;
        for (name, value) in &self.extended {
            part(f, name, *value)?;
        }
        if !any {
            f.write_str("nothing")?;
        }
        Ok(())
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (asked {}, free {})",
            self.name,
            amount(&self.name, self.asked),
            amount(&self.name, self.free)
        )
    }
}
