//! Schedules of snapshots and of scrubs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most snapshots of one kind that a schedule keeps.
const KEPT_MAX: u32 = 1000;
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// The first of January 1970 was a Thursday, three days after a Monday.
const MONDAY_OFFSET_DAYS: u64 = 3;

/// Number of snapshots to keep of each kind. 0 takes and deletes none of the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotCounts {
    /// Hourly snapshots.
    pub hourly: u32,
    /// Daily snapshots.
    pub daily: u32,
    /// Weekly snapshots. A week begins on Monday.
    pub weekly: u32,
    /// Monthly snapshots.
    pub monthly: u32,
}

/// Snapshot schedule of a fileset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotSchedule {
    /// Name of the fileset, or its last name.
    pub fileset: String,
    /// Identity of the fileset, as 32 hexadecimal digits.
    #[serde(default)]
    pub uuid: String,
    /// Number of snapshots kept.
    pub keep: SnapshotCounts,
    /// Whether the fileset is deleted.
    #[serde(default)]
    pub is_gone: bool,
    /// Whether the schedule is from the server's configuration instead of a command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_configured: bool,
    /// Counts set by a command and overridden by the configuration. They apply again without the
    /// configuration's entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<SnapshotCounts>,
    /// Snapshots that are due for deletion but in use: the first ten, each with the reason, then
    /// the number of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stays: Vec<String>,
}

impl SnapshotSchedule {
    /// Returns the schedule that a command sets.
    pub fn new(fileset: &str, uuid: &str, keep: SnapshotCounts) -> SnapshotSchedule {
        let (fileset, uuid) = (fileset.to_owned(), uuid.to_owned());
        let (is_gone, is_configured) = (false, false);
        SnapshotSchedule {
            fileset,
            uuid,
            keep,
            is_gone,
            is_configured,
            set_aside: None,
            stays: Vec::new(),
        }
    }
}

impl SnapshotCounts {
    /// Returns each period with its count.
    #[must_use]
    pub fn of(&self) -> [(Period, u32); 4] {
        [
            (Period::Hour, self.hourly),
            (Period::Day, self.daily),
            (Period::Week, self.weekly),
            (Period::Month, self.monthly),
        ]
    }

    /// Returns the number of snapshots kept in all.
    pub fn total(&self) -> u64 {
        self.of().iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Refuses more snapshots than `snapshots_max`, the most of this fileset. 0 if that is unknown.
    pub fn check_fits(&self, fileset: &str, snapshots_max: u64) -> Result<(), String> {
        if snapshots_max == 0 || self.total() <= snapshots_max {
            return Ok(());
        }
        Err(format!(
            "{} keeps {} snapshots, and {fileset} can have {snapshots_max} at most in this pool: \
             keep fewer",
            self.text(),
            self.total()
        ))
    }

    /// Refuses counts above the limit.
    pub fn check(&self) -> Result<(), String> {
        let is_possible = self.of().iter().all(|(_, count)| *count <= KEPT_MAX);
        let most = format!("a schedule keeps at most {KEPT_MAX} snapshots of a kind");
        if is_possible { Ok(()) } else { Err(most) }
    }

    /// Parses `hourly=24,daily=7`, or `none`.
    pub fn parse(text: &str) -> Result<SnapshotCounts, String> {
        let mut counts = SnapshotCounts::default();
        if text == "none" {
            return Ok(counts);
        }
        for word in text.split(',') {
            let wrong =
                || format!("`{word}`: write it as hourly=24,daily=7,weekly=4,monthly=12, or none");
            let (kind, count) = word.split_once('=').ok_or_else(wrong)?;
            let field = match kind {
                "hourly" => &mut counts.hourly,
                "daily" => &mut counts.daily,
                "weekly" => &mut counts.weekly,
                "monthly" => &mut counts.monthly,
                _ => return Err(wrong()),
            };
            *field = count.parse().map_err(|_| wrong())?;
        }
        counts.check().map(|()| counts)
    }

    /// Returns the counts in the form that [`SnapshotCounts::parse`] reads.
    pub fn text(&self) -> String {
        let kept = self.of().into_iter().filter(|(_, count)| *count > 0);
        let words: Vec<_> = kept.map(|(period, n)| format!("{}={n}", period.word())).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    }
}

/// Periods of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// From each full hour.
    Hour,
    /// From midnight.
    Day,
    /// From Monday.
    Week,
    /// From the first day of a month.
    Month,
}

