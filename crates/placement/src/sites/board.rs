//! The assign step: replicas on a board of seats, put down and taken up one at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::filters::Then;
use super::spread::Domains;

/// What a place can take, and how it compares.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    /// New replicas may come. Otherwise `then` says what becomes of those that are there.
    pub open: bool,
    pub then: Then,
    /// In all, those that are there included; `None`: no bound.
    pub cap: Option<u32>,
    /// Filled in ascending order: rank in the order of preference, then known before unknown capacity.
    pub group: (u32, bool),
    pub weight: u64,
    pub score: i64,
    pub ready: u32,
    /// Cannot run here, says the site.
    pub stuck: u32,
    pub count: u32,
    /// The share this place should have, as a fraction `share / Board::whole[group]`.
    share: i128,
    whole: i128,
}

/// How the next replica chooses among seats of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The seat furthest below its share: the method of largest remainders.
    Shares,
    /// A seat that is in use, then the tightest that takes all the rest, then the largest.
    Packed,
}

#[derive(Clone)]
pub(super) struct Board<'a> {
    pub seats: Vec<Seat>,
    pub required: Vec<Domains<'a>>,
    pub wished: Vec<Domains<'a>>,
    pub order: Order,
    /// Replicas still to be put down, as far as packing cares.
    rest: u32,
}

/// Compared in order; the greatest is the best seat.
pub(super) type Urgency = (bool, Reverse<(u32, bool)>, Reverse<usize>, (bool, i128), i64, Reverse<usize>);

/// Compared in order; the least is the first to go.
pub(super) type Worth = (u8, Reverse<(u32, bool)>, i128, bool, i64, Reverse<usize>);

impl Seat {
    pub fn new(
        open: bool,
        then: Then,
        cap: Option<u32>,
        group: (u32, bool),
        weight: u64,
        score: i64,
    ) -> Self {
        Self { open, then, cap, group, weight, score, ready: 0, stuck: 0, count: 0, share: 0, whole: 1 }
    }

    /// How far below its share the seat is, in units of its group's whole; negative above it.
    pub fn deficit(&self) -> i128 {
        self.share - i128::from(self.count) * self.whole
    }

    /// Whether the seat is further below its share than `other`, a deficit in the same group, by more than
    /// half a replica. Shares shift by fractions whenever a full site in the group gains or loses room; half
    /// a replica in either direction is more than such a shift, so nothing goes to and fro.
    pub fn clearly_below(&self, other: i128) -> bool {
        2 * (self.deficit() - other) > self.whole
    }

    pub fn room(&self) -> u32 {
        self.cap.map_or(u32::MAX, |cap| cap.saturating_sub(self.count))
    }
}

impl<'a> Board<'a> {
    pub fn new(seats: Vec<Seat>, required: Vec<Domains<'a>>, wished: Vec<Domains<'a>>, order: Order) -> Self {
        Self { seats, required, wished, order, rest: 0 }
    }

    pub fn total(&self) -> u32 {
        self.seats.iter().fold(0, |sum, seat| sum.saturating_add(seat.count))
    }

    pub fn put(&mut self, at: usize, replicas: u32) {
        self.seats[at].count += replicas;
        self.required.iter_mut().chain(&mut self.wished).for_each(|domains| domains.add(at, replicas));
    }

    pub fn take(&mut self, at: usize) {
        self.seats[at].count -= 1;
        self.required.iter_mut().chain(&mut self.wished).for_each(|domains| domains.remove(at));
    }

    /// How far the required spreads are from being met.
    pub fn excess(&self) -> u64 {
        self.required.iter().map(Domains::excess).sum()
    }

    /// Whether one more replica may be put here.
    pub fn allows(&self, at: usize) -> bool {
        let seat = &self.seats[at];
        seat.open && seat.room() > 0 && self.required.iter().all(|domains| domains.allows(at))
    }

