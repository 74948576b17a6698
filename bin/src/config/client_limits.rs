//! Limits per client.

use adapters::{access::RateLimit, http::TrustedProxy};
use clap::Args;

use super::positive;

#[derive(Debug, Args)]
pub(crate) struct ClientLimitArguments {
    /// Maximum number of open connections per client address; further ones get 503. An IPv6 client is its /64 network.
    /// Does not apply to trusted proxies [default: no limit]
    #[arg(long, env = "PETSTORE_CONNECTIONS_PER_ADDRESS", value_name = "N",
          value_parser = positive)]
    pub(crate) connections_per_address: Option<u32>,
    /// Maximum request rate of each API key, for example 100/s, 1000/m or 5000/h; requests over the limit get 429. A
    /// limit that was issued with a key takes precedence [default: no limit]
    #[arg(long, env = "PETSTORE_RATE_LIMIT", value_name = "LIMIT")]
    pub(crate) rate_limit: Option<RateLimit>,
    /// Maximum rate of wrong API keys per client address, for example 10/m; requests over the limit get 429 instead of
    /// 401. Valid keys from the same address are not affected [default: no limit]
    #[arg(long, env = "PETSTORE_FAILED_AUTH_LIMIT", value_name = "LIMIT")]
    pub(crate) failed_auth_limit: Option<RateLimit>,
    /// Address or range of a trusted proxy, for example 10.0.0.0/8. The address of its client is taken from Forwarded
    /// or X-Forwarded-For. Repeat the flag or separate ranges with commas [default: none]
    #[arg(long, env = "PETSTORE_TRUSTED_PROXY", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) trusted_proxy: Vec<TrustedProxy>,
}
