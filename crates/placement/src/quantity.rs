//! Kubernetes quantities (`500m`, `1.5Gi`, `2e3`) as integers.

/// The quantity in thousandths, rounded up; `None` when it is not a quantity.
pub fn milli(text: &str) -> Option<i64> {
    scaled(text, 3)
}

/// The quantity in whole units, rounded up; `None` when it is not a quantity.
pub fn units(text: &str) -> Option<i64> {
    scaled(text, 0)
}

/// The value times `10^digits`, rounded up, saturating at the ends of `i64`.
fn scaled(text: &str, digits: i32) -> Option<i64> {
    let text = text.trim();
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (mut power, binary) = suffix_of(suffix)?;
    power += digits;

    let mut value: i128 = 0;
    // Digits past the 30th change nothing that fits into 64 bits; they only count as "a little more".
    let mut inexact = false;
    for (at, digit) in whole.chars().chain(fraction.chars()).enumerate() {
        let digit = i128::from(digit.to_digit(10)?);
        let is_fraction = at >= whole.len();
        if value < 10_i128.pow(30) {
            value = value * 10 + digit;
            power -= i32::from(is_fraction);
        } else {
            inexact |= digit != 0;
            power += i32::from(!is_fraction);
        }
    }
    value = value.saturating_mul(binary);
    while power > 0 && value != 0 {
        value = value.saturating_mul(10);
        power -= 1;
    }
    while power < 0 && value != 0 {
        inexact |= value % 10 != 0;
        value /= 10;
        power += 1;
    }
    // "Up" is towards larger amounts, so a negative quantity is cut instead.
    value += i128::from(inexact && !negative);
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    Some(if negative { -value } else { value })
}

/// The suffix as a power of ten and a binary factor.
fn suffix_of(suffix: &str) -> Option<(i32, i128)> {
    Some(match suffix {
        "" => (0, 1),
        "n" => (-9, 1),
        "u" => (-6, 1),
        "m" => (-3, 1),
        "k" => (3, 1),
        "M" => (6, 1),
        "G" => (9, 1),
        "T" => (12, 1),
        "P" => (15, 1),
        "E" => (18, 1),
        "Ki" => (0, 1 << 10),
        "Mi" => (0, 1 << 20),
        "Gi" => (0, 1 << 30),
        "Ti" => (0, 1 << 40),
        "Pi" => (0, 1 << 50),
        "Ei" => (0, 1 << 60),
        _ => (suffix.strip_prefix(['e', 'E'])?.parse::<i8>().ok()?.into(), 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        assert_eq!(milli("500m"), Some(500));
        assert_eq!(milli("0.5"), Some(500));
        assert_eq!(milli("2"), Some(2000));
        assert_eq!(milli("100u"), Some(1), "rounded up");
        assert_eq!(milli("1.0001"), Some(1001));
        assert_eq!(units("128Mi"), Some(128 << 20));
        assert_eq!(units("1.5Gi"), Some(3 << 29));
        assert_eq!(units("1e3"), Some(1000));
        assert_eq!(units("12E"), Some(i64::MAX), "saturates");
        assert_eq!(units("1E"), Some(1_000_000_000_000_000_000));
        assert_eq!(units("1500m"), Some(2));
        assert_eq!(units("-1.5"), Some(-1));
        assert_eq!(units("0"), Some(0));
        assert_eq!(units(".5Ki"), Some(512));
    }

    #[test]
    fn what_is_not_a_quantity_is_refused() {
        for text in ["", "m", "1.2.3", "1Zi", "abc", "1e", "--1", "."] {
            assert_eq!(units(text), None, "{text}");
        }
    }
}