    /// The best seat for one more replica among those that allow it and that `wanted` accepts.
    pub fn best(&self, wanted: impl Fn(usize, &Seat) -> bool) -> Option<usize> {
        let domains_wanted = self.required.iter().any(Domains::wants_more_domains);
        let mut best: Option<(Urgency, usize)> = None;
        for (at, seat) in self.seats.iter().enumerate() {
            // A later group can only win by opening a domain; not looking closer saves most of the time.
            let hopeless = best.as_ref().is_some_and(|(_, best)| seat.group > self.seats[*best].group);
            if (hopeless && !domains_wanted) || !self.allows(at) || !wanted(at, seat) {
                continue;
            }
            let urgency = self.urgency(at);
            if best.as_ref().is_none_or(|(best, _)| urgency > *best) {
                best = Some((urgency, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// Puts up to `replicas` down, best seat first; returns how many found one.
    pub fn fill(&mut self, replicas: u32) -> u32 {
        self.rest = replicas;
        if self.required.is_empty() && self.wished.is_empty() && self.order == Order::Shares {
            self.fill_by_shares();
        } else {
            let alone = self.required.is_empty() && self.wished.is_empty();
            while self.rest > 0 {
                let Some(at) = self.best(|_, _| true) else { break };
                let many = if alone { self.seats[at].room().min(self.rest) } else { 1 };
                self.put(at, many);
                self.rest -= many;
            }
        }
        replicas - self.rest
    }

    /// Without spreads a seat's urgency depends on that seat alone, so a heap finds the next one.
    fn fill_by_shares(&mut self) {
        let open = (0..self.seats.len()).filter(|at| self.allows(*at));
        let mut heap: BinaryHeap<_> = open.map(|at| (self.urgency(at), at)).collect();
        while self.rest > 0 {
            let Some((_, at)) = heap.pop() else { break };
            self.put(at, 1);
            self.rest -= 1;
            if self.allows(at) {
                heap.push((self.urgency(at), at));
            }
        }
    }

    pub fn urgency(&self, at: usize) -> Urgency {
        let seat = &self.seats[at];
        let opens_wanted = self.required.iter().any(|domains| domains.opens_wanted(at));
        let broken_wishes = self.wished.iter().filter(|domains| domains.disappoints(at)).count();
        let fit = match self.order {
            Order::Shares => (false, seat.deficit()),
            Order::Packed => {
                let (room, rest) = (i128::from(seat.room()), i128::from(self.rest));
                (seat.count > 0, if room >= rest { (1 << 40) - room } else { room })
            }
        };
        (opens_wanted, Reverse(seat.group), Reverse(broken_wishes), fit, seat.score, Reverse(at))
    }

    /// How dispensable a replica here is; the least is taken first when there are too many.
    pub fn worth(&self, at: usize) -> Worth {
        let seat = &self.seats[at];
        let class = match (seat.open, seat.then) {
            (true, _) => 2,
            (false, Then::Keep) => 1,
            (false, _) => 0,
        };
        let fit = match self.order {
            Order::Shares => seat.deficit(),
            Order::Packed => i128::from(seat.count),
        };
        (class, Reverse(seat.group), fit, seat.ready >= seat.count, seat.score, Reverse(at))
    }

    /// Takes one replica away, where it is missed least and the spreads suffer least.
    pub fn drop_one(&mut self) {
        let held: Vec<usize> = (0..self.seats.len()).filter(|at| self.seats[*at].count > 0).collect();
        let least = held.into_iter().min_by_key(|at| (self.without(*at, Self::excess), self.worth(*at)));
        if let Some(at) = least {
            self.take(at);
        }
    }

    /// Takes replicas away that are too many for the required spreads, where that helps.
    pub fn drop_overfull(&mut self) {
        let overfull = |board: &Self| board.required.iter().map(Domains::overfull).sum::<u64>();
        while overfull(self) > 0 {
            let held: Vec<usize> = (0..self.seats.len()).filter(|at| self.seats[*at].count > 0).collect();
            let rated = held.into_iter().map(|at| (self.without(at, overfull), self.worth(at), at));
            match rated.min() {
                Some((left, _, at)) if left < overfull(self) => self.take(at),
                _ => return,
            }
        }
    }

    /// A measure of the board if one replica were taken from here.
    fn without(&mut self, at: usize, measure: impl Fn(&Self) -> u64) -> u64 {
        if self.required.is_empty() {
            return 0;
        }
        self.take(at);
        let value = measure(self);
        self.put(at, 1);
        value
    }

    /// The domains of a place in all required spreads; places of one kind are alike to them.
    pub fn kind(&self, at: usize) -> Vec<Option<usize>> {
        self.required.iter().map(|domains| domains.domain(at)).collect()
    }

    /// The seat whose replica is missed least among those that `wanted` accepts.
    pub fn most_dispensable(&self, wanted: impl Fn(usize, &Seat) -> bool) -> Option<usize> {
        let held = (0..self.seats.len()).filter(|at| self.seats[*at].count > 0);
        held.filter(|at| wanted(*at, &self.seats[*at])).min_by_key(|at| self.worth(*at))
    }

    /// Works out what share of `replicas` every open seat should have: groups in order, each filled to
    /// what it can hold, within a group in proportion to weight; what a full seat cannot take goes to the
    /// others in the same proportion.
    pub fn set_shares(&mut self, replicas: u32) {
        let mut left = i128::from(replicas);
        for members in self.groups() {
            left -= self.share_out(&members, left);
        }
    }

    /// Works out the shares of what every group has now, leaving aside what a group could have.
    pub fn set_shares_within_groups(&mut self) {
        for members in self.groups() {
            let present = members.iter().map(|at| i128::from(self.seats[*at].count)).sum();
            self.share_out(&members, present);
        }
    }

    /// The open seats by group, groups in ascending order.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: BTreeMap<(u32, bool), Vec<usize>> = BTreeMap::new();
        for (at, seat) in self.seats.iter().enumerate().filter(|(_, seat)| seat.open) {
            groups.entry(seat.group).or_default().push(at);
        }
        groups.into_values().collect()
    }

    /// Shares `replicas` among the seats; returns how many they can hold of them.
    fn share_out(&mut self, members: &[usize], replicas: i128) -> i128 {
        let cap = |seat: &Seat| seat.cap.map(|cap| i128::from(cap.max(seat.count)));
        let mut full: Vec<usize> = Vec::new();
        let mut active: Vec<usize> = members.to_vec();
        let mut left = replicas;
        let mut whole;
        loop {
            whole = active.iter().map(|at| i128::from(self.seats[*at].weight)).sum::<i128>();
            let over = |at: &usize| {
                let seat = &self.seats[*at];
                cap(seat).is_some_and(|cap| left * i128::from(seat.weight) > cap * whole)
            };
            let (newly_full, rest): (Vec<usize>, Vec<usize>) = active.iter().partition(|at| over(at));
            if newly_full.is_empty() {
                break;
            }
            left -= newly_full.iter().filter_map(|at| cap(&self.seats[*at])).sum::<i128>();
            full.extend(newly_full);
            active = rest;
        }
        let scale = whole.max(1);
        for at in &active {
            self.seats[*at].share = left * i128::from(self.seats[*at].weight);
            self.seats[*at].whole = scale;
        }
        for at in &full {
            self.seats[*at].share = cap(&self.seats[*at]).unwrap_or(0) * scale;
            self.seats[*at].whole = scale;
        }
        if active.is_empty() || whole == 0 { replicas - left } else { replicas }
    }
}
