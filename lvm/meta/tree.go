package meta

import (
	"strconv"
	"strings"
)

// Value is the right side of an assignment.
type Value struct {
	Kind ValueKind
	Text string  // String: the content; Number: the digits as written
	List []Value // List
	Rows bool    // List: written over several lines, two values on each
}

// ValueKind is the type of a Value.
type ValueKind uint8

// Kinds of values.
const (
	Number ValueKind = iota
	String
	List
)

// Int makes a number.
func Int[T ~int | ~int64 | ~uint32 | ~uint64](n T) Value {
	return Value{Kind: Number, Text: strconv.FormatInt(int64(n), 10)}
}

// Str makes a string.
func Str(s string) Value { return Value{Kind: String, Text: s} }

// Strs makes a list of strings.
func Strs(ss []string) Value {
	v := Value{Kind: List}
	for _, s := range ss {
		v.List = append(v.List, Str(s))
	}
	return v
}

type itemKind uint8

const (
	itemBlank   itemKind = iota // an empty line
	itemComment                 // a line with only a comment
	itemAssign
	itemSection
)

// item is one line of a section, or one section in it.
type item struct {
	kind itemKind
	key  string
	val  Value
	sec  *Section
	note string // comment, from its '#' on
}

// Section is a named group of assignments and sections, in order.
type Section struct {
	Name  string
	items []item
}

func (s *Section) find(key string, kind itemKind) int {
	for i := range s.items {
		if s.items[i].kind == kind && s.items[i].key == key {
			return i
		}
	}
	return -1
}

// Get returns the value of key.
func (s *Section) Get(key string) (Value, bool) {
	if i := s.find(key, itemAssign); i >= 0 {
		return s.items[i].val, true
	}
	return Value{}, false
}

// Sub returns the section of that name, nil if there is none.
func (s *Section) Sub(name string) *Section {
	if i := s.find(name, itemSection); i >= 0 {
		return s.items[i].sec
	}
	return nil
}

// Subs returns all sections in order.
func (s *Section) Subs() []*Section {
	var out []*Section
	for i := range s.items {
		if s.items[i].kind == itemSection {
			out = append(out, s.items[i].sec)
		}
	}
	return out
}

// Set replaces the value of key in place, or appends the assignment; a new
// key in blankBefore gets the empty line that lvm2 puts there.
func (s *Section) Set(key string, v Value) {
	if i := s.find(key, itemAssign); i >= 0 {
		v.Rows = v.Rows || s.items[i].val.Rows
		s.items[i].val = v
		return
	}
	if blankBefore[key] {
		s.items = append(s.items, item{kind: itemBlank})
	}
	s.items = append(s.items, item{kind: itemAssign, key: key, val: v})
}

// blankBefore are the keys that lvm2 separates from what precedes them. The
// PV's status is handled by its device key.
var blankBefore = map[string]bool{"type": true, "stripes": true}

// Remove deletes an assignment or section and the empty line before it.
func (s *Section) Remove(key string) {
	for _, k := range []itemKind{itemAssign, itemSection} {
		if i := s.find(key, k); i >= 0 {
			lo := i
			if lo > 0 && s.items[lo-1].kind == itemBlank {
				lo--
			}
			s.items = append(s.items[:lo], s.items[i+1:]...)
		}
	}
}

// replaceSubs makes subs the sections of s, in their order, each behind an
// empty line; assignments of s stay before them.
func (s *Section) replaceSubs(subs []*Section) {
	same, i := true, 0
	for _, it := range s.items {
		if it.kind == itemSection {
			same = same && i < len(subs) && it.sec == subs[i] && it.key == subs[i].Name // not renamed
			i++
		}
	}
	if same && i == len(subs) {
		return
	}
	var keep []item
	for i, it := range s.items {
		if it.kind == itemSection || it.kind == itemBlank && i+1 < len(s.items) && s.items[i+1].kind == itemSection {
			continue
		}
		keep = append(keep, it)
	}
	s.items = keep
	for _, sub := range subs {
		s.addSub(sub)
	}
}

func (s *Section) addSub(sub *Section) {
	s.items = append(s.items, item{kind: itemBlank}, item{kind: itemSection, key: sub.Name, sec: sub})
}

// lineBreak appends an empty line.
func (s *Section) lineBreak() { s.items = append(s.items, item{kind: itemBlank}) }

// comment appends a line that is only a comment.
func (s *Section) comment(text string) {
	s.items = append(s.items, item{kind: itemComment, note: "# " + text})
}

// Append writes the section's items in lvm2's on-disk form, without its own
// name and braces.
func (s *Section) Append(b []byte) []byte { return s.append(b, 0, false) }

// AppendIndented writes them as in lvm2's backup files.
func (s *Section) AppendIndented(b []byte) []byte { return s.append(b, 0, true) }

// append writes the text as lvm2 does: pretty with indentation and comments, else bare.
func (s *Section) append(b []byte, depth int, pretty bool) []byte {
	indent := ""
	if pretty {
		indent = strings.Repeat("\t", depth)
	}
	for _, it := range s.items {
		switch it.kind {
		case itemBlank:
			b = append(b, '\n')
			continue
		case itemComment:
			b = append(append(b, indent...), it.note...)
		case itemAssign:
			b = append(append(b, indent...), it.key...)
			b = append(b, " = "...)
			b = it.val.append(b, indent, pretty)
			note := it.note
			if note == "" && pretty {
				note = s.remark(it.key, it.val)
			}
			if note != "" {
				b = append(append(b, '\t'), note...)
			}
		case itemSection:
			b = append(append(b, indent...), it.key...)
			b = append(b, " {\n"...)
			b = it.sec.append(b, depth+1, pretty)
			b = append(append(b, indent...), '}')
		}
		b = append(b, '\n')
	}
	return b
}

// append writes the text as lvm2 does: pretty with indentation and comments, else bare.
func (v Value) append(b []byte, indent string, pretty bool) []byte {
	switch v.Kind {
	case Number:
		return append(b, v.Text...)
	case String:
		return appendQuoted(b, v.Text)
	}
	b = append(b, '[')
	if !v.Rows {
		for i, e := range v.List {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = e.append(b, "", false)
		}
		return append(b, ']')
	}
	for i, e := range v.List {
		if i%2 == 0 {
			b = append(append(b, '\n'), indent...)
			if pretty {
				b = append(b, '\t')
			}
		} else {
			b = append(b, ' ')
		}
		b = e.append(b, "", false)
		if i < len(v.List)-1 {
			b = append(b, ',')
		}
	}
	return append(append(append(b, '\n'), indent...), ']')
}

func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// remark is the comment that lvm2 puts behind some numbers in backup files: behind the size of a pool's chunks, not of
// a snapshot's.
func (s *Section) remark(key string, v Value) string {
	if v.Kind == String {
		switch key {
		case "device":
			return "# Hint only"
		case "format":
			return "# informational"
		}
		return ""
	}
	n, err := strconv.ParseUint(v.Text, 10, 55)
	if err != nil {
		return ""
	}
	if typ, _ := s.Get("type"); key == "chunk_size" && typ.Text == Snapshot {
		return ""
	}
	switch key {
	case "extent_size", "dev_size", "stripe_size", "chunk_size":
		return "# " + sizeWords(n*512)
	case "stripe_count":
		if n == 1 {
			return "# linear"
		}
	}
	return ""
}

func sizeWords(n uint64) string {
	units := []string{"Bytes", "Kilobytes", "Megabytes", "Gigabytes", "Terabytes", "Petabytes"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return strconv.FormatFloat(f, 'g', 6, 64) + " " + units[i]
}
