//! Access control: authenticates API keys, and limits what and how often they may use. The HTTP adapter calls it at
//! every request; the application uses only the id of a key's owner.
//!
//! Reading order: [`Authenticator`] (the interface), [`Principal`] (an authenticated key), [`RateLimit`] and
//! [`Allowance`], [`api_keys`] (the key file, the only implementation in production).

mod allowance;
pub mod api_keys;
mod authenticator;
mod principal;
mod rate_limit;

pub use self::{
    allowance::{Allowance, Balance, quota},
    authenticator::{Authenticator, KeyReloads},
    principal::{KeyUsage, Principal, RejectedKey, Scope, Scopes},
    rate_limit::RateLimit,
};
