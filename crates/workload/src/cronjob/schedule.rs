//! Cron schedules: five fields, names, steps, ranges, `@every` and the other short forms.

use jiff::{Timestamp, ToSpan, civil, tz::TimeZone};

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ScheduleError {
    #[error(
        "schedule {0:?} must have five fields, or be one of @yearly, @monthly, @weekly, @daily, @hourly, @every DURATION"
    )]
    Fields(String),
    #[error("schedule field {0:?} is not understood")]
    Field(String),
    #[error("unknown time zone {0:?}")]
    TimeZone(String),
}

/// When a cron job runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    Every(jiff::SignedDuration),
    At(Box<Fields>),
}

/// Allowed values per field, as bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// When both day fields are restricted, either one suffices.
    either_day: bool,
    zone: TimeZone,
}

impl Schedule {
    /// Parses a schedule; `zone` is the name of a time zone, UTC when absent.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, ScheduleError> {
        let (text, zone) = match text
            .strip_prefix("TZ=")
            .or(text.strip_prefix("CRON_TZ="))
            .and_then(|t| t.split_once(' '))
        {
            Some((name, rest)) => (rest, Some(name)),
            None => (text, zone),
        };
        let zone = match zone {
            Some(name) => TimeZone::get(name).map_err(|_| ScheduleError::TimeZone(name.to_owned()))?,
            None => TimeZone::UTC,
        };
        let text = text.trim();
        if let Some(every) = text.strip_prefix("@every ") {
            let duration = duration(every).ok_or_else(|| ScheduleError::Field(every.to_owned()))?;
            return Ok(Self::Every(duration));
        }
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts.as_slice() else {
            return Err(ScheduleError::Fields(text.to_owned()));
        };
        const MONTHS: [&str; 12] =
            ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
        const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
        let mut weekdays = field(weekday, 0, 7, &DAYS, 0)?;
        if weekdays & (1 << 7) != 0 {
            weekdays = (weekdays | 1) & 0x7f;
        }
        let free = |text: &str| text.starts_with('*') || text.starts_with('?');
        Ok(Self::At(Box::new(Fields {
            minutes: field(minute, 0, 59, &[], 0)?,
            hours: field(hour, 0, 23, &[], 0)?,
            days: field(day, 1, 31, &[], 0)?,
            months: field(month, 1, 12, &MONTHS, 1)?,
            weekdays,
            either_day: !free(day) && !free(weekday),
            zone,
        })))
    }

    /// The first time after `after`; `None` when there is none within five years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(duration) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                whole.checked_add(*duration).ok()
            }
            Self::At(fields) => fields.next(after),
        }
    }

    /// The latest time in `(after, until]`, and how many there were (counting stops at a hundred).
    pub fn latest(&self, after: Timestamp, until: Timestamp) -> (Option<Timestamp>, usize) {
        let mut latest = None;
        let mut missed = 0;
        let mut at = after;
        while let Some(next) = self.next(at).filter(|next| *next <= until) {
            latest = Some(next);
            missed += 1;
            at = next;
            if missed > 100 {
                // Far behind: jump close to the end instead of walking there.
                let close = until.checked_sub(1.hours()).unwrap_or(until);
                if close > at && self.next(close).is_some_and(|next| next <= until) {
                    at = close;
                }
                if missed > 5000 {
                    break;
                }
            }
        }
        (latest, missed)
    }
}

impl Fields {
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let start = after.to_zoned(self.zone.clone());
        let mut time = start
            .datetime()
            .with()
            .second(0)
            .subsec_nanosecond(0)
            .build()
            .ok()?
            .checked_add(1.minute())
            .ok()?;
        let limit = time.checked_add(5.years()).ok()?;
        while time < limit {
            if self.months & (1 << time.month()) == 0 {
                time = time
                    .first_of_month()
                    .with()
                    .hour(0)
                    .minute(0)
                    .build()
                    .ok()?
                    .checked_add(1.month())
                    .ok()?;
            } else if !self.day_fits(time.date()) {
                time = time.with().hour(0).minute(0).build().ok()?.checked_add(1.day()).ok()?;
            } else if self.hours & (1 << time.hour()) == 0 {
                time = time.with().minute(0).build().ok()?.checked_add(1.hour()).ok()?;
            } else if self.minutes & (1 << time.minute()) == 0 {
                time = time.checked_add(1.minute()).ok()?;
            } else {
                let found = time.to_zoned(self.zone.clone()).ok()?.timestamp();
                // A clock set back shows the same time twice: the first one counted.
                if found > after {
                    return Some(found);
                }
                time = time.checked_add(1.minute()).ok()?;
            }
        }
        None
    }

    fn day_fits(&self, date: civil::Date) -> bool {
        let day = self.days & (1 << date.day()) != 0;
        let weekday = self.weekdays & (1 << date.weekday().to_sunday_zero_offset()) != 0;
        if self.either_day { day || weekday } else { day && weekday }
    }
}

