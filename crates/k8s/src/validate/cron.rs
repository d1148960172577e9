//! Cron schedules: five fields, or a descriptor such as `@daily`.

struct Field {
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { low: 0, high: 59, names: &[] },
    Field { low: 0, high: 23, names: &[] },
    Field { low: 1, high: 31, names: &[] },
    Field {
        low: 1,
        high: 12,
        names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    },
    Field { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] },
];

/// Whether a schedule can be understood; the error is upstream's.
pub(super) fn check(schedule: &str) -> Result<(), String> {
    if schedule.is_empty() {
        return Err("empty spec string".into());
    }
    let mut spec = schedule;
    if spec.starts_with("TZ=") || spec.starts_with("CRON_TZ=") {
        let (zone, rest) =
            spec.split_once(' ').ok_or_else(|| format!("provided bad location {spec}: unknown"))?;
        let zone = zone.split_once('=').map_or("", |(_, z)| z);
        if jiff::tz::TimeZone::get(zone).is_err() {
            return Err(format!("provided bad location {zone}: unknown time zone {zone}"));
        }
        spec = rest.trim();
    }
    if spec.starts_with('@') {
        return descriptor(spec);
    }
    let fields: Vec<&str> = spec.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    fields
        .iter()
        .zip(&FIELDS)
        .try_for_each(|(text, field)| text.split(',').try_for_each(|part| range(part, field)))
}

fn descriptor(text: &str) -> Result<(), String> {
    match text {
        "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly" => Ok(()),
        _ => match text.strip_prefix("@every ") {
            Some(duration) if is_go_duration(duration) => Ok(()),
            Some(duration) => {
                Err(format!("failed to parse duration {text}: time: invalid duration {duration:?}"))
            }
            None => Err(format!("unrecognized descriptor: {text}")),
        },
    }
}

fn is_go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|c| c.is_ascii_digit() || *c == b'.').count();
        if digits == 0 {
            return false;
        }
        rest = &rest[digits..];
        let Some(unit) = ["ns", "us", "µs", "ms", "h", "m", "s"].iter().find(|u| rest.starts_with(**u))
        else {
            return false;
        };
        rest = &rest[unit.len()..];
    }
    true
}

fn range(text: &str, field: &Field) -> Result<(), String> {
    let parts: Vec<&str> = text.split('/').collect();
    let bounds: Vec<&str> = parts[0].split('-').collect();
    let single = bounds.len() == 1;
    let (start, mut end) = if matches!(bounds[0], "*" | "?") {
        (field.low, field.high)
    } else {
        let start = number_or_name(bounds[0], field)?;
        let end = match bounds.len() {
            1 => start,
            2 => number_or_name(bounds[1], field)?,
            _ => return Err(format!("too many hyphens: {text}")),
        };
        (start, end)
    };
    let step = match parts.len() {
        1 => 1,
        2 => {
            let step = number(parts[1])?;
            if single {
                end = field.high;
            }
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < field.low {
        return Err(format!("beginning of range ({start}) below minimum ({}): {text}", field.low));
    }
    if end > field.high {
        return Err(format!("end of range ({end}) above maximum ({}): {text}", field.high));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(())
}

fn number_or_name(text: &str, field: &Field) -> Result<u32, String> {
    let lower = text.to_lowercase();
    match field.names.iter().position(|n| *n == lower) {
        Some(at) => Ok(at as u32 + field.low),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let parsed: i64 = text.parse().map_err(|_| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
    })?;
    u32::try_from(parsed).map_err(|_| format!("negative number ({parsed}) not allowed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn schedules_are_five_fields_or_a_descriptor() {
        for good in ["*/5 * * * *", "0 0 1 jan mon-fri", "1,2,3 0-5/2 ? * 0", "@daily", "@every 1h30m"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        assert_eq!(check("* * *").unwrap_err(), "expected exactly 5 fields, found 3: [* * *]");
        assert_eq!(check("60 * * * *").unwrap_err(), "end of range (60) above maximum (59): 60");
        assert_eq!(check("* * 0 * *").unwrap_err(), "beginning of range (0) below minimum (1): 0");
        assert_eq!(check("@never").unwrap_err(), "unrecognized descriptor: @never");
        assert!(check("x * * * *").unwrap_err().starts_with("failed to parse int from x"));
    }
}
