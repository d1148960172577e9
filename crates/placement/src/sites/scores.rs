//! Which of several possible places is best, where nothing stronger decides.

use super::filters::{Ask, Place};
use crate::pipeline::{Scale, Score};
use crate::{Effect, untolerated};

type PlaceScore<'a> = Score<Ask<'a>, Place<'a>>;

pub(super) fn scores<'a>() -> [PlaceScore<'a>; 3] {
    [
        Score { weight: 3, raw: unwanted_taints, scale: Scale::Low },
        Score { weight: 2, raw: distance, scale: Scale::Low },
        Score { weight: 1, raw: room, scale: Scale::High },
    ]
}

fn unwanted_taints(ask: &Ask, place: &Place) -> i64 {
    let unwanted = |taint| {
        let one = std::slice::from_ref(taint);
        untolerated(one, &ask.rule.tolerations, &[Effect::PreferNoSchedule]).is_some()
    };
    place.site.taints.iter().filter(|taint| unwanted(taint)).count() as i64
}

/// From the point that the limit names, if it names one.
fn distance(ask: &Ask, place: &Place) -> i64 {
    let Some(within) = ask.rule.limits.within else { return 0 };
    place.part.locality.point.map_or(0, |point| point.km_to(&within.point) as i64)
}

fn room(_: &Ask, place: &Place) -> i64 {
    place.fits.map_or(0, i64::from)
}
