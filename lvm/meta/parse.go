package meta

import (
	"fmt"
	"strings"
)

// Parse reads a text. A closing NUL, as on disk, is ignored.
func Parse(text []byte) (*Section, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("%w: text of %d bytes", ErrSyntax, len(text))
	}
	p := &parser{s: strings.TrimRight(string(text), "\x00"), line: 1}
	root := &Section{}
	if err := p.section(root, 0); err != nil {
		return nil, err
	}
	return root, nil
}

type parser struct {
	s    string
	pos  int
	line int
}

func (p *parser) fail(format string, a ...any) error {
	return fmt.Errorf("%w: line %d: %s", ErrSyntax, p.line, fmt.Sprintf(format, a...))
}

// blanks skips spaces and tabs.
func (p *parser) blanks() {
	for p.pos < len(p.s) && (p.s[p.pos] == ' ' || p.s[p.pos] == '\t' || p.s[p.pos] == '\r') {
		p.pos++
	}
}

// space skips white space and comments, newlines too.
func (p *parser) space() {
	for {
		p.blanks()
		if p.pos >= len(p.s) {
			return
		}
		switch p.s[p.pos] {
		case '\n':
			p.line++
			p.pos++
		case '#':
			p.comment()
		default:
			return
		}
	}
}

// comment consumes up to the end of the line and returns it.
func (p *parser) comment() string {
	end := strings.IndexByte(p.s[p.pos:], '\n')
	if end < 0 {
		end = len(p.s) - p.pos
	}
	c := p.s[p.pos : p.pos+end]
	p.pos += end
	return strings.TrimRight(c, " \t\r")
}

func (p *parser) peek() byte {
	if p.pos < len(p.s) {
		return p.s[p.pos]
	}
	return 0
}

// section reads items until the closing brace, or the end of the text at depth 0.
func (p *parser) section(s *Section, depth int) error {
	if depth > maxDepth {
		return p.fail("sections nested deeper than %d", maxDepth)
	}
	fresh := true // at the start of a line
	for {
		p.blanks()
		if p.pos >= len(p.s) {
			if depth > 0 {
				return p.fail("section %q is not closed", s.Name)
			}
			return nil
		}
		switch c := p.peek(); {
		case c == '\n':
			if fresh {
				s.items = append(s.items, item{kind: itemBlank})
			}
			p.pos++
			p.line++
			fresh = true
			continue
		case c == '#':
			note := p.comment()
			if last := len(s.items) - 1; !fresh && last >= 0 && s.items[last].kind == itemAssign {
				s.items[last].note = note
			} else {
				s.items = append(s.items, item{kind: itemComment, note: note})
			}
			fresh = false
			continue
		case c == '}':
			if depth == 0 {
				return p.fail("unexpected '}'")
			}
			p.pos++
			return nil
		}
		fresh = false
		key := p.word()
		if key == "" {
			return p.fail("unexpected %q", p.peek())
		}
		p.space()
		switch p.peek() {
		case '=':
			p.pos++
			p.space()
			v, err := p.value(0)
			if err != nil {
				return err
			}
			s.items = append(s.items, item{kind: itemAssign, key: key, val: v})
		case '{':
			p.pos++
			p.blanks()
			if p.peek() == '\n' {
				p.pos++
				p.line++
			}
			sub := &Section{Name: key}
			if err := p.section(sub, depth+1); err != nil {
				return err
			}
			s.items = append(s.items, item{kind: itemSection, key: key, sec: sub})
		default:
			return p.fail("%q is followed by neither '=' nor '{'", key)
		}
	}
}

// word reads a key: anything up to white space or a character with a meaning.
func (p *parser) word() string {
	start := p.pos
	if p.peek() == '"' {
		// lvm2 quotes keys with unusual characters.
		v, err := p.value(0)
		if err != nil || v.Text == "" || strings.ContainsAny(v.Text, "\" \t\r\n={}[],#\\") {
			return ""
		}
		return v.Text
	}
	for p.pos < len(p.s) && !strings.ContainsRune(" \t\r\n={}[],#\"\\\x00", rune(p.s[p.pos])) {
		p.pos++
	}
	return p.s[start:p.pos]
}

// value parses a string, a number or a list; depth bounds how deep lists are nested.
func (p *parser) value(depth int) (Value, error) {
	switch c := p.peek(); {
	case c == '"':
		p.pos++
		var b strings.Builder
		for p.pos < len(p.s) {
			c := p.s[p.pos]
			p.pos++
			switch c {
			case '"':
				return Str(b.String()), nil
			case '\\':
				if p.pos < len(p.s) {
					c = p.s[p.pos]
					p.pos++
				}
			case '\n':
				p.line++
			}
			b.WriteByte(c)
		}
		return Value{}, p.fail("string is not closed")
	case c == '[':
		if depth > 0 {
			return Value{}, p.fail("list in a list")
		}
		return p.list()
	case c == '-' || c == '+' || c == '.' || c >= '0' && c <= '9':
		start := p.pos
		p.pos++
		for p.pos < len(p.s) && (p.s[p.pos] >= '0' && p.s[p.pos] <= '9' || p.s[p.pos] == '.') {
			p.pos++
		}
		return Value{Kind: Number, Text: p.s[start:p.pos]}, nil
	}
	return Value{}, p.fail("no value where one is expected")
}

// list parses an array, and keeps where its lines are broken.
func (p *parser) list() (Value, error) {
	p.pos++
	v := Value{Kind: List}
	p.blanks()
	v.Rows = p.peek() == '\n'
	for {
		p.space()
		if p.peek() == ']' {
			p.pos++
			return v, nil
		}
		e, err := p.value(1)
		if err != nil {
			return v, err
		}
		v.List = append(v.List, e)
		p.space()
		switch p.peek() {
		case ',':
			p.pos++
		case ']':
		default:
			return v, p.fail("list element is followed by neither ',' nor ']'")
		}
	}
}
