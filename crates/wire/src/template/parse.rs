//! The parser for the grammar of RFC 6570, section 2. It produces a flat list of steps.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{
    MAX_TEMPLATE_BYTES, MAX_VARIABLES, TemplateError,
    characters::{self, Charset},
};

/// A part of a template.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Literal text, encoded as in a URI.
    Literal(String),
    Variable(Variable),
}

impl Step {
    pub(super) fn literal_bytes(&self) -> usize {
        match self {
            Step::Literal(text) => text.len(),
            Step::Variable(_) => 0,
        }
    }

    /// Returns all bytes that this step can write, except those of values.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Step::Literal(text) => text.as_bytes().to_vec(),
            Step::Variable(variable) => {
                let delimiters = [Some(b'='), variable.list_separator(), variable.lead(false), variable.lead(true)];
                delimiters.into_iter().flatten().chain(variable.fixed_name().bytes()).collect()
            }
        }
    }
}

/// A variable of an expression. The expression `{a,b}` has two of them.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) operator: Operator,
    pub(super) modifier: Modifier,
    /// True if this is the last variable of its expression.
    pub(super) is_last: bool,
}

impl Variable {
    /// Returns the character before the item of this variable.
    pub(super) fn lead(&self, is_started: bool) -> Option<u8> {
        if is_started { Some(self.operator.separator()) } else { self.operator.first() }
    }

    /// Returns the name that an item begins with. Returns an empty name if exploded, because each pair then has its own
    /// key.
    pub(super) fn fixed_name(&self) -> &str {
        if self.operator.is_named() && self.modifier != Modifier::Explode { &self.name } else { "" }
    }

    /// Returns the character between the members of a list.
    pub(super) fn list_separator(&self) -> Option<u8> {
        match self.modifier {
            Modifier::Plain => Some(b','),
            Modifier::Prefix(_) => None,
            Modifier::Explode => Some(self.operator.separator()),
        }
    }

