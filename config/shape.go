package config

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// checkShape compares a YAML document with the model before viper sees it:
// every key must be known, stand once, and hold a value of its field's kind.
// It also notes the line of every key, which viper does not keep, and that what is wanted as
// a text is one.
func (r *report) checkShape(doc *yaml.Node) {
	if len(doc.Content) == 0 {
		return
	}
	r.shape(doc.Content[0], reflect.TypeFor[Config](), "")
}

var (
	sizeType     = reflect.TypeFor[Size]()
	durationType = reflect.TypeFor[Duration]()
)

// shape compares the YAML below n with the type that it will be decoded into, and
// remembers the line of each key.
func (r *report) shape(n *yaml.Node, t reflect.Type, key string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if key != "" {
		if _, ok := r.lines[key]; !ok {
			r.lines[key] = n.Line
		}
	}
	if t.Kind() == reflect.Pointer {
		if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
			r.addLine(n.Line, key, "is empty, so that it would have no effect: fill it in, or leave it out")
			return
		}
		t = t.Elem()
	}
	switch {
	case t == sizeType:
		if r.scalar(n, key, "a size: "+SizeForm) {
			if _, err := ParseSize(n.Value); err != nil {
				r.addLine(n.Line, key, "%v", err)
			}
		}
	case t == durationType:
		if r.scalar(n, key, "a duration such as 500ms, 5s or 2m") {
			if err := new(Duration).UnmarshalText([]byte(n.Value)); err != nil {
				r.addLine(n.Line, key, "%q is not a duration; expected a number with a unit such as 500ms, 5s or 2m", n.Value)
			}
		}
	case t.Kind() == reflect.Struct:
		r.mapping(n, t, key)
	case t.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			r.addLine(n.Line, key, "expected a list: one item a line, each starting with '- '")
			return
		}
		for i, item := range n.Content {
			r.shape(item, t.Elem(), fmt.Sprintf("%s[%d]", key, i))
		}
	case t.Kind() == reflect.Bool:
		if n.Tag != "!!bool" {
			r.addLine(n.Line, key, "%q is not true or false", n.Value)
		}
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		if n.Tag != "!!str" {
			if v, ok := decimal(n.Value); ok {
				n.Tag, n.Value = "!!int", v
			}
		}
		var i int64
		if n.Tag != "!!int" {
			r.addLine(n.Line, key, "%q is not a whole number", n.Value)
		} else if n.Decode(&i) != nil {
			r.addLine(n.Line, key, "%s is too large, whatever it counts", n.Value)
		}
	case t.Kind() == reflect.Float64:
		if n.Tag != "!!int" && n.Tag != "!!float" {
			r.addLine(n.Line, key, "%q is not a number", n.Value)
		}
	default:
		if r.scalar(n, key, "a text") && n.Tag != "!!null" {
			n.Tag = "!!str" // as it stands there: 0012 is no octal number, and digits of a wwid are not rounded
		}
	}
}

// decimal returns a number that consists of digits without the zeros that would make it octal (YAML 1.1, Go):
// 010 is ten.
func decimal(s string) (string, bool) {
	return cmp.Or(strings.TrimLeft(s, "0"), "0"), s != "" && strings.Trim(s, "0123456789") == ""
}

func (r *report) scalar(n *yaml.Node, key, want string) bool {
	if n.Kind != yaml.ScalarNode {
		r.addLine(n.Line, key, "expected %s", want)
		return false
	}
	return true
}

// mapping compares a section with the fields of t: unknown keys, keys that stand twice, values of the wrong shape.
func (r *report) mapping(n *yaml.Node, t reflect.Type, key string) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // an empty section means its defaults
	}
	if n.Kind != yaml.MappingNode {
		r.addLine(n.Line, key, "expected a section with the keys %s", strings.Join(keysOf(t), ", "))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		sub := join(key, name.Value)
		if first, ok := seen[name.Value]; ok {
			r.addLine(name.Line, sub, "stands twice; it is first set in line %d", first)
			continue
		}
		seen[name.Value] = name.Line
		f, ok := fieldOf(t, name.Value)
		if !ok {
			r.addLine(name.Line, sub, "unknown key%s; the keys here are %s", didYouMean(name.Value, keysOf(t)), strings.Join(keysOf(t), ", "))
			continue
		}
		r.lines[sub] = name.Line
		r.shape(value, f.Type, sub)
	}
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if k := t.Field(i).Tag.Get("mapstructure"); k != "" && k != "-" {
			keys = append(keys, k)
		}
	}
	return keys
}

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); key != "-" && f.Tag.Get("mapstructure") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// didYouMean names the known key nearest to a mistyped one.
func didYouMean(got string, known []string) string {
	best, at := 3, "" // more than two edits is no typing mistake
	for _, k := range known {
		if d := editDistance(strings.ToLower(got), strings.ToLower(k)); d < best {
			best, at = d, k
		}
	}
	if at == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", at)
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diag, row[j] = row[j], min(row[j]+1, row[j-1]+1, diag+cost)
		}
	}
	return row[len(b)]
}
