//! Notices when somebody sets the clock of this machine, or when the machine was asleep.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time;

/// How often the clock is compared with the time that has really passed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Less than this is an adjustment as time servers make it, or a busy machine.
const TOLERANCE: TimeDelta = TimeDelta::seconds(1);

/// Logs every jump, for as long as it is polled.
pub(crate) async fn watch() {
    let mut last = (Utc::now(), Instant::now());
    loop {
        time::sleep(LOOK_EVERY).await;
        let now = (Utc::now(), Instant::now());
        if let Some(jump) = jump(now.0 - last.0, now.1 - last.1) {
            let direction = if jump > TimeDelta::zero() { "ahead" } else { "back" };
            tracing::warn!(
                jump_seconds = jump.num_seconds(),
                from = %stamp(now.0 - jump),
                to = %stamp(now.0),
                "the clock of this machine has jumped {direction}"
            );
        }
        last = now;
    }
}

/// How far the clock went beyond the time that has passed, if that is a jump.
fn jump(clock: TimeDelta, passed: Duration) -> Option<TimeDelta> {
    let passed = TimeDelta::from_std(passed).unwrap_or(TimeDelta::MAX);
    let jump = clock.checked_sub(&passed)?;
    (jump.abs() > TOLERANCE).then_some(jump)
}

fn stamp(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_not_fit_the_time_that_has_passed_is_a_jump() {
        let two = Duration::from_secs(2);
        for (clock, expected) in [(2, None), (3, None), (1, None), (62, Some(60)), (-3_598, Some(-3_600))] {
            let found = jump(TimeDelta::seconds(clock), two).map(|jump| jump.num_seconds());
            assert_eq!(found, expected, "{clock}");
        }
    }
}
