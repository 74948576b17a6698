//! Access control: who may use the service, for what, and how often. The HTTP adapter asks it at every request; the
//! application knows only the owner's id, which an event records.
//!
//! Reading order: [`Authenticator`] (the question), [`Principal`] (the response), [`RateLimit`] and [`Allowance`] (how
//! often), [`api_keys`] (the key file, the only implementation in production).

mod allowance;
pub mod api_keys;
mod authenticator;
mod principal;
mod rate_limit;

pub use self::{
    allowance::{Allowance, Balance, quota},
    authenticator::{Authenticator, KeyReloads},
    principal::{KeyUsage, Principal, RejectedKey, Scope, Scopes},
    rate_limit::{InvalidRateLimit, RateLimit},
};
