//! Sizes and times in the form people write: `10G`, `64K`, `1.5G`, `5s`.
//!
//! Units are powers of 1024, as in other storage tools that write `10G` without a B.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Suffixes from 1024 upwards.
const UNITS: &[u8] = b"KMGTPE";

/// Most digits after the point. In units up to G, further digits are less than a byte.
const FRACTION_DIGITS_MAX: usize = 9;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Parse error of a size or time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text is not a size.
    #[error("`{text}` is not a size: write bytes (4096) or a number with K, M, G, T, P or E (10G)")]
    NotSize {
        /// The text.
        text: String,
    },
    /// The size does not fit in 64 bits.
    #[error("`{text}` is too large: the most is a byte less than 16 EiB")]
    TooLarge {
        /// The text.
        text: String,
    },
    /// The text is not a time.
    #[error("`{text}` is not a time: write a number with ms, s or m (5s)")]
    NotTime {
        /// The text.
        text: String,
    },
}

impl FromStr for ByteSize {
    type Err = SizeError;

    /// Parses `4096`, `64K`, `10G`, `1.5T`. A trailing `B` or `iB` and small letters are allowed. A
    /// fraction is rounded down to whole bytes.
    fn from_str(text: &str) -> Result<ByteSize, SizeError> {
        let not_size = || SizeError::NotSize { text: text.to_owned() };
        let too_large = || SizeError::TooLarge { text: text.to_owned() };
        let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits_end);
        let unit_bytes = unit_bytes(unit).ok_or_else(not_size)?;
        let (whole, fraction) = match number.split_once('.') {
            Some((whole, fraction)) if unit_bytes > 1 && !fraction.is_empty() => (whole, fraction),
            Some(_) => return Err(not_size()),
            None => (number, ""),
        };
        let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !all_digits(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
            return Err(not_size());
        }
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let scale = (0..fraction.len()).fold(1_u128, |scale, _| scale * 10);
        let fraction: u128 = if fraction.is_empty() {
            0
        } else {
            fraction.parse().expect("at most nine digits fit")
        };
        let bytes =
            u128::from(whole) * u128::from(unit_bytes) + fraction * u128::from(unit_bytes) / scale;
        u64::try_from(bytes).map(ByteSize).map_err(|_| too_large())
    }
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let upper = unit.to_ascii_uppercase();
    let letter = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    match letter.as_bytes() {
        [] if upper != "IB" => Some(1),
        [letter] => {
            let power = UNITS.iter().position(|unit| unit == letter)?;
            Some(1024 << (10 * power))
        }
        _ => None,
    }
}

impl fmt::Display for ByteSize {
    /// Writes whole units exactly, and other sizes truncated to one digit after the point.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let Some(power) = (0..UNITS.len()).rfind(|power| bytes >= 1024 << (10 * power)) else {
            return write!(f, "{bytes}");
        };
        let unit = 1024_u64 << (10 * power);
        let letter = char::from(UNITS[power]);
        let tenths = u128::from(bytes % unit) * 10 / u128::from(unit);
        match (bytes.is_multiple_of(unit), tenths) {
            (true, _) => write!(f, "{}{letter}", bytes / unit),
            (false, tenths) => write!(f, "{}.{tenths}{letter}", bytes / unit),
        }
    }
}

impl serde::Serialize for ByteSize {
    /// Writes the number of bytes, for programs.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// Parses `5s`, `500ms`, `2m`.
pub fn parse_time(text: &str) -> Result<Duration, SizeError> {
    let not_time = || SizeError::NotTime { text: text.to_owned() };
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let number: u64 = number.parse().map_err(|_| not_time())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err(not_time()),
    };
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(not_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u64, SizeError> {
        text.parse::<ByteSize>().map(|size| size.0)
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64K", 65_536),
            ("64k", 65_536),
            ("64KiB", 65_536),
            ("10G", 10 << 30),
            ("16T", 16 << 40),
            ("1.5G", 3 << 29),
            ("0.001K", 1),
            ("2P", 2 << 50),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "", "K", ".5G", "5.G", "1.5", "-1", "10X", "10GG", "1,5G", "1.5.5G", "iB", "10 G",
            "1e3",
        ] {
            assert_eq!(parse(text), Err(SizeError::NotSize { text: text.to_owned() }));
        }
        assert!(parse("1.0000000001G").is_err(), "digits past the limit");
        for text in ["16E", "18446744073709551616", "99999999999999999999T"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge { text: text.to_owned() }));
        }
    }

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for text in ["0", "1023", "4K", "10G", "16T", "1.5G", "2.5K"] {
            assert_eq!(text.parse::<ByteSize>().expect("it is a size").to_string(), text);
        }
        assert_eq!(ByteSize(u64::MAX).to_string(), "15.9E");
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_time("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("2m"), Ok(Duration::from_secs(120)));
        for text in ["5", "s", "5h", "", "99999999999999999999s", "18446744073709551615m"] {
            assert_eq!(parse_time(text), Err(SizeError::NotTime { text: text.to_owned() }));
        }
    }
}
