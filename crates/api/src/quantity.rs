//! Kubernetes quantities as integers.

use std::collections::BTreeMap;

/// The value in thousandths, rounded up; `None` if it is no quantity.
pub fn milli(text: &str) -> Option<i64> {
    let text = text.trim();
    let split =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "n" => 1e-6,
        "u" => 1e-3,
        "m" => 1.0,
        "" => 1e3,
        "k" => 1e6,
        "M" => 1e9,
        "G" => 1e12,
        "T" => 1e15,
        "P" => 1e18,
        "E" => 1e21,
        "Ki" => 1000.0 * 1024.0,
        "Mi" => 1000.0 * 1024f64.powi(2),
        "Gi" => 1000.0 * 1024f64.powi(3),
        "Ti" => 1000.0 * 1024f64.powi(4),
        "Pi" => 1000.0 * 1024f64.powi(5),
        "Ei" => 1000.0 * 1024f64.powi(6),
        exponent => 10f64.powi(exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()? + 3),
    };
    // Decimal fractions are not exact in binary: what is a hair above a whole number is that number.
    // Beyond 2^53 the product is not exact; no node has that many thousandths of a byte to spare.
    let value = number * factor;
    let whole = value.round();
    Some(if (value - whole).abs() < 1e-6 { whole } else { value.ceil() } as i64)
}

/// The value of a resource in the unit it is counted in: thousandths for `cpu`, whole ones for all others.
pub fn amount(resource: &str, text: &str) -> Option<i64> {
    let milli = milli(text)?;
    Some(if resource == "cpu" {
        milli
    } else {
        milli.div_euclid(1000) + i64::from(milli.rem_euclid(1000) > 0)
    })
}

/// The other way round.
pub fn text(resource: &str, amount: i64) -> String {
    if resource == "cpu" { format!("{amount}m") } else { amount.to_string() }
}

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, i64>;

pub fn amounts(quantities: &BTreeMap<String, String>) -> Amounts {
    quantities.iter().filter_map(|(name, value)| Some((name.clone(), amount(name, value)?))).collect()
}

pub fn texts(amounts: &Amounts) -> BTreeMap<String, String> {
    amounts.iter().map(|(name, value)| (name.clone(), text(name, *value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        assert_eq!(milli("100m"), Some(100));
        assert_eq!(milli("1.5"), Some(1500));
        assert_eq!(milli("2e3"), Some(2_000_000));
        assert_eq!(amount("memory", "1Gi"), Some(1 << 30));
        assert_eq!(amount("memory", "128974848"), Some(128_974_848));
        assert_eq!(amount("memory", "1k"), Some(1000));
        assert_eq!(amount("cpu", "2"), Some(2000));
        assert_eq!(amount("memory", "1m"), Some(1));
        for bad in ["", "m", "1x", "1.2.3"] {
            assert_eq!(milli(bad), None, "{bad}");
        }
    }
}
