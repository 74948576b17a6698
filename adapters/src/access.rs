//! Access control: authenticates API keys, and limits what and how often they may use. The HTTP adapter calls it at
//! every request; the application knows only the owners of keys.
//!
//! Reading order: [`ApiKeys`](api_keys::ApiKeys) (the keys of the key file), [`Principal`] (an authenticated key),
//! [`RateLimit`] and [`Allowance`].

pub mod api_keys;
mod principal;
mod rate_limit;

pub use self::{
    principal::{KeyId, KeyUsage, Principal, RejectedKey, Scope, Scopes},
    rate_limit::{Allowance, Balance, RateLimit},
};
