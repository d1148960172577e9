//! Sets of completion indexes in their written form: `0,2-5,9`.

use std::{collections::BTreeSet, fmt, str::FromStr};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(pub BTreeSet<i32>);

impl Indexes {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, index: i32) -> bool {
        self.0.contains(&index)
    }

    /// What is written there; parts that are not understood are left out.
    pub fn read(text: Option<&str>) -> Self {
        text.and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

impl FromStr for Indexes {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut set = BTreeSet::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            match part.split_once('-') {
                Some((first, last)) => set.extend(first.parse::<i32>()?..=last.parse()?),
                None => drop(set.insert(part.parse()?)),
            }
        }
        Ok(Self(set))
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut first = true;
        while let Some(start) = rest.next() {
            let mut end = start;
            while let Some(next) = rest.next_if(|next| *next == end + 1) {
                end = next;
            }
            let comma = if first { "" } else { "," };
            first = false;
            match end - start {
                0 => write!(f, "{comma}{start}")?,
                1 => write!(f, "{comma}{start},{end}")?,
                _ => write!(f, "{comma}{start}-{end}")?,
            }
        }
        Ok(())
    }
}
