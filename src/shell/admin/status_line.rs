//! The status codes that are used here, with their names (RFC 9110, section 15).

macro_rules! statuses {
    ($($variant:ident $code:literal $name:literal,)*) => {
        /// How a request ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Status { $($variant,)* }

        impl Status {
            pub(super) fn code(self) -> u16 {
                match self { $(Self::$variant => $code,)* }
            }

            pub(super) fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

statuses! {
    Ok 200 "OK",
    Accepted 202 "Accepted",
    BadRequest 400 "Bad Request",
    Unauthorized 401 "Unauthorized",
    Forbidden 403 "Forbidden",
    NotFound 404 "Not Found",
    MethodNotAllowed 405 "Method Not Allowed",
    RequestTimeout 408 "Request Timeout",
    LengthRequired 411 "Length Required",
    ContentTooLarge 413 "Content Too Large",
    TargetTooLong 414 "URI Too Long",
    ExpectationFailed 417 "Expectation Failed",
    FieldsTooLarge 431 "Request Header Fields Too Large",
    NotImplemented 501 "Not Implemented",
    Unavailable 503 "Service Unavailable",
    VersionNotSupported 505 "HTTP Version Not Supported",
}
