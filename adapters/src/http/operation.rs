//! What a request asks for, told from its method and address alone: refusals before the router need to know it too.

use axum::http::Method;

/// The kinds of requests that are counted apart. The four of the interface have the names they have there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    ListPets,
    CreatePet,
    GetPet,
    ListOrders,
    /// The OpenAPI document and the page that shows it.
    Describe,
    /// What operators and their machines ask.
    Observe,
    /// Everything that is none of these, such as addresses that do not exist.
    Other,
}

impl Operation {
    pub(super) const ALL: [Self; 7] = [
        Self::ListPets,
        Self::CreatePet,
        Self::GetPet,
        Self::ListOrders,
        Self::Describe,
        Self::Observe,
        Self::Other,
    ];

    pub(super) fn of(method: &Method, path: &str) -> Self {
        let reads = *method == Method::GET || *method == Method::HEAD;
        match path {
            "/v1/pets" if reads => Self::ListPets,
            "/v1/pets" if *method == Method::POST => Self::CreatePet,
            "/v1/store/orders" if reads => Self::ListOrders,
            "/livez" | "/readyz" | "/metrics" if reads => Self::Observe,
            "/openapi.json" | "/docs" if reads => Self::Describe,
            _ if reads && path.starts_with("/docs/") => Self::Describe,
            _ if reads && is_pet(path) => Self::GetPet,
            _ => Self::Other,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ListPets => "listPets",
            Self::CreatePet => "createPet",
            Self::GetPet => "getPet",
            Self::ListOrders => "listOrders",
            Self::Describe => "describe",
            Self::Observe => "observe",
            Self::Other => "other",
        }
    }

    /// Whether it will be removed.
    pub(super) fn is_deprecated(self) -> bool {
        match self {
            Self::GetPet => true,
            Self::ListPets
            | Self::CreatePet
            | Self::ListOrders
            | Self::Describe
            | Self::Observe
            | Self::Other => false,
        }
    }
}

fn is_pet(path: &str) -> bool {
    path.strip_prefix("/v1/pets/").is_some_and(|id| !id.is_empty() && !id.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_one_pet_is_told_by_its_address() {
        for path in ["/v1/pets/1", "/v1/pets/x", "/v1/pets/%31"] {
            assert_eq!(Operation::of(&Method::GET, path), Operation::GetPet, "{path}");
            assert_eq!(Operation::of(&Method::HEAD, path), Operation::GetPet, "{path}");
            assert_eq!(Operation::of(&Method::DELETE, path), Operation::Other, "{path}");
        }
        for path in ["/v1/pets/", "/v1/pets/1/", "/v1/pets/1/name", "/pets/1", "/v1/petsx"] {
            assert_eq!(Operation::of(&Method::GET, path), Operation::Other, "{path}");
        }
    }

    #[test]
    fn reading_and_adding_are_told_apart() {
        for (method, path, operation) in [
            (Method::GET, "/v1/pets", Operation::ListPets),
            (Method::HEAD, "/v1/pets", Operation::ListPets),
            (Method::POST, "/v1/pets", Operation::CreatePet),
            (Method::PUT, "/v1/pets", Operation::Other),
            (Method::GET, "/v1/store/orders", Operation::ListOrders),
            (Method::GET, "/readyz", Operation::Observe),
            (Method::GET, "/docs", Operation::Describe),
            (Method::GET, "/docs/page.js", Operation::Describe),
            (Method::POST, "/docs", Operation::Other),
        ] {
            assert_eq!(Operation::of(&method, path), operation, "{method} {path}");
        }
    }

    #[test]
    fn every_operation_is_listed_once_in_order() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index, "{operation:?}");
        }
    }
}
