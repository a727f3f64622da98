package lint

import (
	"go/ast"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// A message that docs/TROUBLESHOOTING.md explains is one that a program can say.
func TestExplainedMessagesExist(t *testing.T) {
	doc, err := os.ReadFile("../../docs/TROUBLESHOOTING.md")
	if err != nil {
		t.Fatal(err)
	}
	verb := regexp.MustCompile(`%[-+# 0-9.*]*[a-zA-Z]`)
	var all strings.Builder
	for _, f := range sources(t) {
		if !f.test {
			all.WriteString(verb.ReplaceAllString(string(f.src), "…"))
		}
	}
	text := all.String()
	headings := regexp.MustCompile("(?m)^### `(.*)`$").FindAllStringSubmatch(string(doc), -1)
	if len(headings) < 20 {
		t.Fatalf("only %d messages are explained", len(headings))
	}
	for _, h := range headings {
		for part := range strings.SplitSeq(h[1], "…") {
			if part = strings.TrimSpace(part); len(part) > 4 && !strings.Contains(text, part) {
				t.Errorf("no source says %q", part)
			}
		}
	}
}

// TestStepsAreWhereTheyAreSaidToBe: the functions in the table of steps of docs/ARCHITECTURE.md are in the files that
// it names. A file without its folder may be that of any package.
func TestStepsAreWhereTheyAreSaidToBe(t *testing.T) {
	doc, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "## The same, step by step")
	table, _, _ = strings.Cut(table, "\n## ")
	functions := map[string]bool{} // "file: function", with and without the folder
	for _, f := range sources(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && !f.test {
				functions[f.path+": "+fn.Name.Name] = true
				functions[path.Base(f.path)+": "+fn.Name.Name] = true
			}
		}
	}
	steps := regexp.MustCompile("`([\\w/]+\\.go): ([\\w, ]+)`").FindAllStringSubmatch(table, -1)
	if len(steps) < 30 {
		t.Fatalf("only %d steps were found", len(steps))
	}
	for _, s := range steps {
		for name := range strings.SplitSeq(s[2], ", ") {
			if !functions[s[1]+": "+name] {
				t.Errorf("%s has no function %s", s[1], name)
			}
		}
	}
}
