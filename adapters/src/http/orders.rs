//! Store orders: the address exists, but nobody has described what stands there, and we invent nothing.

use super::error::Problem;

/// `GET /v1/store/orders`.
pub(super) async fn list() -> Problem {
    Problem::NotImplemented("store orders are reserved and not implemented yet")
}
