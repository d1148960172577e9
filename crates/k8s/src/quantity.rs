//! Kubernetes quantities: `100m`, `1.5Gi`, `12e6`.
//!
//! A quantity is kept in billionths as an `i128`, which is exact for every value up to about 10^29; larger ones
//! saturate.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;
use thiserror::Error;

/// How a quantity is written; it does not affect its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    DecimalExponent,
    BinarySi,
    DecimalSi,
}

#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

const NANO: i128 = 1_000_000_000;
/// Binary quantities are capped at the largest 64-bit integer.
const BINARY_MAX: i128 = i64::MAX as i128 * NANO;
/// Up to this many digits a decimal that is already canonical keeps its text.
const FAST_DIGITS: usize = 18;

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };

    pub fn new(value: i64) -> Self {
        Self { nanos: value as i128 * NANO, format: Format::DecimalSi }
    }

    pub fn milli(value: i64) -> Self {
        Self { nanos: value as i128 * 1_000_000, format: Format::DecimalSi }
    }

    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let parts = Parts::split(text)?;
        let (base, exponent, format) = suffix(parts.suffix)?;
        parts.value(base, exponent, format)
    }

    /// From JSON, where a bare number is accepted too.
    pub fn from_value(value: &Value) -> Result<Self, QuantityError> {
        match value {
            Value::String(s) => Self::parse(s.trim()),
            Value::Number(n) => Self::parse(&n.to_string()),
            Value::Null => Ok(Self::ZERO),
            _ => Err(QuantityError::Format),
        }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// Whole units, rounded away from zero, as upstream's `Value()`.
    pub fn units(&self) -> i64 {
        clamp(div_away(self.nanos, NANO))
    }

    /// Thousandths, rounded away from zero, as upstream's `MilliValue()`.
    pub fn millis(&self) -> i64 {
        clamp(div_away(self.nanos, 1_000_000))
    }

    /// Whether it is a whole number of units.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANO == 0
    }

    /// Whether it is a whole number of thousandths.
    pub fn is_whole_millis(&self) -> bool {
        self.nanos % 1_000_000 == 0
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }

    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}

/// The text upstream would store for `text`: unchanged when it already is canonical.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, QuantityError> {
    if text == "0" {
        return Ok(Cow::Borrowed(text));
    }
    let parts = Parts::split(text)?;
    let (base, exponent, format) = suffix(parts.suffix)?;
    if parts.keeps_text(exponent, format) {
        return Ok(Cow::Borrowed(text));
    }
    Ok(Cow::Owned(parts.value(base, exponent, format)?.to_string()))
}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let small = self.nanos.unsigned_abs() < 1024 * NANO.unsigned_abs();
        if self.format == Format::BinarySi && !small && self.is_whole() {
            let (mut units, mut power) = (self.nanos / NANO, 0);
            while units % 1024 == 0 && power < 6 {
                units /= 1024;
                power += 1;
            }
            return write!(f, "{units}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]);
        }
        let (mut amount, mut exponent) = (self.nanos, -9i32);
        while amount % 1000 == 0 && (exponent < 18 || self.format == Format::DecimalExponent) {
            amount /= 1000;
            exponent += 3;
        }
        match (self.format, exponent) {
            (_, 0) => write!(f, "{amount}"),
            (Format::DecimalExponent, _) => write!(f, "{amount}e{exponent}"),
            _ => {
                let names = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
                write!(f, "{amount}{}", names[((exponent + 9) / 3) as usize])
            }
        }
    }
}

