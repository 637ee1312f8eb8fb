//! The status codes of RFC 9110, section 15, that are sent here.

macro_rules! statuses {
    ($($variant:ident $code:literal $name:literal,)*) => {
        /// An HTTP status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Status { $(#[doc = concat!("`", $code, " ", $name, "`")] $variant,)* }

        impl Status {
            /// The status code.
            pub fn code(self) -> u16 {
                match self { $(Self::$variant => $code,)* }
            }

            /// The reason phrase.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

statuses! {
    SwitchingProtocols 101 "Switching Protocols",
    Ok 200 "OK",
    Accepted 202 "Accepted",
    NoContent 204 "No Content",
    BadRequest 400 "Bad Request",
    Unauthorized 401 "Unauthorized",
    Forbidden 403 "Forbidden",
    NotFound 404 "Not Found",
    MethodNotAllowed 405 "Method Not Allowed",
    NotAcceptable 406 "Not Acceptable",
    RequestTimeout 408 "Request Timeout",
    Conflict 409 "Conflict",
    ContentTooLarge 413 "Content Too Large",
    TargetTooLong 414 "URI Too Long",
    UnsupportedMediaType 415 "Unsupported Media Type",
    ExpectationFailed 417 "Expectation Failed",
    UpgradeRequired 426 "Upgrade Required",
    TooManyRequests 429 "Too Many Requests",
    FieldsTooLarge 431 "Request Header Fields Too Large",
    NotImplemented 501 "Not Implemented",
    Unavailable 503 "Service Unavailable",
    VersionNotSupported 505 "HTTP Version Not Supported",
}
