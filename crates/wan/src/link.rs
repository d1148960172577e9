//! What a link between two hosts does to packets, and how users write it down.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Both directions of a link behave the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// One way.
    pub delay: Duration,
    /// Share of packets lost, 0.0 to 1.0.
    pub loss: f64,
    /// A link that is not up delivers nothing.
    pub up: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self { delay: Duration::ZERO, loss: 0.0, up: true }
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no link; write a one-way delay and a loss, for example `100ms,1%` or `400ms`")]
pub struct LinkSyntax(String);

impl FromStr for Link {
    type Err = LinkSyntax;

    fn from_str(text: &str) -> Result<Self, LinkSyntax> {
        let wrong = || LinkSyntax(text.to_owned());
        let mut link = Self::default();
        for part in text.split(',').map(str::trim) {
            if let Some(delay) = part.strip_suffix("ms") {
                link.delay = Duration::from_millis(delay.parse().map_err(|_| wrong())?);
            } else if let Some(loss) = part.strip_suffix('%') {
                let percent: f64 = loss.parse().map_err(|_| wrong())?;
                if !(0.0..=100.0).contains(&percent) {
                    return Err(wrong());
                }
                link.loss = percent / 100.0;
            } else {
                return Err(wrong());
            }
        }
        Ok(link)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms,{}%", self.delay.as_millis(), self.loss * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_written_as_delay_and_loss() {
        let link: Link = "100ms,1%".parse().expect("a good link");
        assert_eq!(link, Link { delay: Duration::from_millis(100), loss: 0.01, up: true });
        assert_eq!(link.to_string(), "100ms,1%");
        assert_eq!("400ms".parse::<Link>().expect("a good link").loss, 0.0);
        for bad in ["", "100", "ms", "1%,x", "101%", "-1%"] {
            assert!(bad.parse::<Link>().is_err(), "{bad:?} was taken");
        }
    }
}
