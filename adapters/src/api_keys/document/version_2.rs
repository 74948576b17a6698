//! An entry of a key file of version 2: owner, more scopes, rate limit and overlap.

use application::{KeyId, Scope, Scopes};
use serde::{Deserialize, Serialize};
use toml::value::Datetime;

use super::{time_from_toml, time_to_toml};
use crate::api_keys::{
    key::{KeyHash, is_id},
    record::KeyRecord,
};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct KeyV2 {
    pub(super) id: String,
    /// Absent: the id itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<String>,
    pub(super) name: String,
    pub(super) hash: String,
    pub(super) scopes: Vec<ScopeV2>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rate_limit: Option<String>,
    pub(super) created: Datetime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<Datetime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) overlap_until: Option<Datetime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revoked: Option<Datetime>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ScopeV2 {
    Read,
    Write,
    Log,
    Metrics,
}

impl From<&KeyRecord> for KeyV2 {
    fn from(record: &KeyRecord) -> Self {
        let id = record.id();
        Self {
            owner: (record.owner != id).then(|| record.owner.to_string()),
            id: id.to_string(),
            name: record.name.to_string(),
            hash: record.hash.to_string(),
            scopes: record.scopes.iter().map(ScopeV2::from).collect(),
            rate_limit: record.rate_limit.map(|limit| limit.to_string()),
            created: time_to_toml(record.created),
            expires: record.expires.map(time_to_toml),
            overlap_until: record.overlap_until.map(time_to_toml),
            revoked: record.revoked.map(time_to_toml),
        }
    }
}

impl TryFrom<KeyV2> for KeyRecord {
    type Error = String;

    fn try_from(key: KeyV2) -> Result<Self, String> {
        let hash: KeyHash = key.hash.parse().map_err(|rule| format!("hash {rule}"))?;
        let id = hash.id();
        if key.id != *id.0 {
            return Err(format!("id must be {id}, the start of its hash"));
        }
        let time = |time: Option<Datetime>| time.as_ref().map(time_from_toml).transpose();
        Ok(Self {
            hash,
            owner: match key.owner {
                None => id,
                Some(owner) if is_id(&owner) => KeyId(owner.into()),
                Some(_) => return Err("owner must be the id of a key".to_owned()),
            },
            name: key.name.parse().map_err(|rule| format!("{rule}"))?,
            scopes: Scopes::new(key.scopes.into_iter().map(Scope::from)).ok_or("scopes must not be empty")?,
            rate_limit: key
                .rate_limit
                .map(|limit| limit.parse().map_err(|rule| format!("{rule}")))
                .transpose()?,
            created: time_from_toml(&key.created)?,
            expires: time(key.expires)?,
            overlap_until: time(key.overlap_until)?,
            revoked: time(key.revoked)?,
        })
    }
}

impl From<Scope> for ScopeV2 {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Read => Self::Read,
            Scope::Write => Self::Write,
            Scope::Log => Self::Log,
            Scope::Metrics => Self::Metrics,
        }
    }
}

impl From<ScopeV2> for Scope {
    fn from(scope: ScopeV2) -> Self {
        match scope {
            ScopeV2::Read => Self::Read,
            ScopeV2::Write => Self::Write,
            ScopeV2::Log => Self::Log,
            ScopeV2::Metrics => Self::Metrics,
        }
    }
}