impl Period {
    /// Returns the period's word in schedules and in names of snapshots: `hourly`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Period::Hour => "hourly",
            Period::Day => "daily",
            Period::Week => "weekly",
            Period::Month => "monthly",
        }
    }

    /// Returns the name of the snapshot of the period that contains `seconds`.
    pub fn name_at(self, seconds: u64) -> String {
        let day = seconds / DAY;
        let begin = match self {
            Period::Hour => seconds / HOUR * HOUR,
            Period::Day => day * DAY,
            Period::Week => {
                let weekday = (day + MONDAY_OFFSET_DAYS) % 7;
                day.saturating_sub(weekday) * DAY
            }
            Period::Month => (day + 1 - date_of(day).2) * DAY,
        };
        let (year, month, day) = date_of(begin / DAY);
        let hour = begin % DAY / HOUR;
        format!("{}-{year:04}-{month:02}-{day:02}_{hour:02}-00", self.word())
    }

    /// Returns whether `name` has the form of this period's snapshots: full hour, midnight, or
    /// midnight on the first of a month.
    pub fn has_named(self, name: &str) -> bool {
        let shape: &[u8; 16] = match self {
            Period::Hour => b"dddd-dd-dd_dd-00",
            Period::Day | Period::Week => b"dddd-dd-dd_00-00",
            Period::Month => b"dddd-dd-01_00-00",
        };
        let rest = name.strip_prefix(self.word()).and_then(|rest| rest.strip_prefix('-'));
        let fits = |(have, shape): (u8, &u8)| match shape {
            b'd' => have.is_ascii_digit(),
            other => have == *other,
        };
        rest.is_some_and(|rest| rest.len() == shape.len() && rest.bytes().zip(shape).all(fits))
    }
}

/// Returns year, month and day of a day after the first of January 1970 (inverse of days_from_civil
/// by H. Hinnant).
fn date_of(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// Formats seconds since 1970 for people.
pub fn moment(seconds: u64) -> String {
    let (year, month, day) = date_of(seconds / DAY);
    let (hour, minute, second) = (seconds % DAY / HOUR, seconds % HOUR / 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Interval of scheduled scrubs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubEvery {
    /// No scheduled scrubs.
    None,
    /// Each day.
    Daily,
    /// Every 7 days.
    Weekly,
    /// Every 30 days.
    #[default]
    Monthly,
}

impl ScrubEvery {
    /// Returns the time from the start of one scrub to the start of the next.
    pub fn seconds(self) -> Option<u64> {
        match self {
            ScrubEvery::None => None,
            ScrubEvery::Daily => Some(DAY),
            ScrubEvery::Weekly => Some(7 * DAY),
            ScrubEvery::Monthly => Some(30 * DAY),
        }
    }

    /// Returns the word that [`ScrubEvery::parse`] reads.
    pub fn text(self) -> &'static str {
        match self {
            ScrubEvery::None => "none",
            ScrubEvery::Daily => "daily",
            ScrubEvery::Weekly => "weekly",
            ScrubEvery::Monthly => "monthly",
        }
    }

    /// Parses `daily`, `weekly`, `monthly` or `none`.
    pub fn parse(text: &str) -> Result<ScrubEvery, String> {
        let all = [ScrubEvery::None, ScrubEvery::Daily, ScrubEvery::Weekly, ScrubEvery::Monthly];
        let found = all.into_iter().find(|it| it.text() == text);
        found.ok_or_else(|| format!("`{text}`: write it as daily, weekly, monthly or none"))
    }
}

/// Origin of the scrub interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubScheduleSource {
    /// Neither a command nor the configuration sets it.
    #[default]
    Default,
    /// `holdfast schedule scrub`.
    Command,
    /// `holdfast.toml`.
    Configuration,
}

impl ScrubScheduleSource {
    /// Returns the origin as one word.
    pub fn text(self) -> &'static str {
        match self {
            ScrubScheduleSource::Default => "default",
            ScrubScheduleSource::Command => "command",
            ScrubScheduleSource::Configuration => "configuration",
        }
    }
}

/// Result of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubResult {
    /// End of the scrub, in seconds since 1970.
    pub ended_seconds: u64,
    /// Pages and blocks rewritten.
    pub repaired: u64,
    /// Pages and blocks lost, unreadable, or not rewritten.
    pub damaged: u64,
}

/// Scrub schedule of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubSchedule {
    /// Scrub interval.
    pub every: ScrubEvery,
    /// Origin of the interval.
    pub said_by: ScrubScheduleSource,
    /// Start of the last scrub known to this server, in seconds since 1970.
    pub begun_seconds: Option<u64>,
    /// Whether the last scrub has ended.
    pub is_ended: bool,
    /// Result of the last scrub that has ended, if this server knows it.
    #[serde(default)]
    pub result: Option<ScrubResult>,
    /// Time when the next scrub is due, in seconds since 1970.
    pub due_seconds: Option<u64>,
    /// Reason why a due scrub does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

impl ScrubSchedule {
    /// Formats the schedule as one line for people.
    pub fn line(&self) -> String {
        let mut line = format!("scrub  {} ({})", self.every.text(), self.said_by.text());
        if let Some(begun) = self.begun_seconds {
            line += &format!(", the last began {}", moment(begun));
        }
        match (&self.waits, self.due_seconds, self.is_ended) {
            (Some(waits), ..) => line += &format!(", {waits}"),
            (None, Some(due), _) => line += &format!(", next {}", moment(due)),
            (None, None, false) if self.begun_seconds.is_some() => line += ", under way",
            (None, None, _) => {}
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::moment;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (4_102_444_799, "2099-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(moment(seconds), text);
        }
    }
}
