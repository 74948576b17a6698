//! The last position that a server has announced, for the readers that wait for commits.

use application::ports::Position;
use tokio::sync::watch;

/// Records an announced or stored position, unless a later one is known.
pub(super) fn raise(announced: &watch::Sender<Position>, position: Position) {
    // Nothing precedes the start.
    confirm(announced, Position::START, position);
}

/// Records the head of the log. `before` is the announced position when the head was requested: if it is beyond the head,
/// the announcement was false, or that of a log that was replaced, and would wake every wait.
pub(super) fn confirm(announced: &watch::Sender<Position>, before: Position, head: Position) {
    announced.send_if_modified(|last| {
        let is_wrong = head > *last || (*last == before && head < before);
        if is_wrong {
            *last = head;
        }
        is_wrong
    });
}
