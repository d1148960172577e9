//! From sites, rule and request to a decision: the pipeline put together.

use super::board::{Board, Order, Seat};
use super::decision::{Decision, Explanation, Reason};
use super::filters::{Ask, Place, Refusal, Then, filters, weight_of};
use super::moves::{Moves, Wishes};
use super::scores::scores;
use super::spread::Domains;
use super::types::{Capacity, Divide, Held, Mode, Request, Rule, SiteView};
use crate::pipeline;

/// Decides where the replicas of one workload go. Depends on nothing but its arguments, and not on the
/// order of sites or of held places.
///
/// # Guarantees
/// - What may stay stays: asked again with its own answer as the present state, it moves nothing.
/// - A place never gets more than fits there (as far as that is known); what a place already has it may keep.
/// - No replica is at a place that the rule forbids. A required spread is never made worse.
/// - No replica is dropped for the sake of a move: without another place it stays where it is.
/// - Every part of every site is explained exactly once.
pub fn place(sites: &[SiteView], rule: &Rule, request: &Request) -> Decision {
    let ask = Ask { rule, request };
    let places = all_places(sites, request);
    let survey = pipeline::survey(&ask, places.iter().copied(), &filters(), &scores());

    let mut refusals: Vec<Option<Refusal>> = places.iter().map(|_| None).collect();
    let mut score = vec![0; places.len()];
    survey.feasible.iter().for_each(|scored| score[scored.candidate.at] = scored.score);
    survey.refused.into_iter().for_each(|(place, refusal)| refusals[place.at] = Some(refusal));

    let mut board = set_up(&ask, &places, &refusals, &score);
    let spare = rule.come_back.spare(request.replicas);
    let budget = rule.failover.max_moves.map_or(u32::MAX, |max| max.saturating_sub(request.moving));
    let mut moves = Moves { budget, moved: 0, waiting: 0 };
    let wishes = Wishes { may_return: request.may_return, spare, follow_shares: rule.weights().is_some() };

    let outcome = if ask.duplicates() {
        duplicate(&mut board, &mut moves);
        replicas_of_copies(&ask, &places, &board)
    } else {
        divide(&ask, &mut board, &mut moves, &wishes);
        let replicas: Vec<u32> = board.seats.iter().map(|seat| seat.count).collect();
        Outcome {
            unplaced: request.replicas.saturating_sub(board.total()),
            wanted: request.replicas,
            replicas,
        }
    };
    let explained = explain(&ask, sites, &places, refusals, &board, &outcome);
    Decision {
        sites: explained,
        wanted: outcome.wanted,
        unplaced: outcome.unplaced,
        moved: moves.moved,
        waiting: moves.waiting,
        notes: board.required.iter().chain(&board.wished).flat_map(Domains::notes).collect(),
    }
}

/// The numbers of a decision.
struct Outcome {
    replicas: Vec<u32>,
    wanted: u32,
    unplaced: u32,
}

/// All parts of all sites, ordered by (site, part), with what each holds.
fn all_places<'a>(sites: &'a [SiteView], request: &'a Request) -> Vec<Place<'a>> {
    let mut places: Vec<Place> = (sites.iter())
        .flat_map(|site| site.parts.iter().map(move |part| (site, part)))
        .map(|(site, part)| Place { site, part, held: None, fits: part.capacity.fits(&request.each), at: 0 })
        .collect();
    places.sort_by_key(Place::name);
    places.iter_mut().enumerate().for_each(|(at, place)| place.at = at);
    for held in &request.held {
        if let Some(at) = find(&places, held) {
            places[at].held = Some(held);
        }
    }
    places
}

fn find(places: &[Place], held: &Held) -> Option<usize> {
    places.binary_search_by_key(&(held.site.as_str(), held.part.as_str()), Place::name).ok()
}

