//! Constants of `crates/format`: enough of Rust's expressions to know their values.

use std::collections::BTreeMap;

use crate::sources::Source;

/// Returns the value of every constant that is a plain number.
pub(crate) fn values(sources: &[&Source]) -> BTreeMap<String, u64> {
    let mut expressions = BTreeMap::new();
    for source in sources {
        for (_, line) in source.code_lines() {
            if let Some((name, expression)) = constant(line) {
                expressions.insert(name.to_owned(), expression.to_owned());
            }
        }
    }
    let mut values = BTreeMap::new();
    // A constant may name another that comes later, so go on while something is learnt.
    loop {
        let before = values.len();
        for (name, expression) in &expressions {
            if let Some(value) = evaluate(expression, &values) {
                values.insert(name.clone(), value);
            }
        }
        if values.len() == before {
            return values;
        }
    }
}

fn constant(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let rest = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("const ")?;
    let (name, rest) = rest.split_once(':')?;
    let (_, expression) = rest.split_once('=')?;
    Some((name.trim(), expression.trim().strip_suffix(';')?))
}

/// Returns the value of an expression of numbers, known names and `+ - * / <<`; `None` for any
/// other.
pub(crate) fn evaluate(expression: &str, known: &BTreeMap<String, u64>) -> Option<u64> {
    let tokens = tokens(expression)?;
    let mut parser = Parser { tokens: &tokens, known };
    let value = parser.shift()?;
    parser.tokens.is_empty().then_some(value)
}

fn tokens(expression: &str) -> Option<Vec<String>> {
    let mut tokens: Vec<String> = Vec::new();
    let spaced = expression.replace("<<", " < ");
    let mut rest = spaced.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = match first {
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            '+' | '-' | '*' | '/' | '(' | ')' | '<' => 1,
            _ => return None,
        };
        let (token, behind) = rest.split_at(end);
        tokens.push(token.to_owned());
        rest = behind.trim_start();
    }
    Some(tokens)
}

struct Parser<'tokens> {
    tokens: &'tokens [String],
    known: &'tokens BTreeMap<String, u64>,
}

impl Parser<'_> {
    fn take(&mut self, operators: &[&str]) -> Option<String> {
        let (first, rest) = self.tokens.split_first()?;
        let found = operators.contains(&first.as_str());
        found.then(|| {
            self.tokens = rest;
            first.clone()
        })
    }

    fn shift(&mut self) -> Option<u64> {
        let mut value = self.sum()?;
        while self.take(&["<"]).is_some() {
            value = value.checked_shl(u32::try_from(self.sum()?).ok()?)?;
        }
        Some(value)
    }

    fn sum(&mut self) -> Option<u64> {
        let mut value = self.product()?;
        while let Some(operator) = self.take(&["+", "-"]) {
            let other = self.product()?;
            value =
                if operator == "+" { value.checked_add(other) } else { value.checked_sub(other) }?;
        }
        Some(value)
    }

    fn product(&mut self) -> Option<u64> {
        let mut value = self.atom()?;
        while let Some(operator) = self.take(&["*", "/"]) {
            let other = self.atom()?;
            value =
                if operator == "*" { value.checked_mul(other) } else { value.checked_div(other) }?;
        }
        Some(value)
    }

    fn atom(&mut self) -> Option<u64> {
        if self.take(&["("]).is_some() {
            let value = self.shift()?;
            self.take(&[")"])?;
            return Some(value);
        }
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        let digits = first.replace('_', "");
        match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok().or_else(|| self.known.get(first).copied()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_the_values_that_rust_gives_them() {
        let known = BTreeMap::from([("PAGE".to_owned(), 4096)]);
        let cases = [
            ("31_744", Some(31_744)),
            ("(1 << 40) - 1", Some((1 << 40) - 1)),
            ("1 << 2 + 3", Some(32)),
            ("2 * PAGE - 10 / 5", Some(8190)),
            ("0x676c_4648", Some(0x676c_4648)),
            ("UNKNOWN + 1", None),
            ("f(3)", None),
            ("", None),
        ];
        for (expression, expected) in cases {
            assert_eq!(evaluate(expression, &known), expected, "{expression}");
        }
    }

    #[test]
    fn a_constant_may_name_a_later_one() {
        let text = "const A: u64 = B * 2;\npub const B: u64 = 4;\n".to_owned();
        let source = Source { path: "a.rs".to_owned(), text };
        let values = values(&[&source]);
        assert_eq!((values["A"], values["B"]), (8, 4));
    }
}
