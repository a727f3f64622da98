package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"softiser/internal/usage"
)

// condition decides whether a row of a report is shown.
type condition func(*row) bool

// operators of lvm2's selection, the longer ones first.
var operators = []string{"=~", "!~", "!=", ">=", "<=", "=", ">", "<"}

// timeOperators are the words for some of them.
var timeOperators = map[string]string{"since": ">=", "after": ">", "until": "<=", "before": "<"}

// selection is lvm2's -S being parsed: columns, operators and values, with && or
// "," and || or "#" between them, and !( ).
type selection struct {
	text   string // what is left
	kind   string
	fields []*field // that are asked about
}

func parseSelection(text, kind string) (condition, []*field, error) {
	s := &selection{text: text, kind: kind}
	if strings.TrimSpace(text) == "" || text == "help" {
		return nil, nil, usage.Errorf("--select: give a condition like 'lv_size>1g && lv_name=~^data'")
	}
	c, err := s.or()
	if err == nil && s.text != "" {
		err = fmt.Errorf("%q is left over", s.text)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("selection %q: %w", text, err)
	}
	return c, s.fields, nil
}

// take cuts one of the words off the front.
func (s *selection) take(words ...string) (string, bool) {
	s.text = strings.TrimSpace(s.text)
	for _, w := range words {
		if rest, ok := strings.CutPrefix(s.text, w); ok {
			s.text = strings.TrimSpace(rest)
			return w, true
		}
	}
	return "", false
}

func (s *selection) or() (condition, error) {
	left, err := s.and()
	if err != nil {
		return nil, err
	}
	if _, ok := s.take("||", "#"); !ok {
		return left, nil
	}
	right, err := s.or()
	return func(r *row) bool { return left(r) || right(r) }, err
}

func (s *selection) and() (condition, error) {
	left, err := s.unary()
	if err != nil {
		return nil, err
	}
	if _, ok := s.take("&&", ","); !ok {
		return left, nil
	}
	right, err := s.and()
	return func(r *row) bool { return left(r) && right(r) }, err
}

func (s *selection) unary() (condition, error) {
	_, not := s.take("!")
	_, open := s.take("(")
	switch {
	case not && !open:
		return nil, fmt.Errorf("a parenthesis is expected behind !, before %q", s.text)
	case !open:
		return s.comparison()
	}
	c, err := s.or()
	if err != nil {
		return nil, err
	}
	if _, ok := s.take(")"); !ok {
		return nil, fmt.Errorf("a closing parenthesis is expected before %q", s.text)
	}
	if not {
		return func(r *row) bool { return !c(r) }, nil
	}
	return c, nil
}

var columnName = regexp.MustCompile(`^[A-Za-z0-9_]+`)

