//! A closed list of MIME types for use as a metric label. A server may list any other type.

crate::labels! {
    /// The MIME type that a server lists for a resource, or its family.
    Mime {
        Plain = "text/plain",
        Markdown = "text/markdown",
        Html = "text/html",
        Csv = "text/csv",
        OtherText = "text/other",
        Json = "application/json",
        Xml = "application/xml",
        Yaml = "application/yaml",
        Pdf = "application/pdf",
        Bytes = "application/octet-stream",
        OtherApplication = "application/other",
        Png = "image/png",
        Jpeg = "image/jpeg",
        Gif = "image/gif",
        Webp = "image/webp",
        Svg = "image/svg+xml",
        OtherImage = "image/other",
        Audio = "audio/other",
        Video = "video/other",
        Other = "other",
        Unknown = "unknown",
    }
}

impl Mime {
    /// Returns the label of a MIME type. Ignores parameters and case.
    pub fn parse(text: &str) -> Mime {
        let name = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if let Some(known) = Mime::ALL.iter().find(|known| known.as_str() == name) {
            return *known;
        }
        match name.as_str() {
            "" => return Mime::Unknown,
            "text/x-markdown" => return Mime::Markdown,
            "text/json" => return Mime::Json,
            "text/xml" => return Mime::Xml,
            "text/yaml" | "text/x-yaml" | "application/x-yaml" => return Mime::Yaml,
            "image/jpg" => return Mime::Jpeg,
            _ => {}
        }
        match name.split('/').next().unwrap_or_default() {
            "application" if name.ends_with("+json") => Mime::Json,
            "application" if name.ends_with("+xml") => Mime::Xml,
            "text" => Mime::OtherText,
            "application" => Mime::OtherApplication,
            "image" => Mime::OtherImage,
            "audio" => Mime::Audio,
            "video" => Mime::Video,
            _ => Mime::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn met1_any_mime_type_maps_to_a_closed_list_of_labels() {
        for (text, label) in [
            ("text/plain", "text/plain"),
            ("Text/Plain; charset=utf-8", "text/plain"),
            ("text/html;profile=mcp-app", "text/html"),
            ("text/x-rust", "text/other"),
            ("application/vnd.api+json", "application/json"),
            ("application/zip", "application/other"),
            ("image/jpg", "image/jpeg"),
            ("audio/wav", "audio/other"),
            ("video/mp4", "video/other"),
            ("font/woff2", "other"),
            ("evil\"} 1\n", "other"),
            ("", "unknown"),
        ] {
            assert_eq!(Mime::parse(text).as_str(), label, "{text}");
        }
    }
}
