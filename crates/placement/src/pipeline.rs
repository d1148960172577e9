//! The pipeline itself: filter candidates, score those that are left, pick.
//!
//! Pods onto nodes and replicas onto sites are two instances of it. Each declares a table of filters and
//! a table of scores over its own state `S` (everything derived once per decision) and candidate `C`;
//! nothing in here knows what is being placed.
//!
//! The outcome depends on the *set* of candidates only: equal scores are broken by the candidate's name,
//! never by the order in which candidates were given.

/// Says why a candidate is out. The first filter that objects decides, so cheap ones come first.
pub struct Filter<S, C, W>(pub fn(&S, &C) -> Result<(), W>);

/// One opinion on the candidates that passed the filters.
pub struct Score<S, C> {
    pub weight: i64,
    pub raw: fn(&S, &C) -> i64,
    pub scale: Scale,
}

/// How raw values become 0 to 100, so that weights mean the same for every score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Is 0 to 100 already.
    Percent,
    /// In proportion to the highest; all 0 when that is 0.
    High,
    /// The lowest gets 100, in proportion to the highest; all 100 when that is 0.
    Low,
    /// Stretched from the lowest to the highest; all 0 when they are equal.
    Span,
}

impl<S, C, W> Filter<S, C, W> {
    /// Asks all of `filters`, up to the first that objects.
    pub fn all(filters: &[Self], state: &S, candidate: &C) -> Result<(), W> {
        filters.iter().try_for_each(|filter| (filter.0)(state, candidate))
    }
}

/// What the filters and scores made of the candidates.
pub struct Survey<C, W> {
    pub feasible: Vec<Scored<C>>,
    pub refused: Vec<(C, W)>,
}

#[derive(Clone, Debug)]
pub struct Scored<C> {
    pub candidate: C,
    /// The weighted mean of all scores in hundredths, 0 to 10,000.
    pub score: i64,
}

const FULL: i64 = 100;

/// Runs every candidate through `filters`, then those that passed through `scores`.
pub fn survey<S, C, W>(
    state: &S,
    candidates: impl Iterator<Item = C>,
    filters: &[Filter<S, C, W>],
    scores: &[Score<S, C>],
) -> Survey<C, W> {
    let mut feasible = Vec::with_capacity(candidates.size_hint().0);
    let mut refused = Vec::new();
    for candidate in candidates {
        match Filter::all(filters, state, &candidate) {
            Ok(()) => feasible.push(Scored { candidate, score: 0 }),
            Err(why) => refused.push((candidate, why)),
        }
    }
    rank(state, &mut feasible, scores);
    Survey { feasible, refused }
}

fn rank<S, C>(state: &S, feasible: &mut [Scored<C>], scores: &[Score<S, C>]) {
    let total: i64 = scores.iter().map(|score| score.weight).sum();
    if total == 0 {
        return;
    }
    let mut column = Vec::with_capacity(feasible.len());
    for score in scores {
        column.clear();
        column.extend(feasible.iter().map(|scored| (score.raw)(state, &scored.candidate)));
        score.scale.apply(&mut column);
        for (scored, value) in feasible.iter_mut().zip(&column) {
            scored.score += value * score.weight;
        }
    }
    for scored in feasible {
        scored.score = scored.score * FULL / total;
    }
}

impl Scale {
    fn apply(self, values: &mut [i64]) {
        let highest = values.iter().copied().max().unwrap_or(0);
        let lowest = values.iter().copied().min().unwrap_or(0);
        for value in values {
            *value = match self {
                Scale::Percent => (*value).clamp(0, FULL),
                Scale::High if highest == 0 => 0,
                Scale::High => *value * FULL / highest,
                Scale::Low if highest == 0 => FULL,
                Scale::Low => FULL * (highest + lowest - *value) / highest,
                Scale::Span if highest == lowest => 0,
                Scale::Span => (*value - lowest) * FULL / (highest - lowest),
            };
        }
    }
}

impl<C, W> Survey<C, W> {
    /// The candidate with the highest score; among equals the one whose name sorts first.
    pub fn best<'n>(&self, name: impl Fn(&C) -> &'n str) -> Option<&Scored<C>> {
        self.feasible
            .iter()
            .max_by(|a, b| a.score.cmp(&b.score).then_with(|| name(&b.candidate).cmp(name(&a.candidate))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(scale: Scale, values: &[i64]) -> Vec<i64> {
        let mut values = values.to_vec();
        scale.apply(&mut values);
        values
    }

    #[test]
    fn scales_bring_every_score_to_a_hundred() {
        assert_eq!(scaled(Scale::Percent, &[-5, 50, 400]), [0, 50, 100]);
        assert_eq!(scaled(Scale::High, &[0, 5, 10]), [0, 50, 100]);
        assert_eq!(scaled(Scale::High, &[0, 0]), [0, 0]);
        assert_eq!(scaled(Scale::Low, &[0, 5, 10]), [100, 50, 0]);
        assert_eq!(scaled(Scale::Low, &[0, 0]), [100, 100]);
        assert_eq!(scaled(Scale::Span, &[-10, 0, 10]), [0, 50, 100]);
        assert_eq!(scaled(Scale::Span, &[7, 7]), [0, 0]);
    }

    #[test]
    fn equal_scores_go_to_the_first_name_whatever_the_order() {
        for order in [["b", "a", "c"], ["c", "b", "a"]] {
            let survey: Survey<&str, ()> = survey(&(), order.into_iter(), &[], &[]);
            assert_eq!(survey.best(|name| name).map(|scored| scored.candidate), Some("a"));
        }
    }

    #[test]
    fn the_first_objection_decides() {
        let filters: [Filter<(), i64, &str>; 2] = [
            Filter(|_, n| if *n > 1 { Err("big") } else { Ok(()) }),
            Filter(|_, n| if *n > 0 { Err("odd") } else { Ok(()) }),
        ];
        let survey = survey(&(), [0, 1, 2].into_iter(), &filters, &[]);
        assert_eq!(survey.refused, [(1, "odd"), (2, "big")]);
    }
}
