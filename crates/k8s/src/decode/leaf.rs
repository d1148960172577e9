//! Types that have a JSON form of their own: times, quantities, int-or-string, bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Number, Value};

use crate::quantity;

const RFC3339: &str = "2006-01-02T15:04:05Z07:00";
const RFC3339_MICRO: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Seconds precision, UTC; the zero time is null.
pub fn time(text: &str) -> Result<Value, String> {
    let at = parse(text, RFC3339)?;
    Ok(write_time(at))
}

/// Microseconds, exactly six digits, UTC; the zero time is null.
pub fn micro_time(text: &str) -> Result<Value, String> {
    let fraction = text.get(19..).and_then(|rest| rest.strip_prefix('.'));
    let fraction = fraction.map_or(0, |digits| digits.bytes().take_while(u8::is_ascii_digit).count());
    let at = parse(text, RFC3339_MICRO)?;
    if fraction != 6 {
        let rest = text.get(19..).unwrap_or_default();
        let (rest, wanted) =
            if fraction > 6 { (rest.get(7..).unwrap_or_default(), "Z07:00") } else { (rest, ".000000") };
        return Err(cannot_parse(text, RFC3339_MICRO, rest, wanted));
    }
    Ok(write_micro_time(at))
}

pub fn write_time(at: Timestamp) -> Value {
    if at.as_second() == ZERO_SECOND {
        return Value::Null;
    }
    Value::String(at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

pub fn write_micro_time(at: Timestamp) -> Value {
    if at.as_second() == ZERO_SECOND && at.subsec_nanosecond() == 0 {
        return Value::Null;
    }
    Value::String(at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string())
}

/// 0001-01-01T00:00:00Z, Go's zero time.
pub const ZERO_SECOND: i64 = -62_135_596_800;

fn parse(text: &str, layout: &str) -> Result<Timestamp, String> {
    let bytes = text.as_bytes();
    // What jiff accepts beyond RFC 3339 as Go reads it: other separators, lower case, no zone.
    let shaped = bytes.len() >= 20
        && bytes[4] == b'-'
        && bytes[7] == b'-'
        && bytes[10] == b'T'
        && bytes[13] == b':'
        && bytes[16] == b':'
        && (bytes.ends_with(b"Z") || bytes[bytes.len() - 3] == b':');
    match text.parse() {
        Ok(at) if shaped => Ok(at),
        _ => Err(cannot_parse(text, layout, text, "2006")),
    }
}

fn cannot_parse(text: &str, layout: &str, rest: &str, wanted: &str) -> String {
    format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {wanted:?}")
}

/// Go writes a whole number without a fraction.
pub fn float(value: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

pub fn quantity(text: &str) -> Result<Value, String> {
    match quantity::canonical(text) {
        Ok(canonical) => Ok(Value::String(canonical.into_owned())),
        Err(e) => Err(e.to_string()),
    }
}

/// Accepts line breaks as Go does, and writes none.
pub fn bytes(text: String) -> Result<Value, String> {
    let clean = if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], "") } else { text };
    match STANDARD.decode(&clean) {
        Ok(_) => Ok(Value::String(clean)),
        Err(e) => {
            let at = match e {
                base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                _ => clean.len() / 4 * 4,
            };
            Err(format!("illegal base64 data at input byte {at}"))
        }
    }
}
