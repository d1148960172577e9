//! A decision in words: the table of `tombolo explain place`, and one line for events.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::decision::{Decision, Explanation, Note, Reason};
use super::types::Domain;

impl Decision {
    /// Every place with its numbers and the reason, then what was not met. Ends with a newline.
    pub fn table(&self) -> String {
        let header = ["SITE", "REPLICAS", "FITS", "PREFERENCE", "SCORE", "WHY"].map(str::to_owned);
        let rows: Vec<[String; 6]> = std::iter::once(header).chain(self.sites.iter().map(row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..5).map(width).collect();
        let mut text = String::new();
        for row in &rows {
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to a String cannot fail.
                let _ = write!(text, "{cell:<width$}   ");
            }
            text.push_str(&row[5]);
            text.push('\n');
        }
        let _ = writeln!(text, "\n{self}");
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }

    /// How many of the sites that got nothing have which reason, most frequent first.
    fn objections(&self) -> String {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for explanation in self.sites.iter().filter(|e| !e.chosen) {
            *reasons.entry(explanation.reason.brief()).or_default() += 1;
        }
        let full = self.sites.iter().filter(|e| e.chosen && e.reason == Reason::ChosenFull).count();
        if full > 0 {
            *reasons.entry("full".to_owned()).or_default() += full;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(text, sites)| (std::cmp::Reverse(*sites), text.clone()));
        reasons.iter().map(|(text, sites)| format!("{sites} {text}")).collect::<Vec<_>>().join(", ")
    }
}

/// One line, short enough for an event: where the replicas are, and why some have no place.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 10;
        let placed = self.wanted - self.unplaced;
        write!(f, "{placed} of {} replicas placed", self.wanted)?;
        let chosen: Vec<&Explanation> = self.sites.iter().filter(|e| e.replicas > 0).collect();
        for (at, explanation) in chosen.iter().take(NAMED).enumerate() {
            let separator = if at == 0 { ": " } else { ", " };
            write!(f, "{separator}{} {}", explanation.place(), explanation.replicas)?;
        }
        if chosen.len() > NAMED {
            write!(f, " and {} more", chosen.len() - NAMED)?;
        }
        if self.moved > 0 {
            write!(f, "; {} moved", self.moved)?;
        }
        if self.waiting > 0 {
            write!(f, "; {} waiting to move", self.waiting)?;
        }
        if self.unplaced > 0 {
            let (objections, unplaced) = (self.objections(), self.unplaced);
            match self.sites.len() {
                0 => write!(f, "; {unplaced} without a place: there is no site")?,
                sites => write!(f, "; {unplaced} without a place, of {sites} sites: {objections}")?,
            }
        }
        f.write_str(".")
    }
}

impl Explanation {
    /// The site, with its part if it has several.
    pub fn place(&self) -> String {
        if self.part.is_empty() { self.site.clone() } else { format!("{}/{}", self.site, self.part) }
    }
}

fn row(explanation: &Explanation) -> [String; 6] {
    let Explanation { replicas, before, .. } = explanation;
    let change = if replicas == before { String::new() } else { format!(" (was {before})") };
    let or_dash = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    let candidate = explanation.preference.is_some();
    [
        explanation.place(),
        format!("{replicas}{change}"),
        or_dash(explanation.fits),
        or_dash(explanation.preference.map(|rank| rank + 1)),
        or_dash(candidate.then_some(explanation.score)),
        explanation.reason.to_string(),
    ]
}