// comparison parses one FIELD OPERATOR VALUE of a selection.
func (s *selection) comparison() (condition, error) {
	s.text = strings.TrimSpace(s.text)
	name := columnName.FindString(s.text)
	s.text = s.text[len(name):]
	f := findField(name, s.kind)
	if f == nil {
		return nil, fmt.Errorf("unrecognised selection field: %q", name)
	}
	op, ok := s.take(operators...)
	if !ok && f.selectedAs() == "time" {
		word, found := s.take("since", "after", "until", "before")
		op, ok = timeOperators[word], found
	}
	if !ok {
		return nil, fmt.Errorf("%s: an operator (%s) is expected before %q", f.name, strings.Join(operators, " "), s.text)
	}
	value, err := s.value()
	if err != nil {
		return nil, err
	}
	s.fields = append(s.fields, f)
	c, err := f.condition(op, value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	return c, nil
}

// value cuts off a value, in quotes or up to what can follow one.
func (s *selection) value() (string, error) {
	if s.text != "" && (s.text[0] == '\'' || s.text[0] == '"') {
		v, rest, ok := strings.Cut(s.text[1:], s.text[:1])
		if !ok {
			return "", fmt.Errorf("the quote of %s does not end", s.text)
		}
		s.text = strings.TrimSpace(rest)
		return v, nil
	}
	end := strings.IndexAny(s.text, " \t&|,#()")
	if end < 0 {
		end = len(s.text)
	}
	v := s.text[:end]
	s.text = strings.TrimSpace(s.text[end:])
	return v, nil
}

// listFields have several words; lvm2 looks for one of them among the others.
var listFields = []string{"lv_tags", "vg_tags", "pv_tags", "seg_tags", "lv_layout", "lv_role", "lv_modules", "lv_ancestors", "lv_full_ancestors", "lv_descendants", "lv_full_descendants"}

// otherFields are something else in lvm2 than here.
var otherFields = []string{"lv_kernel_read_ahead", "pe_start", "seg_size_pe", "pv_major", "pv_minor", "devices", "seg_pe_ranges", "seg_le_ranges"}

// synonyms are what lvm2 takes for a word that it prints.
var synonyms = map[string]map[string]string{
	"lv_permissions": {"rw": "writeable", "read-write": "writeable", "r": "read-only", "ro": "read-only"},
	"vg_permissions": {"rw": "writeable", "read-write": "writeable", "r": "read-only", "ro": "read-only"},
}

// selectedAs says what a column is to lvm2's selection, "" if selection by it is
// not done here.
func (f *field) selectedAs() string {
	_, flag := flagWords[f.name]
	_, percent := percents[f.name]
	switch {
	case flag:
		return "number"
	case percent:
		return "percent"
	case f.name == "lv_time":
		return "time"
	case f.help == blankHelp || slices.Contains(otherFields, f.name):
		return ""
	case f.num != nil:
		return "number"
	case f.size != nil:
		return "size"
	case f.right():
		return ""
	case slices.Contains(listFields, f.name):
		return "string list"
	}
	return "string"
}

// condition compares a column with a value as lvm2 does. What is not compared
// alike is refused.
func (f *field) condition(op, value string) (condition, error) {
	match := op == "=~" || op == "!~"
	kind := f.selectedAs()
	switch {
	case kind == "":
		return nil, fmt.Errorf("selection by this column is not done here")
	case strings.HasPrefix(kind, "string") && match:
		return f.matches(op, value)
	case strings.HasPrefix(kind, "string"):
		return f.is(op, value)
	case match:
		return nil, fmt.Errorf("%s is for texts", op)
	}
	switch kind {
	case "number":
		return f.counts(op, value)
	case "percent":
		return f.fills(op, value)
	case "time":
		return within(op, value, time.Now())
	}
	if f.name == "lv_read_ahead" && value == "auto" {
		return nil, fmt.Errorf("auto is not looked for here")
	}
	if value == "0" {
		return ordered(op, f.size, 0), nil
	}
	m, err := parseSize(value)
	if err != nil || m.sign != 0 {
		return nil, fmt.Errorf("%q is not a size like 8m", value)
	}
	return ordered(op, f.size, m.bytes), nil
}

// is compares a text, or looks for it in a list.
func (f *field) is(op, value string) (condition, error) {
	list := slices.Contains(listFields, f.name)
	switch {
	case op != "=" && op != "!=":
		return nil, fmt.Errorf("%s is for numbers and sizes", op)
	case list && (value == "" || strings.ContainsAny(value, "[{")):
		return nil, fmt.Errorf("in lists only one word is looked for here")
	}
	if word := synonyms[f.name][value]; word != "" {
		value = word
	}
	return func(r *row) bool {
		text := f.str(r)
		if list {
			return slices.Contains(strings.Split(text, ","), value) == (op == "=")
		}
		return (strings.Trim(text, "[]") == value) == (op == "=") // hidden volumes have brackets
	}, nil
}

func (f *field) matches(op, value string) (condition, error) {
	if slices.Contains(listFields, f.name) || strings.ContainsAny(value, `{\`) || strings.Contains(value, "(?") {
		return nil, fmt.Errorf("%s is not done here for lists, nor with {, \\ and (?", op)
	}
	re, err := regexp.Compile(value)
	if err != nil {
		return nil, err
	}
	return func(r *row) bool { return re.MatchString(strings.Trim(f.str(r), "[]")) == (op == "=~") }, nil
}

// ordered compares a number; one that a row does not have is another one.
func ordered[T int64 | uint64](op string, of func(*row) (T, bool), value T) condition {
	return func(r *row) bool {
		n, ok := of(r)
		if !ok {
			return op == "!="
		}
		c := cmp.Compare(n, value)
		switch op {
		case "=":
			return c == 0
		case "!=":
			return c != 0
		case ">":
			return c > 0
		case ">=":
			return c >= 0
		case "<":
			return c < 0
		}
		return c <= 0
	}
}
