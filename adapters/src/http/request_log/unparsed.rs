//! A line for each request that is not valid HTTP. Nothing is known of it but where it came from.

use std::net::IpAddr;

use super::{AccessLog, RequestLog};

impl RequestLog {
    /// Logs that a request was refused by the parser, within the bounds of other refused requests.
    pub(in crate::http) fn record_unparsed(&self, peer: IpAddr, error: &str) {
        if self.which == AccessLog::Refused && self.limiter.check().is_err() {
            return self.leave_out();
        }
        // The headers that a proxy adds were not read either.
        tracing::info!(client = %peer, error, "refused a request that is not valid HTTP");
    }
}