impl Reason {
    /// The kind of reason, without what differs from site to site.
    fn brief(&self) -> String {
        match self {
            Reason::Chosen | Reason::ChosenFull => "chosen".to_owned(),
            Reason::Full { .. } => "full".to_owned(),
            Reason::NoNode => "without a node that is ready".to_owned(),
            Reason::Jurisdiction { .. } => "under other jurisdictions".to_owned(),
            Reason::TooFar { .. } => "too far".to_owned(),
            Reason::SilentKept { .. } | Reason::Silent { .. } => "silent".to_owned(),
            Reason::Draining { .. } => "draining".to_owned(),
            Reason::Skew { by, .. } => format!("beyond the skew by {by}"),
            Reason::DomainLimit { by, .. } => format!("beyond the number by {by}"),
            Reason::LessPreferred | Reason::NotNeeded => "not needed".to_owned(),
            Reason::Taint(taint) => format!("with untolerated taint {taint}"),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Chosen => f.write_str("chosen"),
            Reason::ChosenFull => f.write_str("chosen, now full"),
            Reason::NotNeeded => f.write_str("has room, but all replicas have a better place"),
            Reason::LessPreferred => f.write_str("has room, but more preferred sites took all replicas"),
            Reason::Excluded(reason) => f.write_str(reason),
            Reason::NotSelected => f.write_str("not selected"),
            Reason::CannotFence => {
                f.write_str("cannot stop replicas by itself, which failover.atMostOnce needs")
            }
            Reason::NoWeight => f.write_str("has no weight"),
            Reason::Taint(taint) => write!(f, "untolerated taint {taint}"),
            Reason::Jurisdiction { has, allowed } => {
                let has = if has.is_empty() { "not known" } else { has };
                write!(f, "jurisdiction {has}, allowed {}", allowed.join(" "))
            }
            Reason::TooFar { km: Some(km), limit } => write!(f, "{km:.0} km away, limit {limit:.0} km"),
            Reason::TooFar { km: None, limit } => write!(f, "position not known, limit {limit:.0} km"),
            Reason::SilentKept { seconds, stays: true, .. } => {
                write!(f, "silent for {seconds} s; its replicas stay, nothing new comes")
            }
            Reason::SilentKept { seconds, wait, .. } => {
                write!(f, "silent for {seconds} s; its replicas move after {wait} s")
            }
            Reason::Silent { seconds, wait } => {
                write!(f, "silent for {seconds} s, more than {wait} s: its replicas move")
            }
            Reason::Cordoned => f.write_str("cordoned: keeps what it has, nothing new comes"),
            Reason::Draining { stays: true } => f.write_str("draining; its replicas stay, nothing new comes"),
            Reason::Draining { stays: false } => f.write_str("draining: its replicas move"),
            Reason::Full { short, nodes } => {
                f.write_str("full")?;
                for (at, shortage) in short.iter().enumerate() {
                    write!(f, "{}{shortage}", if at == 0 { ": closest node lacks " } else { ", " })?;
                }
                if short.is_empty() {
                    f.write_str(": says so itself")
                } else {
                    write!(f, " of {nodes} nodes")
                }
            }
            Reason::NoNode => f.write_str("has no node that is ready for pods"),
            Reason::Skew { by, domain, has, fewest, max } => {
                write!(f, "{by} {domain} has {has}, fewest {fewest}, max skew {max}")
            }
            Reason::DomainLimit { by, max } => write!(f, "already on {max} by {by}, the most allowed"),
            Reason::NoDomain { by } => write!(f, "does not say its {by}, which the spread needs"),
            Reason::NoParts => f.write_str("offers nothing"),
            Reason::Gone => f.write_str("no longer in the fleet"),
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Domain::Site => "site",
            Domain::Zone => "zone",
            Domain::Region => "region",
            Domain::Provider => "provider",
            Domain::Tier => "tier",
            Domain::Label(key) => key,
        })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::FewDomains { by, wanted, used } => {
                write!(f, "Spread by {by}: on {used}, wanted at least {wanted}.")
            }
            Note::ManyDomains { by, allowed, used } => {
                write!(f, "Spread by {by}: on {used}, wanted at most {allowed}.")
            }
            Note::SkewExceeded { by, skew, max } => {
                write!(f, "Spread by {by}: skew {skew}, wanted at most {max}.")
            }
            Note::Shunned { site } => {
                write!(f, "{site} gets no more for now: it could not schedule what it was given.")
            }
        }
    }
}