/// The pieces of the text; leading zeros of the whole part are stripped.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (whole, rest) = rest.trim_start_matches('0').split_digits();
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_digits(),
            None => ("", rest),
        };
        let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
        let exponent = letters.strip_prefix(['-', '+']).unwrap_or(letters);
        if !exponent.bytes().all(|c| c.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        Ok(Self { negative, whole, fraction, suffix })
    }

    fn value(&self, base: u32, exponent: i32, format: Format) -> Result<Quantity, QuantityError> {
        let mut digits: i128 = 0;
        for c in self.whole.bytes().chain(self.fraction.bytes()) {
            digits = digits.saturating_mul(10).saturating_add((c - b'0') as i128);
        }
        let shift = 9 - self.fraction.len() as i64 + if base == 10 { exponent as i64 } else { 0 };
        let mut scaled = digits;
        if base == 2 {
            scaled = scaled.saturating_mul(1i128 << exponent);
        }
        // Anything above zero rounds up to the smallest quantity that can be written, never down to none.
        let mut nanos = if shift >= 0 {
            if scaled == 0 { 0 } else { scaled.saturating_mul(power10(shift)) }
        } else {
            div_away(scaled, power10(-shift))
        };
        let mut format = format;
        if format == Format::BinarySi {
            nanos = nanos.min(BINARY_MAX);
            if nanos > 0 && nanos < NANO {
                format = Format::DecimalSi;
            }
        }
        Ok(Quantity { nanos: if self.negative { -nanos } else { nanos }, format })
    }

    /// Upstream's test for "already canonical", which is generous: it keeps a leading `+` or zeros.
    fn keeps_text(&self, exponent: i32, format: Format) -> bool {
        let whole = if self.whole.is_empty() { "0" } else { self.whole };
        let digits = whole.len() + self.fraction.len();
        match format {
            Format::BinarySi => {
                let room = 15 - digits as i64 - (exponent as f32 * 3.0 / 10.0) as i64 - 1;
                self.fraction.is_empty()
                    && room >= 0
                    && exponent % 10 == 0
                    && whole.parse::<i64>().is_ok_and(|v| v & 7 != 0)
            }
            _ => {
                let scale = exponent as i64 - self.fraction.len() as i64;
                let last = if self.fraction.is_empty() { whole } else { self.fraction };
                let zeros = digits >= 3
                    && (last.ends_with("000")
                        || (last.len() < 3
                            && last.bytes().all(|c| c == b'0')
                            && format!("{whole}{}", self.fraction).ends_with("000")));
                digits <= FAST_DIGITS && scale >= -9 && scale % 3 == 0 && !zeros && !whole.starts_with('0')
            }
        }
    }
}

trait Digits {
    fn split_digits(&self) -> (&str, &str);
}

impl Digits for str {
    fn split_digits(&self) -> (&str, &str) {
        let end = self.bytes().position(|c| !c.is_ascii_digit()).unwrap_or(self.len());
        self.split_at(end)
    }
}

fn suffix(text: &str) -> Result<(u32, i32, Format), QuantityError> {
    let decimal = |exponent| Ok((10, exponent, Format::DecimalSi));
    let binary = |exponent| Ok((2, exponent, Format::BinarySi));
    match text {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => match text.strip_prefix(['e', 'E']) {
            Some(number) => {
                let exponent: i64 = number.parse().map_err(|_| QuantityError::Suffix)?;
                Ok((10, exponent.clamp(-1000, 1000) as i32, Format::DecimalExponent))
            }
            None => Err(QuantityError::Suffix),
        },
    }
}

fn power10(exponent: i64) -> i128 {
    if exponent > 38 { i128::MAX } else { 10i128.pow(exponent as u32) }
}

fn div_away(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    if value % by == 0 { quotient } else { quotient + value.signum() }
}

fn clamp(value: i128) -> i64 {
    value.clamp(i64::MIN as i128, i64::MAX as i128) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_text_is_what_upstream_stores() {
        for (text, expected) in [
            ("0", "0"),
            ("00", "0"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1.0", "1"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("100m", "100m"),
            ("1024Mi", "1Gi"),
            ("1025Mi", "1025Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("512Ki", "512Ki"),
            ("0.1Ki", "102400m"),
            ("128974848", "128974848"),
            ("129e6", "129e6"),
            ("129000000e0", "129e6"),
            ("1e3", "1e3"),
            ("1000", "1k"),
            ("1000000", "1M"),
            ("10000", "10k"),
            ("-1", "-1"),
            ("0.0000000001", "1n"),
            ("100Ei", "9223372036854775807"),
            ("0Mi", "0"),
            ("8Gi", "8Gi"),
        ] {
            assert_eq!(canonical(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn bad_text_is_refused_with_the_reason() {
        assert_eq!(Quantity::parse(""), Err(QuantityError::Format));
        assert_eq!(Quantity::parse("1 Gi"), Err(QuantityError::Format));
        assert_eq!(Quantity::parse("1ki"), Err(QuantityError::Suffix));
        assert_eq!(Quantity::parse("1K"), Err(QuantityError::Suffix));
        assert_eq!(Quantity::parse("é"), Err(QuantityError::Format));
        assert_eq!(Quantity::parse("1eé"), Err(QuantityError::Format));
    }

    #[test]
    fn arithmetic_compares_across_formats() {
        let gi = Quantity::parse("1Gi").unwrap();
        assert!(gi > Quantity::parse("1G").unwrap());
        assert_eq!(gi.plus(gi).to_string(), "2Gi");
        assert_eq!(Quantity::parse("250m").unwrap().plus(Quantity::parse("1").unwrap()).to_string(), "1250m");
        assert_eq!(Quantity::parse("1").unwrap().minus(Quantity::parse("2").unwrap()).to_string(), "-1");
        assert_eq!(Quantity::parse("1500m").unwrap().units(), 2);
        assert_eq!(Quantity::parse("1e999").unwrap().units(), i64::MAX);
    }
}