fn set_up<'a>(ask: &Ask<'a>, places: &[Place<'a>], refusals: &[Option<Refusal>], score: &[i64]) -> Board<'a> {
    let open: Vec<bool> = refusals.iter().map(Option::is_none).collect();
    let seats = (places.iter().zip(refusals)).map(|(place, refusal)| {
        let then = refusal.as_ref().map_or(Then::Keep, |refusal| refusal.then);
        seat(ask, place, refusal.is_none(), then, score[place.at])
    });
    let seats = seats.collect();
    let domains = |required: bool| {
        let wanted = ask.rule.spread.iter().filter(|spread| spread.required == required);
        wanted.map(|spread| Domains::new(spread, places, &open)).collect()
    };
    let order = match ask.rule.mode {
        Mode::Divide(Divide::Packed) => Order::Packed,
        // Copies have no shares: all are equally far from none.
        Mode::Divide(_) | Mode::Duplicate => Order::Shares,
    };
    let mut board = Board::new(seats, domains(true), domains(false), order);
    for place in places {
        let evicted = refusals[place.at].as_ref().is_some_and(|refusal| refusal.then == Then::Evict);
        let Some(held) = place.held.filter(|_| !evicted) else { continue };
        board.put(place.at, if ask.duplicates() { 1 } else { held.assigned });
        board.seats[place.at].ready = held.ready;
        board.seats[place.at].stuck = if ask.pinned() || ask.duplicates() { 0 } else { held.stuck };
    }
    board
}

fn seat(ask: &Ask, place: &Place, open: bool, then: Then, score: i64) -> Seat {
    let (site, part) = (place.site, place.part);
    let cap = cap_of(place);
    let rank = rank_of(ask.rule, place);
    let weight = match &ask.rule.mode {
        Mode::Divide(Divide::Weights(weights)) => u64::from(weight_of(weights, site, part)),
        Mode::Divide(Divide::FreeCapacity) => cap.map_or(1, u64::from),
        _ => 1,
    };
    let unknown = part.capacity == Capacity::Unknown && ask.rule.weights().is_none();
    let cap = if ask.duplicates() { Some(cap.unwrap_or(1).min(1)) } else { cap };
    // A place for a copy that holds only some of its replicas comes after those that hold all.
    let partial = ask.duplicates() && cap_of(place).is_some_and(|cap| cap < ask.request.replicas);
    Seat::new(open, then, cap, (rank, unknown || partial), weight, score)
}

/// How many replicas the place can hold, those it has included.
fn cap_of(place: &Place) -> Option<u32> {
    let Some(held) = place.held else { return place.fits };
    if held.stuck > 0 {
        // The site knows better than its numbers.
        return Some(held.assigned.saturating_sub(held.stuck));
    }
    place.fits.map(|fits| fits.saturating_add(held.counted.min(held.assigned)))
}

fn rank_of(rule: &Rule, place: &Place) -> u32 {
    let first = rule.prefer.iter().position(|selector| selector.matches(place.site, place.part));
    first.unwrap_or(rule.prefer.len()) as u32
}

fn divide(ask: &Ask, board: &mut Board, moves: &mut Moves, wishes: &Wishes) {
    let wanted = ask.request.replicas;
    let kept: u32 = (board.seats.iter()).filter(|s| !s.open && s.then == Then::Keep).map(|s| s.count).sum();
    board.set_shares(wanted.saturating_sub(kept));
    while board.total() > wanted {
        board.drop_one();
    }
    board.fill(wanted - board.total());
    moves.leave(board);
    if !ask.pinned() {
        moves.repair(board);
    }
    // A domain that was left or evened out may admit what had no place before.
    board.fill(wanted - board.total());
    if !ask.pinned() {
        moves.improve(board, wishes);
    }
}

/// Copies instead of replicas: every open place may have one, and gets it unless a spread forbids.
fn duplicate(board: &mut Board, moves: &mut Moves) {
    board.drop_overfull();
    board.fill(u32::MAX);
    moves.leave(board);
    // A copy without another place stays; there is nothing to wait for.
    moves.waiting = 0;
}

fn replicas_of_copies(ask: &Ask, places: &[Place], board: &Board) -> Outcome {
    let each = ask.request.replicas;
    let mut outcome = Outcome { replicas: vec![0; places.len()], wanted: 0, unplaced: 0 };
    for place in places.iter().filter(|place| board.seats[place.at].count > 0) {
        let has = place.held.map_or(0, |held| held.assigned);
        let most = if board.seats[place.at].open { cap_of(place).unwrap_or(each).max(has) } else { has };
        let replicas = most.min(each);
        outcome.replicas[place.at] = replicas;
        outcome.wanted = outcome.wanted.saturating_add(each);
        outcome.unplaced = outcome.unplaced.saturating_add(each - replicas);
    }
    if outcome.wanted == 0 {
        (outcome.wanted, outcome.unplaced) = (each, each);
    }
    outcome
}

fn explain(
    ask: &Ask,
    sites: &[SiteView],
    places: &[Place],
    refusals: Vec<Option<Refusal>>,
    board: &Board,
    outcome: &Outcome,
) -> Vec<Explanation> {
    let used = board.seats.iter().filter(|seat| seat.open && seat.count > 0);
    let last_rank = used.map(|seat| seat.group.0).max().unwrap_or(u32::MAX);
    let mut explained: Vec<Explanation> = (places.iter().zip(refusals))
        .map(|(place, refusal)| {
            let (seat, open) = (&board.seats[place.at], refusal.is_none());
            let (chosen, replicas) = (is_chosen(ask, place, seat), outcome.replicas[place.at]);
            Explanation {
                site: place.site.name.clone(),
                part: place.part.name.clone(),
                chosen,
                replicas,
                before: place.held.map_or(0, |held| held.assigned),
                fits: cap_of(place),
                preference: open.then_some(seat.group.0),
                score: (seat.score / 100) as u32,
                reason: match refusal {
                    Some(refusal) => refusal.reason,
                    None => open_reason(ask, place, board, chosen, replicas, last_rank),
                },
            }
        })
        .collect();
    let without = without_place(ask, sites, places);
    if !without.is_empty() {
        explained.extend(without);
        explained.sort_by(|a, b| (&a.site, &a.part).cmp(&(&b.site, &b.part)));
    }
    explained
}

/// A workload scaled to nothing stays where it was: scaling is not removing.
fn is_chosen(ask: &Ask, place: &Place, seat: &Seat) -> bool {
    let rests_here =
        ask.request.replicas == 0 && place.held.is_some() && (seat.open || seat.then == Then::Keep);
    seat.count > 0 || rests_here
}

fn open_reason(
    ask: &Ask,
    place: &Place,
    board: &Board,
    chosen: bool,
    replicas: u32,
    last_rank: u32,
) -> Reason {
    let seat = &board.seats[place.at];
    let full = cap_of(place).is_some_and(|cap| replicas >= cap);
    match (chosen, full) {
        (true, true) => Reason::ChosenFull,
        (true, false) => Reason::Chosen,
        (false, true) if place.part.capacity.is_without_nodes() => Reason::NoNode,
        (false, true) => {
            let (short, nodes) = place.part.capacity.lacks(&ask.request.each);
            Reason::Full { short, nodes }
        }
        (false, false) => {
            let objection = board.required.iter().find_map(|domains| domains.objection(place.at));
            let less_preferred = seat.group.0 > last_rank;
            objection.unwrap_or(if less_preferred { Reason::LessPreferred } else { Reason::NotNeeded })
        }
    }
}

/// Sites that offer no part, and held places that are no more.
fn without_place<'a>(ask: &Ask<'a>, sites: &'a [SiteView], places: &[Place<'a>]) -> Vec<Explanation> {
    let nothing = |site: &str, part: &str, before, reason| Explanation {
        site: site.to_owned(),
        part: part.to_owned(),
        chosen: false,
        replicas: 0,
        before,
        fits: None,
        preference: None,
        score: 0,
        reason,
    };
    let gone = (ask.request.held.iter())
        .filter(|held| held.assigned > 0 && find(places, held).is_none())
        .map(|held| nothing(&held.site, &held.part, held.assigned, Reason::Gone));
    let mut found: Vec<Explanation> = gone.collect();
    for site in sites.iter().filter(|site| site.parts.is_empty()) {
        match found.iter_mut().find(|explanation| explanation.site == site.name) {
            Some(explanation) => explanation.reason = Reason::NoParts,
            None => found.push(nothing(&site.name, "", 0, Reason::NoParts)),
        }
    }
    found
}
