//! Replicas that change places: because they must, because the spread asks for it, because it is nicer.
//!
//! Every move takes one replica up and puts it down elsewhere, so none is ever lost; a replica without an
//! elsewhere stays where it is.

use std::cmp::Reverse;
use std::collections::HashSet;

use super::board::{Board, Seat};
use super::filters::Then;

/// Bounds on what may be moved.
pub(super) struct Moves {
    /// How many more moves may be started.
    pub budget: u32,
    pub moved: u32,
    /// Should move, but no move or no room was left.
    pub waiting: u32,
}

/// What the rule says about moves that are merely nicer.
pub(super) struct Wishes {
    pub may_return: bool,
    /// Room a seat must have left after such a move.
    pub spare: u32,
    /// Shares are to be followed, not only used for what is placed anew.
    pub follow_shares: bool,
}

impl Moves {
    fn shift(&mut self, board: &mut Board, from: usize, to: usize) {
        board.take(from);
        board.put(to, 1);
        self.budget -= 1;
        self.moved += 1;
    }

    /// Moves what is at places that are to be left, and what sites say they cannot run.
    pub fn leave(&mut self, board: &mut Board) {
        for at in 0..board.seats.len() {
            let seat = &board.seats[at];
            let mut leaving = match (seat.open, seat.then) {
                (false, Then::Leave) => seat.count,
                (true, _) => seat.stuck.min(seat.count),
                _ => 0,
            };
            while leaving > 0 && self.budget > 0 {
                // Taken up first: the replica itself must not count against where it may go.
                board.take(at);
                let target = board.best(|other, _| other != at);
                board.put(at, 1);
                let Some(target) = target else { break };
                self.shift(board, at, target);
                leaving -= 1;
            }
            self.waiting += leaving;
        }
    }

    /// Moves replicas until the required spreads hold, or no single move helps any more.
    pub fn repair(&mut self, board: &mut Board) {
        while board.excess() > 0 {
            let Some((from, to)) = find_repair(board) else { return };
            if self.budget == 0 {
                self.waiting += 1;
                return;
            }
            self.shift(board, from, to);
        }
    }

    /// Brings replicas back to more preferred places and, if asked, closer to their shares. Ends: every
    /// such move goes up in preference, or lessens the sum of squared distances from the shares.
    pub fn improve(&mut self, board: &mut Board, wishes: &Wishes) {
        if !wishes.may_return {
            return;
        }
        let mut settled = vec![false; board.seats.len()];
        // From here on a group keeps to itself: what a preferred group could hold, but does not, must not
        // make the others shuffle.
        board.set_shares_within_groups();
        let mut goals = Goals::of(board, wishes);
        loop {
            let worth_trying = |at: usize, seat: &Seat| !settled[at] && goals.might_help(seat, wishes);
            let Some(from) = board.most_dispensable(worth_trying) else { return };
            match better_place(board, from, wishes) {
                None => settled[from] = true,
                Some(_) if self.budget == 0 => {
                    self.waiting += 1;
                    return;
                }
                Some(to) => {
                    self.shift(board, from, to);
                    settled.fill(false);
                    board.set_shares_within_groups();
                    goals = Goals::of(board, wishes);
                }
            }
        }
    }
}

/// The best that any seat has to offer: a cheap test that spares most seats the search for a better place.
struct Goals {
    rank: u32,
    deficit: i128,
}

impl Goals {
    fn of(board: &Board, wishes: &Wishes) -> Self {
        let offering = || board.seats.iter().filter(|seat| seat.open && seat.room() > wishes.spare);
        Self {
            rank: offering().map(|seat| seat.group.0).min().unwrap_or(u32::MAX),
            deficit: offering().map(Seat::deficit).max().unwrap_or(i128::MIN),
        }
    }

    fn might_help(&self, seat: &Seat, wishes: &Wishes) -> bool {
        let preferred = self.rank < seat.group.0;
        let fairer = wishes.follow_shares && self.deficit > 0 && seat.deficit() < 0;
        seat.open && (preferred || fairer)
    }
}

fn better_place(board: &mut Board, from: usize, wishes: &Wishes) -> Option<usize> {
    let before = board.excess();
    board.take(from);
    let group = board.seats[from].group;
    let deficit = board.seats[from].deficit();
    let to = board.best(|_, seat| {
        let fairer = wishes.follow_shares && seat.group == group && seat.clearly_below(deficit);
        let preferred = seat.group.0 < group.0;
        (fairer || preferred) && seat.room() > wishes.spare
    });
    let fine = to.is_some_and(|to| {
        board.put(to, 1);
        let fine = board.excess() <= before;
        board.take(to);
        fine
    });
    board.put(from, 1);
    to.filter(|_| fine)
}

/// A single move that brings the required spreads closer to being met. Places in the same domains are
/// alike here, so one source and one target of each kind are tried.
fn find_repair(board: &mut Board) -> Option<(usize, usize)> {
    let before = board.excess();
    let movable = |seat: &Seat| seat.count > 0 && (seat.open || seat.then == Then::Leave);
    let mut sources: Vec<usize> = (0..board.seats.len()).filter(|at| movable(&board.seats[*at])).collect();
    sources.sort_by_key(|at| board.worth(*at));
    for from in first_of_each_kind(board, &sources) {
        board.take(from);
        let kind = board.kind(from);
        let mut targets: Vec<usize> =
            (0..board.seats.len()).filter(|at| board.allows(*at) && board.kind(*at) != kind).collect();
        targets.sort_by_key(|at| Reverse(board.urgency(*at)));
        let target = first_of_each_kind(board, &targets).into_iter().find(|to| {
            board.put(*to, 1);
            let helps = board.excess() < before;
            board.take(*to);
            helps
        });
        board.put(from, 1);
        if let Some(to) = target {
            return Some((from, to));
        }
    }
    None
}

fn first_of_each_kind(board: &Board, places: &[usize]) -> Vec<usize> {
    let mut seen = HashSet::new();
    places.iter().copied().filter(|at| seen.insert(board.kind(*at))).collect()
}