    /// Reports whether an item may consist of pairs that are not values themselves. A reserved value may contain `=`
    /// and `,`, so its pairs count as values.
    pub(super) fn has_pairs(&self) -> bool {
        self.modifier == Modifier::Explode && self.operator.charset() == Charset::Unreserved
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modifier {
    Plain,
    Prefix(u16),
    Explode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Simple,
    Reserved,
    Fragment,
    Label,
    Path,
    Parameter,
    Query,
    Continuation,
    /// A `{var}` in a lenient match. No template syntax produces it.
    Trailing,
}

/// The table of RFC 6570, appendix A.
impl Operator {
    fn of(character: char) -> Option<Operator> {
        Some(match character {
            '+' => Operator::Reserved,
            '#' => Operator::Fragment,
            '.' => Operator::Label,
            '/' => Operator::Path,
            ';' => Operator::Parameter,
            '?' => Operator::Query,
            '&' => Operator::Continuation,
            _ => return None,
        })
    }

    /// Returns the character before the first defined variable of an expression.
    pub(super) fn first(self) -> Option<u8> {
        match self {
            Operator::Simple | Operator::Reserved | Operator::Trailing => None,
            Operator::Fragment => Some(b'#'),
            Operator::Label => Some(b'.'),
            Operator::Path => Some(b'/'),
            Operator::Parameter => Some(b';'),
            Operator::Query => Some(b'?'),
            Operator::Continuation => Some(b'&'),
        }
    }

    /// Returns the character before each further variable.
    pub(super) fn separator(self) -> u8 {
        match self {
            Operator::Simple | Operator::Reserved | Operator::Trailing | Operator::Fragment => b',',
            Operator::Label => b'.',
            Operator::Path => b'/',
            Operator::Parameter => b';',
            Operator::Query | Operator::Continuation => b'&',
        }
    }

    pub(super) fn is_named(self) -> bool {
        matches!(self, Operator::Parameter | Operator::Query | Operator::Continuation)
    }

    /// Reports whether an empty value leaves only the name, without `=`.
    pub(super) fn drops_equals(self) -> bool {
        self == Operator::Parameter
    }

    pub(super) fn charset(self) -> Charset {
        match self {
            Operator::Reserved | Operator::Fragment => Charset::Reserved,
            Operator::Trailing => Charset::Path,
            Operator::Simple
            | Operator::Label
            | Operator::Path
            | Operator::Parameter
            | Operator::Query
            | Operator::Continuation => Charset::Unreserved,
        }
    }
}

/// Parses a template into steps.
pub(super) fn parse(text: &str) -> Result<Vec<Step>, TemplateError> {
    if text.len() > MAX_TEMPLATE_BYTES {
        return Err(TemplateError::TooLong { length: text.len() });
    }
    let mut parser = Parser { steps: Vec::new(), variables: 0 };
    let mut position = 0;
    while position < text.len() {
        let rest = &text[position..];
        position += match rest.strip_prefix('{') {
            Some(inside) => {
                let length = inside.find('}').ok_or(TemplateError::NotClosed { position })?;
                parser.expression(&inside[..length], position + 1)?;
                length + 2
            }
            None => {
                let length = rest.find('{').unwrap_or(rest.len());
                parser.steps.push(Step::Literal(literal(&rest[..length], position)?));
                length
            }
        };
    }
    Ok(parser.steps)
}

/// Returns the steps with a trailing `{var}` that also matches `/`. Returns `None` if the template does not end in one.
pub(super) fn widen_trailing_variable(steps: &[Step]) -> Option<Vec<Step>> {
    let (Step::Variable(last), before) = steps.split_last()? else {
        return None;
    };
    let is_alone = !matches!(before.last(), Some(Step::Variable(previous)) if !previous.is_last);
    if !is_alone || last.operator != Operator::Simple || last.modifier != Modifier::Plain {
        return None;
    }
    let operator = Operator::Trailing;
    let mut steps = before.to_vec();
    steps.push(Step::Variable(Variable { operator, ..last.clone() }));
    Some(steps)
}

struct Parser {
    steps: Vec<Step>,
    variables: usize,
}

impl Parser {
    /// Parses the `text` between two braces, which begins at `position`.
    fn expression(&mut self, text: &str, mut position: usize) -> Result<(), TemplateError> {
        let mut list = text;
        let mut operator = Operator::Simple;
        if let Some(character) = text.chars().next() {
            if "=,!@|".contains(character) {
                return Err(TemplateError::ReservedOperator { operator: character, position });
            }
            if let Some(found) = Operator::of(character) {
                operator = found;
                list = &text[1..];
                position += 1;
            }
        }
        let mut specifications = list.split(',').peekable();
        while let Some(specification) = specifications.next() {
            let is_last = specifications.peek().is_none();
            self.variable(specification, operator, is_last, position)?;
            position += specification.len() + 1;
        }
        Ok(())
    }

    fn variable(
        &mut self,
        specification: &str,
        operator: Operator,
        is_last: bool,
        position: usize,
    ) -> Result<(), TemplateError> {
        self.variables += 1;
        if self.variables > MAX_VARIABLES {
            return Err(TemplateError::TooManyVariables);
        }
        let (name, modifier) = if let Some(name) = specification.strip_suffix('*') {
            // `{a:2*}` has both modifiers. It fails below as a name with a colon.
            (name, Modifier::Explode)
        } else if let Some((name, length)) = specification.split_once(':') {
            (name, Modifier::Prefix(prefix_length(length, position + name.len() + 1)?))
        } else {
            (specification, Modifier::Plain)
        };
        if !is_name(name) {
            return Err(TemplateError::Name { name: name.to_owned(), position });
        }
        let variable = Variable { name: name.to_owned(), operator, modifier, is_last };
        self.steps.push(Step::Variable(variable));
        Ok(())
    }
}

fn prefix_length(text: &str, position: usize) -> Result<u16, TemplateError> {
    let is_number = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(length) if is_number && !text.starts_with('0') => Ok(length),
        _ => Err(TemplateError::Prefix { length: text.to_owned(), position }),
    }
}

/// Reports whether a name consists of letters, digits, `_` and triplets, with single dots between them.
fn is_name(name: &str) -> bool {
    name.split('.').all(|part| {
        let mut rest = part.as_bytes();
        while let Some(&byte) = rest.first() {
            let length = match byte {
                b'%' if characters::triplet(rest).is_some() => 3,
                b'_' => 1,
                _ if byte.is_ascii_alphanumeric() => 1,
                _ => return false,
            };
            rest = &rest[length..];
        }
        !part.is_empty()
    })
}

/// Checks and encodes literal text that begins at `start`.
fn literal(text: &str, start: usize) -> Result<String, TemplateError> {
    let mut written = String::with_capacity(text.len());
    for (offset, character) in text.char_indices() {
        let position = start + offset;
        let unit = &text[offset..offset + character.len_utf8()];
        match character {
            '%' if characters::triplet(&text.as_bytes()[offset..]).is_none() => {
                return Err(TemplateError::Percent { position });
            }
            '}' => return Err(TemplateError::NotOpened { position }),
            '%' => written.push('%'),
            _ if characters::is_uri_character(character) => written.push(character),
            _ if is_international(character) => written.extend(utf8_percent_encode(unit, NON_ALPHANUMERIC)),
            _ => {
                return Err(TemplateError::Character { character, position });
            }
        }
    }
    Ok(written)
}

/// Reports whether a character is in `ucschar` or `iprivate` of RFC 6570, section 1.5.
fn is_international(character: char) -> bool {
    match u32::from(character) {
        0xA0..=0xD7FF | 0xE000..=0xFDCF | 0xFDF0..=0xFFEF => true,
        0xE_0000..=0xE_0FFF => false,
        code => code >= 0x1_0000 && code & 0xFFFF <= 0xFFFD,
    }
}
