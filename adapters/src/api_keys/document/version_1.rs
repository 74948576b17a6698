//! An entry of a key file of version 1. This format never changes.

use application::Scope;
use serde::{Deserialize, Serialize};
use toml::value::Datetime;

use super::{
    time_to_toml,
    version_2::{KeyV2, ScopeV2},
};
use crate::api_keys::record::KeyRecord;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyV1 {
    id: String,
    name: String,
    hash: String,
    scopes: Vec<ScopeV1>,
    created: Datetime,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Datetime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked: Option<Datetime>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ScopeV1 {
    Read,
    Write,
}

impl KeyV1 {
    /// The entry for this key, or `None` if version 1 cannot express it.
    pub(super) fn of(record: &KeyRecord) -> Option<Self> {
        if record.owner != record.id() || record.rate_limit.is_some() || record.overlap_until.is_some() {
            return None;
        }
        Some(Self {
            id: record.id().to_string(),
            name: record.name.to_string(),
            hash: record.hash.to_string(),
            scopes: record.scopes.iter().map(ScopeV1::of).collect::<Option<_>>()?,
            created: time_to_toml(record.created),
            expires: record.expires.map(time_to_toml),
            revoked: record.revoked.map(time_to_toml),
        })
    }
}

impl From<KeyV1> for KeyV2 {
    fn from(key: KeyV1) -> Self {
        Self {
            id: key.id,
            owner: None,
            name: key.name,
            hash: key.hash,
            scopes: key.scopes.into_iter().map(ScopeV2::from).collect(),
            rate_limit: None,
            created: key.created,
            expires: key.expires,
            overlap_until: None,
            revoked: key.revoked,
        }
    }
}

impl ScopeV1 {
    fn of(scope: Scope) -> Option<Self> {
        match scope {
            Scope::Read => Some(Self::Read),
            Scope::Write => Some(Self::Write),
            Scope::Log | Scope::Metrics => None,
        }
    }
}

impl From<ScopeV1> for ScopeV2 {
    fn from(scope: ScopeV1) -> Self {
        match scope {
            ScopeV1::Read => Self::Read,
            ScopeV1::Write => Self::Write,
        }
    }
}
