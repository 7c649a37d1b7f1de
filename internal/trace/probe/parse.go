package probe

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// longest bounds the length of a probe's text in bytes, and so the cost of parsing.
const longest = 16384

// Parse reads a probe.
func Parse(text string) (Probe, error) {
	if len(text) > longest {
		return nil, fmt.Errorf("the probe has %d characters: at most %d are allowed", len(text), longest)
	}
	p := &parser{text: text}
	probe, err := p.probe()
	if err != nil {
		return nil, fmt.Errorf("probe, character %d: %w", p.at+1, err)
	}
	return probe, nil
}

// parser reads a text from left to right.
type parser struct {
	text string
	at   int
}

func (p *parser) skip() {
	for p.at < len(p.text) && unicode.IsSpace(rune(p.text[p.at])) {
		p.at++
	}
}

// take reads one of the characters, behind spaces.
func (p *parser) take(chars string) (c byte, ok bool) {
	p.skip()
	if p.at < len(p.text) && strings.IndexByte(chars, p.text[p.at]) >= 0 {
		p.at++
		return p.text[p.at-1], true
	}
	return 0, false
}

func (p *parser) word() string {
	p.skip()
	start := p.at
	for p.at < len(p.text) {
		c := p.text[p.at]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (p.at == start || c < '0' || c > '9') {
			break
		}
		p.at++
	}
	return p.text[start:p.at]
}

func (p *parser) probe() (all Probe, err error) {
	for {
		layers, err := p.layer()
		if err != nil {
			return nil, err
		}
		all = append(all, layers...)
		if _, more := p.take("/+."); !more {
			break
		}
	}
	if p.skip(); p.at < len(p.text) {
		return nil, fmt.Errorf("%q follows: join layers by one of the characters /+. and nothing else", p.text[p.at:min(len(p.text), p.at+10)])
	}
	return all, nil
}

func (p *parser) layer() (Probe, error) {
	name := p.word()
	if name == "" {
		return nil, fmt.Errorf("a name such as IP or tcp is missing")
	}
	open, ok := p.take("({")
	if !ok {
		if _, macro := macros[name]; macro {
			return Macro(name)
		}
		if _, function := functions[name]; function {
			return nil, fmt.Errorf("%s is a function: write %s{} or %s()", name, name, name)
		}
		return Macro(name)
	}
	args := Args{Named: map[string]any{}}
	var err error
	if open == '{' {
		err = p.table(&args, '}')
	} else {
		err = p.list(&args)
	}
	if err != nil {
		return nil, err
	}
	if parts, macro := macros[name]; macro {
		if len(parts) > 1 {
			return nil, fmt.Errorf("%s stands for %s and takes no arguments: write %s(…)", name, strings.Join(parts, " / "), strings.ToLower(name))
		}
		name = parts[0]
	}
	return Call(name, args)
}

// list reads arguments up to a parenthesis. A table in it is a table of names, as in Lua.
func (p *parser) list(args *Args) error {
	if _, end := p.take(")"); end {
		return nil
	}
	for {
		if _, table := p.take("{"); table {
			if err := p.table(args, '}'); err != nil {
				return err
			}
		} else {
			v, err := p.value()
			if err != nil {
				return err
			}
			args.List = append(args.List, v)
		}
		c, ok := p.take(",)")
		if !ok {
			return fmt.Errorf(", or ) is missing")
		}
		if c == ')' {
			return nil
		}
	}
}

// table reads named arguments up to a brace.
func (p *parser) table(args *Args, end byte) error {
	for {
		if _, ended := p.take(string(end)); ended {
			return nil
		}
		start := p.at
		name := p.word()
		if _, named := p.take("="); !named || name == "" {
			p.at = start
			v, err := p.value()
			if err != nil {
				return err
			}
			args.List = append(args.List, v)
		} else {
			v, err := p.value()
			if err != nil {
				return err
			}
			if _, twice := args.Named[name]; twice {
				return fmt.Errorf("%s is given twice", name)
			}
			args.Named[name] = v
		}
		c, ok := p.take(",;" + string(end))
		if !ok {
			return fmt.Errorf(", or %c is missing", end)
		}
		if c == end {
			return nil
		}
	}
}

func (p *parser) value() (any, error) {
	if quote, ok := p.take(`'"`); ok {
		return p.quoted(quote)
	}
	p.skip()
	start := p.at
	for p.at < len(p.text) && (p.text[p.at] == '-' || p.text[p.at] >= '0' && p.text[p.at] <= '9' ||
		p.text[p.at] >= 'a' && p.text[p.at] <= 'z' || p.text[p.at] >= 'A' && p.text[p.at] <= 'Z') {
		p.at++
	}
	n, err := strconv.ParseInt(p.text[start:p.at], 0, 64)
	if err != nil {
		found := p.text[start:p.at]
		p.at = start
		return nil, fmt.Errorf("%q is neither a number nor a string in quotes", found)
	}
	return n, nil
}

// quoted reads a string with Lua's escapes.
func (p *parser) quoted(quote byte) (string, error) {
	var b strings.Builder
	for p.at < len(p.text) {
		c := p.text[p.at]
		p.at++
		switch c {
		case quote:
			return b.String(), nil
		case '\\':
			if err := p.escape(&b); err != nil {
				return "", err
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", fmt.Errorf("the string has no end: %c is missing", quote)
}

func (p *parser) escape(b *strings.Builder) error {
	if p.at == len(p.text) {
		return fmt.Errorf("the string ends in a backslash")
	}
	c := p.text[p.at]
	p.at++
	if simple := strings.IndexByte("nrt0", c); simple >= 0 {
		b.WriteByte("\n\r\t\x00"[simple])
		return nil
	}
	if c == 'x' && p.at+2 <= len(p.text) {
		n, err := strconv.ParseUint(p.text[p.at:p.at+2], 16, 8)
		if err == nil {
			b.WriteByte(byte(n))
			p.at += 2
			return nil
		}
	}
	if strings.IndexByte(`\'"`, c) >= 0 {
		b.WriteByte(c)
		return nil
	}
	return fmt.Errorf("\\%c is no escape: known are \\n, \\r, \\t, \\0, \\xNN, \\\\ and quotes", c)
}
