//! No single wrong clock can move the log clock far ahead.

use proptest::prelude::*;

use super::*;

const RIGHT: Option<NodeId> = Some(NodeId(1));
const WRONG: Option<NodeId> = Some(NodeId(2));

fn hour(hour: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::hours(hour)
}

fn minute(minute: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::minutes(minute)
}

/// The clock after these commits, one after the other.
fn after(commits: impl IntoIterator<Item = (Option<NodeId>, DateTime<Utc>)>) -> DateTime<Utc> {
    let mut clock = LogClock::default();
    for ((node, time), position) in commits.into_iter().zip(1..) {
        let before = clock.now;
        let expected = clock.after(Position(position), node, time);
        assert_eq!(
            clock.advance(Position(position), node, time),
            expected,
            "a decision sees what a replay sees"
        );
        assert!(
            position == 1 || (before..=before + LogClock::STEP).contains(&clock.now),
            "never back, at most a step"
        );
    }
    clock.now
}

#[test]
fn with_right_clocks_the_time_of_the_log_is_the_time() {
    assert_eq!(after((0..=100).map(|at| (RIGHT, minute(at)))), minute(100));
    let two = (0..=100).map(|at| (if at % 2 == 0 { RIGHT } else { WRONG }, minute(at)));
    assert_eq!(after(two), minute(100));
}

#[test]
fn a_node_whose_clock_is_a_day_ahead_moves_the_time_by_a_step_at_most() {
    let commits = (0..=100).flat_map(|at| [(RIGHT, minute(at)), (WRONG, minute(at) + TimeDelta::hours(25))]);
    assert!(after(commits) <= minute(100) + LogClock::STEP);
    let alone = (1..=100).map(|at| (WRONG, minute(at) + TimeDelta::hours(25)));
    assert!(after([(RIGHT, minute(0))].into_iter().chain(alone)) <= minute(100) + LogClock::STEP);
}

#[test]
fn a_clock_that_jumps_back_and_forth_moves_the_time_by_a_step_at_most() {
    let jumps = (0..=100).map(|at| (RIGHT, minute(at) + TimeDelta::hours(25 * (at % 2))));
    assert!(after(jumps) <= minute(100) + LogClock::STEP);
}

#[test]
fn a_clock_that_races_is_not_followed_further_than_a_step_beyond_the_others() {
    let racing = (1..=100).map(|at| (WRONG, hour(at)));
    assert_eq!(
        after([(RIGHT, hour(0)), (WRONG, hour(0))].into_iter().chain(racing)),
        hour(0) + LogClock::STEP
    );
}

#[test]
fn a_stopped_node_holds_the_others_up_only_for_a_while() {
    let alone = (1..=3_000).map(|at| (RIGHT, minute(at)));
    let now = after([(WRONG, minute(0)), (RIGHT, minute(0))].into_iter().chain(alone));
    assert!(now > minute(1_500), "{now}");
    // However late it stopped, a thousand commits later it counts no more.
    let alone = (1..=1_200).map(|at| (RIGHT, minute(at)));
    let late = [(RIGHT, minute(0)), (RIGHT, minute(0)), (WRONG, minute(0))];
    let now = after(late.into_iter().chain(alone));
    assert!(now > minute(100), "{now}");
}

#[test]
fn the_first_commit_of_a_node_moves_the_time_on() {
    assert_eq!(after([(RIGHT, minute(0)), (WRONG, minute(5))]), minute(5));
}

#[test]
fn restarts_of_a_node_whose_clock_is_wrong_add_nothing() {
    let restarts = (0..100).map(|run| (Some(NodeId(run)), hour(25)));
    assert!(after([(None, hour(0))].into_iter().chain(restarts)) <= hour(0) + LogClock::STEP);
}

proptest! {
    /// Nodes have offsets of their own, which change now and then; real time passes.
    #[test]
    fn the_time_of_the_log_is_never_ahead_by_more_than_a_step_for_each_jump(
        moves in prop::collection::vec((0..3_u64, 0..3_600_i64, prop::option::of(-100..100_i64)), 1..200)
    ) {
        let mut real = DateTime::UNIX_EPOCH;
        let mut offsets = [TimeDelta::zero(); 3];
        let (mut commits, mut jumps) = (vec![(Some(NodeId(0)), real)], 1);
        for (node, passes, jump) in moves {
            real += TimeDelta::seconds(passes);
            let at = usize::try_from(node).unwrap();
            if let Some(hours) = jump {
                offsets[at] = TimeDelta::hours(hours);
                jumps += 1;
            }
            commits.push((Some(NodeId(node)), real + offsets[at]));
        }
        // Nodes that appear with a wrong clock count as jumps, too.
        prop_assert!(after(commits) <= real + LogClock::STEP * (jumps + 3));
    }
}
