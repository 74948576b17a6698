//! The choice of the connections that are closed when the slots or the memory of a listener run out: those of the group that
//! holds most. A flood displaces itself. No other client is rejected or gets less time.

use std::{cmp::Reverse, collections::HashMap};

use application::OwnerId;
use ipnet::IpNet;
use tokio::time::Instant;

/// Unproven connections are closed first while they hold more than 1/4, unless one owner holds more than 1/2.
const UNPROVEN_PART: usize = 4;
const OWNER_PART: usize = 2;

/// The network of a client, and a number in the order of the accepts.
pub(super) type ConnectionKey = (IpNet, u64);

/// The clients that share a part of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// The unproven connections of a client address.
    Address(IpNet),
    /// The proven connections of an owner of API keys.
    Owner(OwnerId),
}

/// Chooses connections until the others hold at most `kept` of `limit`. A candidate has its group, the slots or the memory
/// that it holds, and its place among connections of its group that hold the same.
///
/// Takes them from the group that holds most: the connection that holds most, or for slots, where all hold the same, the
/// first one in the order.
pub(super) fn choose(
    candidates: impl Iterator<Item = (ConnectionKey, Group, usize, (bool, Instant))>,
    limit: usize,
    kept: usize,
) -> Vec<ConnectionKey> {
    let mut groups = HashMap::<_, (usize, Vec<_>)>::new();
    let mut held = [0; 2];
    for (key, group, amount, order) in candidates {
        let is_proven = matches!(group, Group::Owner(_));
        held[usize::from(is_proven)] += amount;
        let (total, members) = groups.entry((is_proven, group)).or_default();
        *total += amount;
        members.push((Reverse(amount), order, key));
    }
    for (_, members) in groups.values_mut() {
        members.sort_unstable_by_key(|member| Reverse(*member));
    }
    let mut chosen = Vec::new();
    while held.iter().sum::<usize>() > kept {
        let proven = groups.iter().filter(|((is_proven, _), _)| *is_proven).map(|(_, (total, _))| *total);
        let takes_proven = held[0] <= limit / UNPROVEN_PART || proven.max() > Some(limit / OWNER_PART);
        let candidates = groups.iter_mut().filter(|((is_proven, _), _)| *is_proven == takes_proven);
        // Of groups that hold the same, the one whose connection comes first.
        let group = candidates.max_by_key(|(_, (total, members))| (*total, Reverse(members.last().copied())));
        let Some((_, (total, members))) = group else { break };
        let Some((Reverse(amount), _, key)) = members.pop() else { break };
        *total -= amount;
        held[usize::from(takes_proven)] -= amount;
        chosen.push(key);
    }
    chosen
}

#[cfg(test)]
mod tests;