fn field(text: &str, low: u32, high: u32, names: &[&str], first_name: u32) -> Result<u64, ScheduleError> {
    let wrong = || ScheduleError::Field(text.to_owned());
    let value = |text: &str| -> Option<u32> {
        let lower = text.to_ascii_lowercase();
        match names.iter().position(|name| *name == lower) {
            Some(at) => Some(u32::try_from(at).ok()? + first_name),
            None => text.parse().ok(),
        }
    };
    let mut bits = 0u64;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                (range, step.parse::<u32>().ok().filter(|step| *step > 0).ok_or_else(wrong)?)
            }
            None => (part, 1),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (low, high.min(if high == 7 { 6 } else { high })),
            Some((from, to)) => (value(from).ok_or_else(wrong)?, value(to).ok_or_else(wrong)?),
            None => {
                let from = value(range).ok_or_else(wrong)?;
                (from, if part.contains('/') { high } else { from })
            }
        };
        if from < low || to > high || from > to {
            return Err(wrong());
        }
        for at in (from..=to).step_by(step as usize) {
            bits |= 1 << at;
        }
    }
    Ok(bits)
}

/// `1h30m`, `90s`: at least a second.
fn duration(text: &str) -> Option<jiff::SignedDuration> {
    let mut seconds = 0i64;
    let mut number = String::new();
    for letter in text.trim().chars() {
        match letter {
            '0'..='9' => number.push(letter),
            'h' | 'm' | 's' => {
                let unit = match letter {
                    'h' => 3600,
                    'm' => 60,
                    _ => 1,
                };
                seconds += number.parse::<i64>().ok()? * unit;
                number.clear();
            }
            _ => return None,
        }
    }
    (number.is_empty() && seconds > 0).then(|| jiff::SignedDuration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let after: Timestamp = after.parse().unwrap();
        Schedule::parse(schedule, None).unwrap().next(after).unwrap().to_string()
    }

    #[test]
    fn fields_steps_ranges_and_names_are_understood() {
        assert_eq!(next("*/15 * * * *", "2026-01-01T00:07:30Z"), "2026-01-01T00:15:00Z");
        assert_eq!(next("0 9-17/4 * * mon-fri", "2026-01-02T17:30:00Z"), "2026-01-05T09:00:00Z");
        assert_eq!(next("0 0 29 2 *", "2026-01-01T00:00:00Z"), "2028-02-29T00:00:00Z");
        assert_eq!(next("0 0 * JAN 7", "2026-01-01T00:00:00Z"), "2026-01-04T00:00:00Z");
        assert_eq!(next("@hourly", "2026-01-01T00:00:00Z"), "2026-01-01T01:00:00Z");
        assert_eq!(next("@every 1m30s", "2026-01-01T00:00:00Z"), "2026-01-01T00:01:30Z");
    }

    #[test]
    fn two_day_fields_mean_either() {
        assert_eq!(next("0 0 13 * 5", "2026-01-01T00:00:00Z"), "2026-01-02T00:00:00Z");
    }

    #[test]
    fn a_time_that_never_comes_is_none_and_nonsense_is_an_error() {
        let never = Schedule::parse("0 0 31 2 *", None).unwrap();
        assert_eq!(never.next(Timestamp::UNIX_EPOCH), None);
        assert!(Schedule::parse("* * *", None).is_err());
        assert!(Schedule::parse("61 * * * *", None).is_err());
        assert!(Schedule::parse("* * * * *", Some("Nowhere/Land")).is_err());
    }

    #[test]
    fn the_latest_of_many_missed_times_is_found() {
        let schedule = Schedule::parse("* * * * *", None).unwrap();
        let until: Timestamp = "2026-01-02T00:00:30Z".parse().unwrap();
        let (latest, missed) = schedule.latest("2026-01-01T00:00:00Z".parse().unwrap(), until);
        assert_eq!(latest.unwrap().to_string(), "2026-01-02T00:00:00Z");
        assert!(missed > 100);
    }
}
