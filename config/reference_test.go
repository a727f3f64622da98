package config

import (
	"flag"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var writeReference = flag.Bool("write-reference", false, "write docs/CONFIGURATION.md instead of comparing with it")

const reference = "../docs/CONFIGURATION.md"

// least is a configuration that says only what it has to; what else is there after it has
// been read are defaults.
const least = `
portals: [{listen: "127.0.0.1:3260"}]
volumes: [{name: a, type: memory, size: 1MiB}]
targets: [{iqn: "iqn.2026-11.com.example:a", luns: [{lun: 0, volume: a}]}]
subsystems: [{nqn: "nqn.2026-11.com.example:a", namespaces: [{nsid: 1, volume: a}]}]
`

// said are the keys of least.
var said = map[string]bool{
	"portals[].listen": true, "volumes[].name": true, "volumes[].type": true, "volumes[].size": true,
	"targets[].iqn": true, "targets[].luns[].lun": true, "targets[].luns[].volume": true,
	"subsystems[].nqn": true, "subsystems[].namespaces[].nsid": true, "subsystems[].namespaces[].volume": true,
}

// The reference says what the model says: keys, kinds, defaults and comments. It is written
// by make docs, never by hand.
func TestReferenceIsOfTheModel(t *testing.T) {
	got := makeReference(t)
	if *writeReference {
		if err := os.WriteFile(reference, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Error("docs/CONFIGURATION.md is not what the model says; make docs writes it")
	}
}

// shared are fields that the comment of the one before them is about, too.
var shared = map[string]bool{"Subsystem.MaxCntlID": true, "HostKey.DHCHAPGroups": true}

// section is a struct of the model and where it stands.
type section struct {
	of    reflect.Type
	at    []string
	value reflect.Value // an example with defaults; not valid: there is none
}

func makeReference(t *testing.T) string {
	cfg, err := Parse([]byte(least), "")
	if err != nil {
		t.Fatal(err)
	}
	var sections []*section
	byType := map[reflect.Type]*section{}
	var visit func(of reflect.Type, v reflect.Value, at string)
	visit = func(of reflect.Type, v reflect.Value, at string) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			if of.Kind() == reflect.Slice {
				at += "[]"
			}
			if v.IsValid() && (of.Kind() == reflect.Slice && v.Len() == 0 || of.Kind() == reflect.Pointer && v.IsNil()) {
				v = reflect.Value{}
			}
			if v.IsValid() && of.Kind() == reflect.Slice {
				v = v.Index(0)
			} else if v.IsValid() {
				v = v.Elem()
			}
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct {
			return
		}
		s := byType[of]
		if s == nil {
			s = &section{of: of}
			byType[of] = s
			sections = append(sections, s)
		}
		if !s.value.IsValid() {
			s.value = v
		}
		s.at = append(s.at, at)
		for i := range of.NumField() {
			key := of.Field(i).Tag.Get("mapstructure")
			if key == "" || key == "-" {
				continue
			}
			var f reflect.Value
			if v.IsValid() {
				f = v.Field(i)
			}
			visit(of.Field(i).Type, f, join(at, key))
		}
	}
	visit(reflect.TypeFor[Config](), reflect.ValueOf(cfg).Elem(), "")
	words := comments(t)
	var b strings.Builder
	b.WriteString("# The configuration of iser-target\n\nThis is made of the model by `make docs`: every key, its kind, its default and what it is. [Examples](../config/examples) say it in context;\n" +
		"`iser-target check --config FILE` prints a file with every default filled in. Unknown keys are errors. Sizes are " + SizeForm + "; durations such as 500ms, 5s or 2m.\n")
	for _, s := range sections {
		if s.at[0] != "" {
			fmt.Fprintf(&b, "\n## %s\n", "`"+strings.Join(s.at, "`, `")+"`")
		} else {
			b.WriteString("\n## The file\n")
		}
		if doc := words[s.of.Name()]; doc != "" {
			fmt.Fprintf(&b, "\n%s\n", doc)
		}
		b.WriteString("\n| key | kind | default | |\n| --- | --- | --- | --- |\n")
		for i := range s.of.NumField() {
			f := s.of.Field(i)
			key := f.Tag.Get("mapstructure")
			if key == "" || key == "-" {
				continue
			}
			text := words[s.of.Name()+"."+f.Name]
			if k := kind(f.Type); text == "" && !strings.HasSuffix(k, "section") && !shared[s.of.Name()+"."+f.Name] {
				t.Errorf("%s.%s says nothing of the key %s", s.of.Name(), f.Name, key)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", key, kind(f.Type), defaultOf(s, i, join(s.at[0], key)), text)
		}
	}
	return b.String()
}

// kind is what a value has to be.
func kind(t reflect.Type) string {
	switch {
	case t == sizeType:
		return "size"
	case t == durationType:
		return "duration"
	case t.Kind() == reflect.Slice:
		return "list of " + strings.TrimPrefix(kind(t.Elem()), "a ")
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Pointer:
		return "section"
	case t.Kind() == reflect.Bool:
		return "true, false"
	case t.Kind() == reflect.String:
		return "text"
	}
	return "number"
}

// defaultOf is what field i of the section holds when a file does not say.
func defaultOf(s *section, i int, key string) string {
	f := s.of.Field(i)
	if said[key] {
		return "" // it has to be said
	}
	if !s.value.IsValid() || f.Type.Kind() == reflect.Struct || f.Type.Kind() == reflect.Pointer {
		return ""
	}
	v := s.value.Field(i)
	if f.Type.Kind() == reflect.Slice && (v.Len() == 0 || v.Type().Elem().Kind() == reflect.Struct) {
		return ""
	}
	text := fmt.Sprint(v.Interface())
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// comments are those of the model's types and fields, by Type and Type.Field, in one line each.
func comments(t *testing.T) map[string]string {
	words := map[string]string{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	line := func(groups ...*ast.CommentGroup) string {
		var all []string
		for _, g := range groups {
			if g != nil {
				all = append(all, strings.Join(strings.Fields(g.Text()), " "))
			}
		}
		return strings.ReplaceAll(strings.Join(all, " "), "|", `\|`)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := goparser.ParseFile(token.NewFileSet(), name, nil, goparser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, spec := range g.Specs {
				ts := spec.(*ast.TypeSpec)
				st, ok := ts.Type.(*ast.StructType)
				if !ok {
					continue
				}
				words[ts.Name.Name] = line(g.Doc, ts.Doc)
				for _, f := range st.Fields.List {
					for _, n := range f.Names {
						words[ts.Name.Name+"."+n.Name] = line(f.Doc, f.Comment)
					}
				}
			}
		}
	}
	return words
}
