package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sections is a regular expression for the keys that a configuration begins with.
var sections = strings.Join(keysOf(reflect.TypeFor[Config]()), "|")

// documents are the texts for users.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, from := range []string{"../README.md", "../CHANGELOG.md", "../docs", "../packaging"} {
		err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
				return err
			}
			text, err := os.ReadFile(path)
			all[path] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestDocumentsShowConfigurationsThatLoad: what a document shows of a configuration is one. Files with secrets and
// certificates are not there.
func TestDocumentsShowConfigurationsThatLoad(t *testing.T) {
	block := regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	section := regexp.MustCompile(`(?m)\A(` + sections + `):`)
	found := 0
	for name, text := range documents(t) {
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			if !section.MatchString(m[2]) {
				if m[1] == "yaml" {
					t.Errorf("%s: a block of YAML does not begin with a section of the configuration:\n%s", name, m[2])
				}
				continue
			}
			found++
			_, err := Parse([]byte(m[2]), filepath.Join(t.TempDir(), "iser-target.yaml"))
			all, _ := errors.AsType[Problems](err)
			all = slices.DeleteFunc(all, func(p *Problem) bool { return strings.Contains(p.Text, "no such file") })
			if err != nil && len(all) > 0 {
				t.Errorf("%s: %v in\n%s", name, all, m[2])
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d configurations were found", found)
	}
}

// TestDocumentsNameKeysThatAre: a key that a document names with its section, as in limits.sessions or portals[].tls.mode, is there.
func TestDocumentsNameKeysThatAre(t *testing.T) {
	known := map[string]bool{}
	note(known, reflect.TypeFor[Config](), "")
	key := regexp.MustCompile("`(" + sections + `)((?:\[\])?\.[a-z_0-9]+(?:(?:\[\])?\.[a-z_0-9]+)*)(?:\[\])?(?::[^` + "`]*)?`")
	found := 0
	for name, text := range documents(t) {
		for _, m := range key.FindAllStringSubmatch(text, -1) {
			k := strings.ReplaceAll(m[1]+m[2], "[]", "")
			if found++; !known[k] && !known["ha."+k] { // docs/ha has a table of what is below ha
				t.Errorf("%s: there is no key %s", name, m[1]+m[2])
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d keys were found", found)
	}
}

// note adds the keys of a section to known, without the brackets of lists.
func note(known map[string]bool, t reflect.Type, at string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for _, k := range keysOf(t) {
		f, _ := fieldOf(t, k)
		known[join(at, k)] = true
		note(known, f.Type, join(at, k))
	}
}
